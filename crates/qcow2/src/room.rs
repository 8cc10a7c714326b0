//! Room in the file system for the metadata that a commit will write.
//!
//! A write is answered when its data is in the file. Its L2 entry, L1 entry and refcounts are written by a later
//! commit, and where the file has a hole there the commit needs room: on a full device every flush would fail, and
//! what was acknowledged be lost. So room is taken before anything changes in a table: once for each L2 table, refcount
//! block and page of the two upper tables, remembered for as long as the image is open. A new structure takes its
//! room when it is made.

use storage::{Allocation, ExtentKind};
use sync::{AsyncMutex, Mutex};

use crate::Error;
use crate::allocator::Run;
use crate::image::Inner;
use crate::refcount::RefcountTable;

/// Entries of the L1 table or the refcount table whose room is taken together: a page of most file systems.
const PAGE_ENTRIES: u64 = 512;

/// Bytes of such an entry.
const ENTRY_BYTES: u64 = 8;

/// A part of the metadata that has its room as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The L2 table of this L1 entry.
    Table(u64),
    /// These [`PAGE_ENTRIES`] of the L1 table.
    L1Page(u64),
    /// This refcount block.
    Block(u64),
    /// These [`PAGE_ENTRIES`] of the refcount table.
    RefcountPage(u64),
}

/// Which metadata is known to have its room.
#[derive(Debug, Default)]
pub(crate) struct Room {
    taken: Mutex<Taken>,
    /// Held while holes are filled: where that means writing zeroes, nobody may have begun to change what is there.
    one_at_a_time: AsyncMutex<()>,
    /// Clusters for a larger refcount table and the blocks that count it. They have their room; nothing counts
    /// them, and the allocator does not have them, until the commit that moves the table.
    aside: Mutex<Option<Aside>>,
}

/// Clusters that were set aside.
#[derive(Clone, Copy, Debug)]
struct Aside {
    run: Run,
    /// So many of them are for the table; 0 once it has them.
    table: u64,
}

/// A bit for each place: at most 4 Mi tables and 1 Mi blocks by the limits on the upper tables.
#[derive(Debug, Default)]
struct Taken {
    tables: Bits,
    l1_pages: Bits,
    blocks: Bits,
    refcount_pages: Bits,
}

impl Taken {
    fn bits(&mut self, place: Place) -> (&mut Bits, u64) {
        match place {
            Place::Table(index) => (&mut self.tables, index),
            Place::L1Page(index) => (&mut self.l1_pages, index),
            Place::Block(index) => (&mut self.blocks, index),
            Place::RefcountPage(index) => (&mut self.refcount_pages, index),
        }
    }
}

impl Room {
    fn has(&self, place: Place) -> bool {
        let mut taken = self.taken.lock();
        let (bits, index) = taken.bits(place);
        bits.get(index)
    }

    fn note(&self, place: Place) {
        let mut taken = self.taken.lock();
        let (bits, index) = taken.bits(place);
        bits.set(index);
    }

    /// Whether the L2 table of L1 entry `index` has its room.
    pub(crate) fn has_table(&self, index: u64) -> bool {
        self.has(Place::Table(index))
    }

    /// The L2 table of L1 entry `index` was made with its room.
    pub(crate) fn table_has_room(&self, index: u64) {
        self.note(Place::Table(index));
    }

    /// L1 leads to other tables from now on.
    pub(crate) fn forget_tables(&self) {
        self.taken.lock().tables = Bits::default();
    }

    /// Takes the clusters for the table.
    pub(crate) fn take_table_aside(&self) -> Option<Run> {
        let table = self.aside()?.table;
        self.take_aside(table)
    }

    /// Takes a cluster for a block that counts them.
    pub(crate) fn take_block_aside(&self) -> Option<Run> {
        self.take_aside(1)
    }

    fn take_aside(&self, len: u64) -> Option<Run> {
        let mut aside = self.aside.lock();
        let run = aside.take_if(|_| len > 0)?.run;
        if len < run.len {
            let rest = Run { start: run.start + len, len: run.len - len, ..run };
            *aside = Some(Aside { run: rest, table: 0 });
        }
        Some(Run { len: run.len.min(len), ..run })
    }

    /// What of a run of free clusters is not set aside: up to two runs.
    pub(crate) fn without_aside(&self, (start, len): (u64, u64)) -> impl Iterator<Item = (u64, u64)> {
        let end = start + len;
        let aside = self.aside.lock().map_or((end, end), |aside| (aside.run.start, aside.run.end()));
        let parts = [(start, end.min(aside.0)), (start.max(aside.1), end)];
        parts.into_iter().filter(|(from, to)| from < to).map(|(from, to)| (from, to - from))
    }

    fn aside(&self) -> Option<Aside> {
        *self.aside.lock()
    }

    /// The table has its clusters; gives what is left of those for blocks. What was set aside since, for a still larger table,
    /// stays.
    pub(crate) fn clear_rest_aside(&self) -> Option<Run> {
        self.aside.lock().take_if(|aside| aside.table == 0).map(|aside| aside.run)
    }

    /// Nothing is set aside any more; gives what was.
    pub(crate) fn clear_aside(&self) -> Option<Run> {
        self.aside.lock().take().map(|aside| aside.run)
    }

    /// Sets clusters aside; gives what was before.
    fn set_aside(&self, aside: Aside) -> Option<Run> {
        self.aside.lock().replace(aside).map(|before| before.run)
    }
}

impl Inner {
    /// Takes the room of the L2 table at `at`, to which L1 entry `index` leads.
    pub(crate) async fn take_room_of_table(&self, index: u64, at: u64) -> Result<(), Error> {
        self.take_room(Place::Table(index), at, self.medium.geometry.cluster_size()).await
    }

