//! map-cache
