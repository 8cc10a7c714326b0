//! Ceph's client library, opened at run time: the only unsafe code of this crate, used by the worker process alone.
//!
//! `library` has its functions by name, `image` an open image, `encryption` what opens one that is encrypted, `memory` what the worker shares with its parent.

mod encryption;
mod image;
mod library;
mod memory;

pub use image::{Completed, Image};
pub use library::Library;
pub use memory::SharedMemory;
