//! An opened disk: what the user asked for, what the image says, and the rules between the two.

#![forbid(unsafe_code)]

pub mod cache_mode;
pub mod drive;
pub mod names;
mod nearest;
pub mod options;
pub mod probe;
pub mod size;

pub use crate::nearest::nearest;
