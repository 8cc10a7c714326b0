//! The contract for the bytes below an image, and its drivers.
//!
//! [`Storage`] is all that an image engine sees of the world: read, write, flush, zero, discard,
//! length, limits. The contract says what a crash may leave, so that the engine's write order can
//! be reasoned about (docs/write-order.md) and simulated.

mod contract;

pub use buffer::{ALIGNMENT, IoBuf, IoBytes, IoVec};
pub use contract::{Allocation, Extent, ExtentKind, IoFuture, Limits, Storage, Zeroing};
