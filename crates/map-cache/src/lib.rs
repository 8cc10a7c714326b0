//! L2 slices in memory: addressing, hits, single-flight loads, eviction, dirty set.
//!
//! Pure: it decides what stays and what must be written, and does no I/O itself. A slice is found
//! by L1 index and position in its table: array steps and one atomic load, no hash, no scan, no
//! lock. Misses of different slices never wait for each other; misses of the same slice are one load.
//!
//! Words are 64-bit integers in host byte order; an entry is one word, or two with extended L2.

#![forbid(unsafe_code)]

mod cache;
mod clock;
mod counters;
mod directory;
mod loads;
mod slice;

pub use cache::{CacheLimits, Dirty, MapCache, Outcome};
pub use counters::Counters;
pub use loads::{Load, LoadTicket, Waiting};
pub use slice::{Slice, SliceKey};
