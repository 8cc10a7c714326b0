//! Clusters of the file: which are counted, which are free, and what is on its way from one to the other.

mod allocate;
mod fill;
mod free;
mod growth;
mod room;

use std::sync::Arc;

use map_cache::{Budget, Charge};
use sync::{AsyncMutex, Mutex};

use crate::allocator::Allocator;
use crate::free::Frees;
use crate::refcount::Refcounts;
use crate::reserve::Reserve;
use crate::room::Room;
pub(crate) use growth::Growth;

/// The clusters of one image's file.
///
/// Law: a cluster is in one place only. In use, its refcount is not 0; free, it is 0, and the allocator has it or a scan finds it;
/// counted ahead, the reserve has it; given up, it is among the frees until the file does not lead to it and the requests
/// that might use it have left.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) refcounts: Refcounts,
    pub(crate) allocator: Mutex<Allocator>,
    /// What the allocator takes of the memory for all caches, in bytes.
    pub(crate) allocator_charge: Mutex<Option<(u64, Charge)>>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) reserve: Reserve,
    pub(crate) growth: Growth,
    pub(crate) room: Room,
    /// Held while a refcount block is made.
    pub(crate) making_blocks: AsyncMutex<()>,
    pub(crate) frees: Frees,
}
