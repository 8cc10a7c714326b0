//! The production engine under the simulation: configurations, images to start from, judges.

#![allow(
    dead_code,
    unused_imports,
    clippy::allow_attributes,
    reason = "each test binary uses its own part of this"
)]

pub mod base;
pub mod bitmaps;
pub mod compacting;
pub mod config;
pub mod judge;
pub mod qemu;
pub mod raw;
pub mod target;

pub use config::config;
pub use raw::{RAW, RAW_WITH_BITMAP, RawTarget};
pub use target::Qcow2Target;
