//! L1 index -> node -> slot, as arrays.

use sync::{ArcSwapOption, OnceLock};

use crate::slice::{Slice, SliceKey};

/// L1 indices whose nodes are allocated together.
const NODES_PER_CHUNK: usize = 64;

/// Chunks that are allocated together.
const CHUNKS_PER_REGION: usize = 1024;

/// Regions for an L1 table of the largest size (4 Mi entries): every index has its place from the start, so
/// that a disk can grow while it is read. Empty they cost 1 KiB, and 16 KiB each once used.
const REGIONS: usize = 64;

type Slot = ArcSwapOption<Slice>;
type Node = OnceLock<Box<[Slot]>>;
type Chunk = OnceLock<Box<[Node; NODES_PER_CHUNK]>>;
type Region = OnceLock<Box<[Chunk]>>;

/// Where every slice is, if it is in memory.
#[derive(Debug)]
pub(crate) struct Directory {
    regions: [Region; REGIONS],
    slices_per_table: usize,
}

impl Directory {
    pub(crate) fn new(slices_per_table: usize) -> Self {
        Self { regions: std::array::from_fn(|_| Region::new()), slices_per_table }
    }

    /// The slot of `key`, if its table has ever been used.
    #[inline]
    pub(crate) fn slot(&self, key: SliceKey) -> Option<&Slot> {
        let l1_index = key.l1_index as usize;
        let region = self.regions.get(l1_index / (NODES_PER_CHUNK * CHUNKS_PER_REGION))?.get()?;
        let chunk = region.get(l1_index / NODES_PER_CHUNK % CHUNKS_PER_REGION)?.get()?;
        chunk.get(l1_index % NODES_PER_CHUNK)?.get()?.get(key.slice as usize)
    }

    /// The slot of `key`, made if need be; `None` if the key lies outside the directory.
    pub(crate) fn slot_or_new(&self, key: SliceKey) -> Option<&Slot> {
        let l1_index = key.l1_index as usize;
        let region = self.regions.get(l1_index / (NODES_PER_CHUNK * CHUNKS_PER_REGION))?;
        let chunks = region.get_or_init(|| (0..CHUNKS_PER_REGION).map(|_| Chunk::new()).collect());
        let chunk = chunks.get(l1_index / NODES_PER_CHUNK % CHUNKS_PER_REGION)?;
        let nodes = chunk.get_or_init(|| Box::new(std::array::from_fn(|_| Node::new())));
        let node = nodes.get(l1_index % NODES_PER_CHUNK)?;
        let slots = node.get_or_init(|| (0..self.slices_per_table).map(|_| Slot::empty()).collect());
        slots.get(key.slice as usize)
    }
}
