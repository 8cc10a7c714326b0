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

/// How many times as much as continuous integration runs: `COWHAND_SIM_SCALE`, a number, 1 if not set.
pub fn scale() -> u64 {
    let text = std::env::var("COWHAND_SIM_SCALE").unwrap_or_else(|_| "1".into());
    text.parse().unwrap_or_else(|error| panic!("COWHAND_SIM_SCALE is `{text}`: {error}"))
}
