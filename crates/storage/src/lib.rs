//! The contract for the bytes below an image, and its drivers.
//!
//! [`Storage`] is all that an image engine sees of the world: read, write, flush, zero, discard,
//! length, limits. The contract says what a crash may leave, so that the engine's write order can
//! be reasoned about (docs/write-order.md) and simulated.
//!
//! Drivers: [`FileStorage`] (regular files and block devices, through the page cache or O_DIRECT)
//! and [`MemoryStorage`]. [`FileLock`] keeps QEMU and us out of each other's images.

mod contract;
mod file;
mod holders;
mod locks;
mod memory;
mod range_lock;

pub use buffer::{ALIGNMENT, IoBuf, IoBytes, IoVec};
pub use contract::{Allocation, Extent, ExtentKind, IoFuture, Limits, Storage, Zeroing};
pub use file::{FileOptions, FileStorage, OpenError};
pub use holders::Holder;
pub use locks::{FileLock, LockError, Permissions, Role};
pub use memory::MemoryStorage;
