//! The contract for a guest's view of bytes, raw disks, and filters.
//!
//! [`Block`] is all that a door, a job, a filter or an image above sees of a disk: size, capabilities, requests, status, close.
//! A qcow2 image is a block, and so are [`Raw`] bytes and every filter over another block ([`Block::over`]). What only one kind has (snapshots of a qcow2 image,
//! the window of a raw disk) is not in the contract: callers that need it ask for the kind (`downcast_ref` of `dyn Block`).
//!
//! [`storage::Storage`] is the other contract: the bytes of a medium, below a block.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod contract;
mod error;
mod moving;
pub mod pace;
mod raw;
mod status;
mod stored;

pub use contract::{Block, BlockFuture, Capabilities, ReadKind, ZeroOptions, layers, no_memory, not_copied};
pub use error::{Blame, Error, ErrorKind};
pub use moving::{FindBlock, MovingBlock};
pub use raw::{Raw, SECTOR_BYTES, START_BYTES, StartGuard, in_file};
pub use status::BlockStatus;
pub use storage::{Hints, Step};
pub use stored::{Stored, Takes};
