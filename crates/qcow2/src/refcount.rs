//! Refcounts: the table in memory, blocks in a cache, both written by a commit.

mod block;
mod counting;
mod table;

use std::collections::{BTreeMap, TryReserveError};
use std::sync::Arc;

use ::block::Blame;
use map_cache::{Budget, Charge};
use qcow2_layout::{Geometry, HostOffset, refcount_get};
use storage::{Hints, IoBuf, Step, Storage, about_to};
use sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use sync::{AsyncMutex, Mutex, RwLock};

use crate::cache_sizes::REFCOUNT_COUNT_MIN;
use crate::{Error, lists};
pub(crate) use block::{Block, DirtyBlock};
use counting::set;
pub(crate) use counting::{Claim, Lowered};
pub(crate) use table::{DirtyTable, RefcountTable, SavedTable, WithoutBlocks};

/// Memory that dirty blocks may take, however small the cache is: it costs barriers to write them.
const DIRTY_BYTES_MIN: usize = 1 << 20;

/// What errors say was being done.
const GROWING: &str = "growing the refcount table";

/// The file that has the refcounts, and how errors call it.
#[derive(Debug)]
struct Place {
    file: Arc<dyn Storage>,
    blame: Blame,
}

/// Refcounts of every cluster of the file.
#[derive(Debug)]
pub(crate) struct Refcounts {
    /// Another one when the image switches to another file.
    place: RwLock<Place>,
    geometry: Geometry,
    pub(crate) table: RwLock<RefcountTable>,
    blocks: Mutex<Residents>,
    blocks_max: AtomicUsize,
    /// Dirty blocks take more memory than they may.
    crowded: AtomicBool,
    budget: Arc<Budget>,
    /// Held while a block is loaded or made; both are rare.
    growing: AsyncMutex<()>,
}

impl Refcounts {
    pub(crate) fn new(
        file: Arc<dyn Storage>,
        blame: Blame,
        geometry: Geometry,
        table: RefcountTable,
        blocks_max: usize,
        budget: Arc<Budget>,
    ) -> Self {
        Self {
            place: RwLock::new(Place { file, blame }),
            geometry,
            table: RwLock::new(table),
            blocks: Mutex::default(),
            blocks_max: AtomicUsize::new(blocks_max),
            crowded: AtomicBool::new(false),
            budget,
            growing: AsyncMutex::new(()),
        }
    }

    /// The same refcounts are in the copy `file` of the image's file from now on. No request uses them meanwhile.
    pub(crate) fn go_on(&self, file: &Arc<dyn Storage>, blame: &Blame) {
        *self.place.write() = Place { file: Arc::clone(file), blame: blame.clone() };
    }

    fn file(&self) -> Arc<dyn Storage> {
        Arc::clone(&self.place.read().file)
    }

    fn blame(&self) -> Blame {
        self.place.read().blame.clone()
    }

    /// Index of the block that holds the refcount of `cluster`.
    pub(crate) fn block_of(&self, cluster: u64) -> u64 {
        cluster / self.geometry.refcount_block_entries()
    }

    /// The block at `index` of the table; `None` if there is none, so that all its refcounts are 0.
    pub(crate) async fn block(&self, index: u64) -> Result<Option<Arc<Block>>, Error> {
        if let Some(block) = self.resident(index) {
            return Ok(Some(block));
        }
        let _one_at_a_time = self.growing.lock().await;
        if let Some(block) = self.resident(index) {
            return Ok(Some(block));
        }
        let Some(offset) = self.table_entry(index)? else { return Ok(None) };
        let (file, buf) = (self.file(), IoBuf::uninit(self.cluster_bytes()));
        about_to(&*file, Step::RefblockLoad);
        let (result, bytes) = file.read(offset.0, buf, Hints::NONE).await;
        result.map_err(self.blame().io("reading a refcount block"))?;
        let block = Arc::new(Block::new(index, bytes.to_vec(), self.charge()));
        self.keep(Arc::clone(&block));
        Ok(Some(block))
    }

    fn cluster_bytes(&self) -> usize {
        1 << self.geometry.cluster_bits
    }

    fn resident(&self, index: u64) -> Option<Arc<Block>> {
        self.blocks.lock().get(index).cloned()
    }

    /// Offset of block `index`, checked against the file: a block past its end holds nothing.
    pub(crate) fn table_entry(&self, index: u64) -> Result<Option<HostOffset>, Error> {
        let entry = self.table.read().get(index, &self.geometry);
        let entry = entry.map_err(|error| self.blame().corrupt(format!("refcount table: {error}")))?;
        match entry.block {
            Some(offset) if offset.0 >= self.file().length() && self.resident(index).is_none() => {
                Err(self.blame().corrupt(format!(
                    "refcount block {index} is at {offset}, past the end of the file ({:#x})",
                    self.file().length()
                )))
            }
            block => Ok(block),
        }
    }