    /// Takes the room that L1 entry `index` needs in its table.
    pub(crate) async fn take_room_in_l1(&self, index: u64) -> Result<(), Error> {
        let page = index / PAGE_ENTRIES;
        let first = page * PAGE_ENTRIES;
        let len = (self.map.l1.len() as u64).saturating_sub(first).min(PAGE_ENTRIES) * ENTRY_BYTES;
        self.take_room(Place::L1Page(page), self.map.l1.offset() + first * ENTRY_BYTES, len).await
    }

    /// Takes the room of refcount block `index`, if there is such a block.
    pub(crate) async fn take_room_of_block(&self, index: u64) -> Result<(), Error> {
        if self.space.room.has(Place::Block(index)) {
            return Ok(());
        }
        match self.space.refcounts.table_entry(index)? {
            Some(at) => self.take_room(Place::Block(index), at.0, self.medium.geometry.cluster_size()).await,
            None => Ok(()),
        }
    }

    /// Takes the room that the refcount table needs to lead to block `index`: in the table as it is, or for a larger one.
    pub(crate) async fn take_room_in_refcount_table(&self, index: u64) -> Result<(), Error> {
        let (at, capacity) = self.space.refcounts.table.read().place();
        if !RefcountTable::may_lead_to(index) {
            // Whoever enters the block is told.
            return Ok(());
        }
        if index >= capacity {
            return self.set_table_aside(index).await;
        }
        let page = index / PAGE_ENTRIES;
        let first = page * PAGE_ENTRIES;
        let len = (capacity - first).min(PAGE_ENTRIES) * ENTRY_BYTES;
        self.take_room(Place::RefcountPage(page), at + first * ENTRY_BYTES, len).await
    }

    /// Clusters for a refcount table that leads to block `index`, and for the blocks that count them.
    async fn set_table_aside(&self, index: u64) -> Result<(), Error> {
        let lead_to = |table: u64| (table << self.medium.geometry.cluster_bits) / ENTRY_BYTES;
        if let Some(Aside { run, table }) = self.space.room.aside()
            && lead_to(table) > index.max(self.space.refcounts.block_of(run.end()))
        {
            return Ok(());
        }
        // The blocks that count the run are led to as well. There is half as much again in the table, for them and for those that
        // others make until the table moves: or each of them would set aside a longer run, further behind.
        let index = index.max(self.space.refcounts.block_of(self.space.allocator.lock().frontier()));
        let table = self.space.refcounts.table.read().clusters_to_lead_to(index);
        // The run may begin and end inside a block, and each block may be one more to count.
        let len = table + 2 + table.div_ceil(self.medium.geometry.refcount_block_entries() - 1);
        let run =
            self.taken(|allocator| allocator.take_fresh(len).or_else(|| allocator.take_exactly(len))).await?;
        self.make_room(run.end()).await;
        if let Err(error) = self.take_room_of_new(&run).await {
            self.space.allocator.lock().give(run.start, run.len);
            return Err(error);
        }
        if let Some(old) = self.space.room.set_aside(Aside { run, table }) {
            self.space.allocator.lock().give(old.start, old.len);
        }
        Ok(())
    }

    /// Takes the room of clusters that nothing leads to yet.
    pub(crate) async fn take_room_of_new(&self, run: &Run) -> Result<(), Error> {
        let bits = self.medium.geometry.cluster_bits;
        let (offset, len) = (run.start << bits, run.len << bits);
        match run.fresh {
            // Not every file system tells its holes.
            true => self.reserve_range(offset, len).await,
            false => self.fill_holes(offset, offset + len).await,
        }
    }

    async fn take_room(&self, place: Place, offset: u64, len: u64) -> Result<(), Error> {
        if self.space.room.has(place) {
            return Ok(());
        }
        let _one_at_a_time = self.space.room.one_at_a_time.lock().await;
        if !self.space.room.has(place) {
            self.fill_holes(offset, offset + len).await?;
            self.space.room.note(place);
        }
        Ok(())
    }

    /// Takes room for the holes in a range of the file. Where there is none what is there is overwritten in place.
    async fn fill_holes(&self, start: u64, end: u64) -> Result<(), Error> {
        if !self.medium.file.capabilities().resizable {
            return Ok(());
        }
        let mut at = start;
        while at < end {
            let length = self.medium.file.length();
            let (len, is_hole) = match at < length {
                true => {
                    let extent = self.medium.file.extent(at, (end - at).min(length - at)).await;
                    let extent = extent.map_err(self.medium.blame.io("looking for holes in metadata"))?;
                    (extent.len, extent.kind == ExtentKind::Hole)
                }
                false => (end - at, true),
            };
            if is_hole {
                self.reserve_range(at, len).await?;
            }
            at += len;
        }
        Ok(())
    }

    /// Takes room for a range that reads as zeroes, by writing them if need be.
    async fn reserve_range(&self, offset: u64, len: u64) -> Result<(), Error> {
        if !self.medium.file.capabilities().resizable {
            return Ok(());
        }
        let reserved = match self.medium.file.allocate(offset, len, Allocation::Reserve).await {
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
                self.medium.file.allocate(offset, len, Allocation::Write).await
            }
            reserved => reserved,
        };
        reserved.map_err(self.medium.blame.io("reserving room for metadata"))
    }
}

/// A set of small numbers.
#[derive(Debug, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn get(&self, index: u64) -> bool {
        let word = self.0.get((index / 64) as usize);
        word.is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    fn set(&mut self, index: u64) {
        let at = (index / 64) as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        if let Some(word) = self.0.get_mut(at) {
            *word |= 1 << (index % 64);
        }
    }
}
