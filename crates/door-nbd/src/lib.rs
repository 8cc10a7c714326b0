//! door-nbd
