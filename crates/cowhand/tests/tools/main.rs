//! The built binary beside QEMU's tools.

#![expect(clippy::unwrap_used, reason = "tests")]

mod cache;
mod create;
mod info;
mod map;
mod peer;
mod serve;
mod snapshot;
mod throttle;
mod usage;
