//! The qcow2 image engine.

#![forbid(unsafe_code)]

pub mod cache_sizes;
mod create;
mod table_io;

pub use create::{CreateError, CreateOptions, Preallocation, create};