    /// A block's share of the memory for all caches.
    fn charge(&self) -> Charge {
        self.budget.charge(self.geometry.cluster_size())
    }

    /// Blocks in memory at most: while memory is short, no more than are needed at once.
    fn blocks_max(&self) -> usize {
        let blocks_max = self.blocks_max.load(Ordering::Relaxed);
        if self.budget.is_short(0) { blocks_max.min(REFCOUNT_COUNT_MIN as usize) } else { blocks_max }
    }

    /// Changes how many blocks are kept; what is too much leaves unless it is dirty.
    pub(crate) fn set_blocks_max(&self, blocks_max: usize) {
        self.blocks_max.store(blocks_max, Ordering::Relaxed);
        self.blocks.lock().trim(blocks_max);
    }

    fn keep(&self, block: Arc<Block>) {
        let blocks_max = self.blocks_max();
        let mut blocks = self.blocks.lock();
        blocks.trim(blocks_max.saturating_sub(1));
        blocks.insert(block);
        if blocks.len() > blocks_max.max(DIRTY_BYTES_MIN >> self.geometry.cluster_bits) {
            self.crowded.store(true, Ordering::Relaxed);
        }
    }

    /// Whether so many blocks are dirty that a commit is due which writes them, also with lazy refcounts.
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed)
    }

    /// Says that what was dirty when a commit began is in the file.
    pub(crate) fn relieve(&self) {
        self.crowded.store(false, Ordering::Relaxed);
        self.blocks.lock().try_again();
    }

    /// Drops clean blocks that were not used since the last call. Returns how many went.
    pub(crate) fn clean(&self) -> usize {
        let mut blocks = self.blocks.lock();
        let before = blocks.len();
        blocks.drop_if(|block| !block.take_used());
        before - blocks.len()
    }

    /// What [`Refcounts::restore`] goes back to. Nothing may be dirty.
    pub(crate) fn save(&self) -> Result<SavedTable, TryReserveError> {
        debug_assert!(!self.is_dirty(), "what is dirty would be lost");
        self.table.read().save()
    }

    /// Forgets every change since `before`. Gives the places of blocks that the table does not lead to any
    /// more.
    pub(crate) fn restore(&self, before: SavedTable) -> Vec<HostOffset> {
        let mut table = self.table.write();
        self.blocks.lock().clear();
        table.restore(before, &self.geometry)
    }

    /// Blocks that differ from the file's and still belong where the file has them.
    pub(crate) fn changed_in_place(&self, before: &SavedTable) -> Vec<u64> {
        let table = self.table.read();
        let blocks = self.blocks.lock();
        let dirty = blocks.iter().filter(|block| block.is_dirty()).map(|block| block.index());
        dirty.filter(|&index| table.is_as_in(before, index)).collect()
    }

    /// Gives block `index` another place; gives the old one.
    pub(crate) fn relocate(&self, index: u64, to: HostOffset) -> Result<Option<HostOffset>, Error> {
        let old = self.table_entry(index)?;
        self.table.write().set(index, to).map_err(self.blame().io(GROWING))?;
        Ok(old)
    }

    /// The last cluster that block `index` counts; `None` if it counts nothing but itself.
    pub(crate) async fn last_in_use(&self, index: u64) -> Result<Option<u64>, Error> {
        let Some(block) = self.block(index).await? else { return Ok(None) };
        let entries = self.geometry.refcount_block_entries();
        let own = self.table_entry(index)?.map(|at| at.0 >> self.geometry.cluster_bits);
        let order = self.geometry.refcount_order;
        let used = |bytes: &[u8]| -> Vec<u64> {
            let used = (0..entries).rev().filter(|&at| refcount_get(bytes, at, order) != Some(0));
            used.map(|at| index * entries + at).take(2).collect()
        };
        Ok(match *block.read(used) {
            [last] if Some(last) == own => None,
            [last, ..] => Some(last),
            [] => None,
        })
    }

    /// The indices of the blocks that count clusters before `end`, and none of them is in use but that of the block itself; in ascending
    /// order. Reads all these blocks.
    pub(crate) async fn empty_blocks_before(&self, end: u64) -> Result<Vec<u64>, Error> {
        let mut empty = Vec::new();
        for index in 0..end.div_ceil(self.geometry.refcount_block_entries()) {
            if self.table_entry(index)?.is_some() && self.last_in_use(index).await?.is_none() {
                lists::push(&mut empty, index)
                    .map_err(|_| self.blame().no_memory("the list of refcount blocks"))?;
            }
        }
        Ok(empty)
    }

    /// What the file is to have so that it leads to no block that counts only clusters from `end` on, and to none of those in `empty`.
    /// Nothing may be dirty.
    pub(crate) fn without_blocks_behind(&self, end: u64, empty: &[u64]) -> Result<WithoutBlocks, Error> {
        let first = end.div_ceil(self.geometry.refcount_block_entries());
        let without = self.table.write().without_blocks_from(first, empty, &self.geometry);
        without.map_err(|_| self.blame().no_memory("the list of refcount blocks"))
    }

    /// The file does not lead to these blocks any more.
    pub(crate) fn forget_blocks(&self, without: &WithoutBlocks) {
        let mut table = self.table.write();
        table.forget(without);
        let mut blocks = self.blocks.lock();
        without.blocks.iter().for_each(|(index, _)| blocks.remove(*index));
    }

    /// Makes the block `index` in the cluster `at`, with all refcounts 0 except, where the block
    /// covers its own cluster, that one. In memory; the table entry is dirty from then on.
    pub(crate) async fn add_block(&self, index: u64, at: HostOffset) -> Result<(), Error> {
        let _one_at_a_time = self.growing.lock().await;
        let entries = self.geometry.refcount_block_entries();
        let mut bytes = vec![0; self.cluster_bytes()];
        let own = at.0 >> self.geometry.cluster_bits;
        if self.block_of(own) == index {
            set(&mut bytes, own % entries, self.geometry.refcount_order, 1);
        }
        // Both under the table's lock: a commit that copies the table and then the dirty blocks has every
        // block that the copy leads to.
        let mut table = self.table.write();
        table.set(index, at).map_err(self.blame().io(GROWING))?;
        self.keep(Arc::new(Block::new_dirty(index, bytes, self.charge())));
        Ok(())
    }

    /// Copies every dirty block, with its place in the file, lowest index first. Copy the table
    /// before: a table must not lead to a block that is not in the file.
    pub(crate) fn copy_dirty(&self) -> Result<Vec<(HostOffset, DirtyBlock)>, Error> {
        let dirty: Vec<_> = self.blocks.lock().iter().filter_map(Block::copy_if_dirty).collect();
        let placed = dirty.into_iter().map(|block| {
            let offset =
                self.table.read().get(block.index(), &self.geometry).ok().and_then(|entry| entry.block);
            match offset {
                Some(offset) => Ok((offset, block)),
                None => Err(self.blame().corrupt(format!("refcount block {} lost its place", block.index()))),
            }
        });
        placed.collect()
    }

    /// Whether any block or the table differs from the file.
    pub(crate) fn is_dirty(&self) -> bool {
        self.table.read().is_dirty() || self.blocks.lock().iter().any(|block| block.is_dirty())
    }

    /// Bytes of memory that the blocks take.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.blocks.lock().len() as u64 * self.geometry.cluster_size()
    }
}

