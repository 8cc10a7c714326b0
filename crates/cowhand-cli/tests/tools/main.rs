//! The built binary beside QEMU's tools.

#![expect(clippy::unwrap_used, reason = "tests")]

mod amend;
mod ask;
mod before_luks;
mod bitmap;
mod cache;
mod check;
mod checkpoint;
mod commit;
mod compact;
mod compare;
mod compat;
mod convert;
mod create;
mod dd;
#[path = "../../../../tests/src/default_signals.rs"]
mod default_signals;
mod encrypted;
mod faults;
mod flatten;
mod hints;
mod info;
mod io;
mod key_memory;
mod keyring;
mod luks;
mod luks_files;
mod luks_keys;
mod manual;
mod map;
mod measure;
mod nbd;
mod peer;
mod pipe;
mod qcow1;
mod rebase;
mod replaced;
mod serve;
mod show;
mod shown_names;
mod snapshot;
mod throttle;
mod usage;
mod verify;
mod whole_images;
mod words;
