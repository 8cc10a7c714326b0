//! The built binary beside QEMU's tools.

#![expect(clippy::unwrap_used, reason = "tests")]

mod cache;
mod compare;
mod create;
mod hints;
mod info;
mod map;
mod measure;
mod peer;
mod serve;
mod snapshot;
mod throttle;
mod usage;
mod words;
