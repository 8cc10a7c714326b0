//! Room in the file system for the metadata that a commit will write.
//!
//! A write is answered when its data is in the file. Its L2 entry, L1 entry and refcounts are written by a later
//! commit, and where the file has a hole there the commit needs room: on a full device every flush would fail, and
//! what was acknowledged be lost. So room is taken before anything changes in a table: once for each L2 table, refcount
//! block and page of the two upper tables, remembered for as long as the image is open. A new structure takes its
//! room when it is made.

use std::ops::Range;

use sync::{AsyncMutex, Mutex};

use crate::allocator::Run;

/// Entries of the L1 table or the refcount table whose room is taken together: a page of most file systems.
pub(crate) const PAGE_ENTRIES: u64 = 512;

/// Bytes of such an entry.
pub(crate) const ENTRY_BYTES: u64 = 8;

/// A part of the metadata that has its room as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
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
    /// Held while holes are filled: where that means writing zeroes, no request may have begun to change what is there.
    pub(crate) one_at_a_time: AsyncMutex<()>,
    /// Clusters for a larger refcount table and the blocks that count it. They have their room; nothing counts
    /// them, and the allocator does not have them, until the commit that moves the table.
    aside: Mutex<Option<Aside>>,
    /// Bytes of the file that were reserved together behind all that was ever used: what is taken there for the first time has its room.
    ahead: Mutex<Range<u64>>,
}

/// Clusters that were set aside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aside {
    pub(crate) run: Run,
    /// So many of them are for the table; 0 once it has them.
    pub(crate) table: u64,
}

/// A bit for each piece: at most 4 Mi tables and 1 Mi blocks by the limits on the upper tables.
#[derive(Debug, Default)]
struct Taken {
    tables: Bits,
    l1_pages: Bits,
    blocks: Bits,
    refcount_pages: Bits,
}

impl Taken {
    fn bits(&mut self, piece: Piece) -> (&mut Bits, u64) {
        match piece {
            Piece::Table(index) => (&mut self.tables, index),
            Piece::L1Page(index) => (&mut self.l1_pages, index),
            Piece::Block(index) => (&mut self.blocks, index),
            Piece::RefcountPage(index) => (&mut self.refcount_pages, index),
        }
    }
}

impl Room {
    pub(crate) fn has(&self, piece: Piece) -> bool {
        let mut taken = self.taken.lock();
        let (bits, index) = taken.bits(piece);
        bits.get(index)
    }

    pub(crate) fn note(&self, piece: Piece) {
        let mut taken = self.taken.lock();
        let (bits, index) = taken.bits(piece);
        bits.set(index);
    }

    /// Whether the L2 table of L1 entry `index` has its room.
    pub(crate) fn has_table(&self, index: u64) -> bool {
        self.has(Piece::Table(index))
    }

    /// The L2 table of L1 entry `index` was made with its room.
    pub(crate) fn table_has_room(&self, index: u64) {
        self.note(Piece::Table(index));
    }

    /// Whether these bytes, used by nothing before, were reserved ahead.
    pub(crate) fn has_ahead(&self, bytes: &Range<u64>) -> bool {
        let ahead = self.ahead.lock();
        ahead.start <= bytes.start && bytes.end <= ahead.end
    }

    /// These bytes were reserved.
    pub(crate) fn set_ahead(&self, bytes: Range<u64>) {
        *self.ahead.lock() = bytes;
    }

    /// The file was cut: what is behind its end has no room any more.
    pub(crate) fn forget_ahead(&self) {
        self.set_ahead(0..0);
    }

    /// The image switches to another file, of which nothing is known. Gives what was set aside, if anything was.
    pub(crate) fn forget_all(&self) -> Option<Run> {
        *self.taken.lock() = Taken::default();
        self.forget_ahead();
        self.clear_aside()
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

    pub(crate) fn aside(&self) -> Option<Aside> {
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
    pub(crate) fn set_aside(&self, aside: Aside) -> Option<Run> {
        self.aside.lock().replace(aside).map(|before| before.run)
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
