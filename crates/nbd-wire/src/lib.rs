//! nbd-wire
