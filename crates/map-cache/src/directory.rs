//! L1 index -> node -> slot, as arrays.

use sync::{ArcSwapOption, OnceLock};

use crate::slice::{Slice, SliceKey};

/// L1 indices whose nodes are allocated together: an L1 of the largest size (4 Mi entries) then
/// costs 1 MiB before the first table is used.
const NODES_PER_CHUNK: usize = 64;

type Slot = ArcSwapOption<Slice>;
type Node = OnceLock<Box<[Slot]>>;
type Chunk = OnceLock<Box<[Node; NODES_PER_CHUNK]>>;

/// Where every slice is, if it is in memory.
#[derive(Debug)]
pub(crate) struct Directory {
    chunks: Box<[Chunk]>,
    slices_per_table: usize,
}

impl Directory {
    pub(crate) fn new(l1_entries: usize, slices_per_table: usize) -> Self {
        let chunks = (0..l1_entries.div_ceil(NODES_PER_CHUNK)).map(|_| Chunk::new()).collect();
        Self { chunks, slices_per_table }
    }

    /// The slot of `key`, if its table has ever been used.
    #[inline]
    pub(crate) fn slot(&self, key: SliceKey) -> Option<&Slot> {
        let l1_index = key.l1_index as usize;
        let chunk = self.chunks.get(l1_index / NODES_PER_CHUNK)?.get()?;
        chunk.get(l1_index % NODES_PER_CHUNK)?.get()?.get(key.slice as usize)
    }

    /// The slot of `key`, made if need be; `None` if the key lies outside the directory.
    pub(crate) fn slot_or_new(&self, key: SliceKey) -> Option<&Slot> {
        let l1_index = key.l1_index as usize;
        let chunk = self.chunks.get(l1_index / NODES_PER_CHUNK)?;
        let nodes = chunk.get_or_init(|| Box::new(std::array::from_fn(|_| Node::new())));
        let node = nodes.get(l1_index % NODES_PER_CHUNK)?;
        let slots = node.get_or_init(|| (0..self.slices_per_table).map(|_| Slot::empty()).collect());
        slots.get(key.slice as usize)
    }
}
