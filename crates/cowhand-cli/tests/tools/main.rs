//! The built binary beside QEMU's tools.

#![expect(clippy::unwrap_used, reason = "tests")]

mod cache;
mod commit;
mod compare;
mod compat;
mod convert;
mod create;
mod dd;
mod faults;
mod hints;
mod info;
mod io;
mod manual;
mod map;
mod measure;
mod nbd;
mod peer;
mod rebase;
mod serve;
mod show;
mod snapshot;
mod throttle;
mod usage;
mod words;
