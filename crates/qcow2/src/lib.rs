//! The qcow2 image engine.

#![forbid(unsafe_code)]

pub mod cache_sizes;
mod check;
mod create;
mod table_io;

pub use check::{CheckError, CheckReport, Finding, Owner, Progress, Repair, Severity, Stage, check};
pub use create::{CreateError, CreateOptions, Preallocation, create};
