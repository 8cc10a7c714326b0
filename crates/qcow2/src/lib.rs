//! The qcow2 image engine.

#![forbid(unsafe_code)]

pub mod cache_sizes;
