//! The built binary beside QEMU's tools.

#![expect(clippy::unwrap_used, reason = "tests")]

mod info;
mod peer;
mod usage;
