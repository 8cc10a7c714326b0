//! L1 index -> node -> slot, as arrays that grow with the table and never move.

use sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sync::{Arc, ArcSwapOption, OnceLock};

use crate::footprint::allocation;
use crate::slice::{Slice, SliceKey};

/// log2 of the L1 indices whose nodes are allocated together.
const CHUNK_BITS: u32 = 4;
const NODES_PER_CHUNK: usize = 1 << CHUNK_BITS;

/// log2 of the largest L1 table there is: 32 MiB.
const L1_BITS_MAX: u32 = 22;

/// Level `k` has 2^k chunks, behind those of all levels below.
const LEVELS: usize = (L1_BITS_MAX - CHUNK_BITS + 1) as usize;

/// log2 of the most slices of a table, plus 1: 2 MiB in slices of 512 bytes.
const SHAPES: usize = 13;

pub(crate) type Slot = ArcSwapOption<Slice>;
type Node = OnceLock<Box<[Slot]>>;
type Chunk = OnceLock<Box<[Node; NODES_PER_CHUNK]>>;

/// Where every slice is, if it is in memory.
#[derive(Debug)]
pub(crate) struct Directory {
    /// By log2 of the slices of a table: tables can be cut anew at runtime.
    shapes: [OnceLock<Box<Levels>>; SHAPES],
    shape: AtomicUsize,
    bytes: AtomicU64,
}

#[derive(Debug)]
struct Levels([OnceLock<Box<[Chunk]>>; LEVELS]);

/// The level of a chunk, and its place there.
#[inline]
fn place(l1_index: u32) -> (usize, usize) {
    let chunk = (l1_index >> CHUNK_BITS) as usize + 1;
    let level = chunk.ilog2() as usize;
    (level, chunk - (1 << level))
}

impl Directory {
    /// `slices_per_table` is rounded up to a power of two.
    pub(crate) fn new(slices_per_table: usize) -> Self {
        let directory = Self {
            shapes: std::array::from_fn(|_| OnceLock::new()),
            shape: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
        };
        directory.reshape(slices_per_table);
        directory
    }

    /// Cuts tables into so many slices. Whatever is in the slots so far is found no more.
    pub(crate) fn reshape(&self, slices_per_table: usize) {
        let shape = slices_per_table.next_power_of_two().ilog2() as usize;
        self.shape.store(shape.min(SHAPES - 1), Ordering::Relaxed);
    }

    /// The slot of `key`, if its table has ever been used.
    #[inline]
    pub(crate) fn slot(&self, key: SliceKey) -> Option<&Slot> {
        let (level, chunk) = place(key.l1_index);
        let levels = self.shapes.get(self.shape.load(Ordering::Relaxed))?.get()?;
        let chunk = levels.0.get(level)?.get()?.get(chunk)?.get()?;
        chunk.get(key.l1_index as usize % NODES_PER_CHUNK)?.get()?.get(key.slice as usize)
    }

    /// The slot of `key`, made if need be; `None` if no table is as large.
    pub(crate) fn slot_or_new(&self, key: SliceKey) -> Option<&Slot> {
        let (level, chunk) = place(key.l1_index);
        let shape = self.shape.load(Ordering::Relaxed);
        let levels = self.shapes.get(shape)?.get_or_init(|| {
            self.count(size_of::<Levels>());
            Box::new(Levels(std::array::from_fn(|_| OnceLock::new())))
        });
        let chunks = levels.0.get(level)?.get_or_init(|| {
            self.count(size_of::<Chunk>() << level);
            (0..1 << level).map(|_| Chunk::new()).collect()
        });
        let nodes = chunks.get(chunk)?.get_or_init(|| {
            self.count(size_of::<[Node; NODES_PER_CHUNK]>());
            Box::new(std::array::from_fn(|_| Node::new()))
        });
        let slots = nodes.get(key.l1_index as usize % NODES_PER_CHUNK)?.get_or_init(|| {
            self.count(size_of::<Slot>() << shape);
            (0..1 << shape).map(|_| Slot::empty()).collect()
        });
        slots.get(key.slice as usize)
    }

    fn count(&self, bytes: usize) {
        self.bytes.fetch_add(allocation(bytes), Ordering::Relaxed);
    }

    /// What is in memory under `key`.
    pub(crate) fn find(&self, key: SliceKey) -> Option<Arc<Slice>> {
        self.slot(key)?.load_full()
    }

    /// Memory held, in bytes.
    pub(crate) fn footprint(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
