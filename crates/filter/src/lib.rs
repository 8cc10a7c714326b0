//! Filters that users put over disks, each written against the contract of `block` alone.
//!
//! What a filter is called, which options it has and what it is put over says its driver (`catalog/src/`).

#![forbid(unsafe_code)]

mod blkverify;
mod compress;
mod copy_before_write;
mod copy_on_read;
mod quorum;
mod snapshot;
mod snapshot_access;

pub use blkverify::{Blkverify, Mismatch, on_mismatch};
pub use compress::Compress;
pub use copy_before_write::CopyBeforeWrite;
pub use copy_on_read::CopyOnRead;
pub use quorum::{Operation, Quorum, Reading, Report, Rules, What};
pub use snapshot::{OnError, Policy, Snapshot};
pub use snapshot_access::SnapshotAccess;
