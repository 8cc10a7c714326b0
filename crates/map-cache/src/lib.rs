//! L2 slices in memory: addressing, hits, single-flight loads, eviction, dirty set.
//!
//! Pure: it decides what stays and what must be written, and does no I/O itself. A slice is found
//! by L1 index and position in its table: array steps and one atomic load, no hash, no scan, no
//! lock. Misses of different slices never wait for each other; misses of the same slice are one load.
//!
//! Slices are packed as they come in ([`Packing`]) and plain while they are modified; all caches of a process
//! share a [`Budget`]. docs/internals/map-cache.md has the forms, the accounts and the measurements.
//!
//! Words are 64-bit integers in host byte order; an entry is one word, or two with extended L2.

#![forbid(unsafe_code)]

mod budget;
mod cache;
mod counters;
mod directory;
mod footprint;
mod ghosts;
mod loads;
mod model;
mod packing;
mod plain;
mod queue;
mod store;

pub use budget::{Budget, Charge};
pub use cache::{CacheLimits, Dirty, MapCache, Outcome};
pub use counters::Counters;
pub use directory::SliceKey;
pub use ghosts::{Advice, GhostHits};
pub use loads::{Load, LoadTicket, Waiting};
pub use model::Model;
pub use packing::{ColumnShape, Field, Form, Packing};
pub use plain::Modify;
pub use store::Slice;