/// Refcount blocks in memory, by index.
#[derive(Debug, Default)]
struct Residents {
    /// Ordered, so that the same requests always evict the same blocks.
    blocks: BTreeMap<u64, Arc<Block>>,
    /// With so many blocks or fewer, it was tried before and no more could leave: the others are dirty.
    stuck: usize,
}

impl Residents {
    fn get(&self, index: u64) -> Option<&Arc<Block>> {
        self.blocks.get(&index)
    }

    fn insert(&mut self, block: Arc<Block>) {
        self.blocks.insert(block.index(), block);
    }

    fn remove(&mut self, index: u64) {
        self.blocks.remove(&index);
    }

    fn clear(&mut self) {
        *self = Self::default();
    }

    fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Lowest index first.
    fn iter(&self) -> impl Iterator<Item = &Arc<Block>> {
        self.blocks.values()
    }

    /// Drops clean blocks for which `leaves` holds.
    fn drop_if(&mut self, leaves: impl Fn(&Block) -> bool) {
        self.blocks.retain(|_, block| !leaves(block) || !block.evict());
    }

    /// Lets clean blocks leave until no more than `blocks_max` are there, or only dirty ones are. In the latter
    /// case nothing is tried before there are a quarter more, or looking at each of them for every block that
    /// comes would take the square of their number.
    fn trim(&mut self, blocks_max: usize) {
        if self.len() <= self.stuck {
            return;
        }
        self.stuck = 0;
        while self.len() > blocks_max {
            let Some(victim) = self.blocks.values().find(|block| block.evict()) else {
                self.stuck = self.len() + self.len() / 4;
                return;
            };
            let index = victim.index();
            self.blocks.remove(&index);
        }
    }

    /// Dirty blocks became clean: they may leave.
    fn try_again(&mut self) {
        self.stuck = 0;
    }
}
