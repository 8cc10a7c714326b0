//! The contract for the bytes below an image, and its drivers.
//!
//! [`Storage`] is all that an image engine sees of the world: read, write, flush, zero, discard,
//! length, capabilities. The contract says what a crash may leave, so that the engine's write order can
//! be reasoned about (docs/internals/write-order.md) and simulated.
//!
//! Drivers: [`FileStorage`] (regular files and block devices, through the page cache or O_DIRECT)
//! and [`MemoryStorage`]. [`FileLock`] keeps QEMU and us out of each other's images: an [`UnlockedFile`] becomes
//! storage under its lock ([`open_locked`]).

#![warn(missing_docs)]

mod contract;
mod file;
mod file_access;
mod flushes;
mod locks;
mod medium;
mod memory;
mod opening;
mod page_cache;
mod part;
mod range_lock;
mod reach;
mod sealed;
mod steps;

pub use ::memory::{ALIGNMENT, ForeignBytes, IoBuf, IoBytes, IoVec};
pub use contract::{Allocation, Capabilities, Extent, ExtentKind, Hints, IoFuture, Storage, Zeroing};
pub use file::{FileOptions, FileStorage, OpenError, UnlockedFile, ask_medium, is_same_description};
pub use file_access::{FileAccess, create_beside, create_private};
pub use flushes::{Flushes, SyncEnd};
pub use locks::{Conflict, FileLock, Holder, LockError, Permissions, Role};
pub use medium::{Answer, DirectRequests, Medium, OverwriteRoom};
pub use memory::MemoryStorage;
pub use opening::{LockClock, LockedOpenError, Unlocked, open_locked};
pub use page_cache::is_cached;
pub use part::part_of;
pub use range_lock::{RangeGuard, RangeLocks, RangeMode};
pub use reach::Reach;
pub use sealed::{is_layers_directory, is_sealed_layer};
pub use steps::{Step, StepWatcher, about_to};
