//! Taking room for metadata before it changes.

use std::io::{self, ErrorKind};

use qcow2_layout::HostOffset;
use storage::{Allocation, ExtentKind};

use crate::Error;
use crate::allocator::Run;
use crate::l1::L1Table;
use crate::medium::Medium;
use crate::refcount::RefcountTable;
use crate::room::{Aside, ENTRY_BYTES, PAGE_ENTRIES, Piece};
use crate::space::Space;

/// What is reserved at a time where clusters are small, in bytes: at most so much is given to the file and not used until it is closed.
const AHEAD_BYTES: u64 = 256 << 10;

/// The largest clusters that count as small. A table of larger ones maps so much that its own system call is nothing.
const AHEAD_CLUSTER_MAX: u64 = 16 << 10;

impl Space {
    /// Takes the room of the L2 table at `at`, to which L1 entry `index` leads.
    pub(crate) async fn take_room_of_table(
        &self,
        medium: &Medium,
        index: u64,
        at: HostOffset,
    ) -> Result<(), Error> {
        self.take_room(medium, Piece::Table(index), at, medium.geometry.cluster_size()).await
    }

    /// Takes the room that L1 entry `index` needs in its table.
    pub(crate) async fn take_room_in_l1(
        &self,
        medium: &Medium,
        l1: &L1Table,
        index: u64,
    ) -> Result<(), Error> {
        let page = index / PAGE_ENTRIES;
        let first = page * PAGE_ENTRIES;
        let len = (l1.len() as u64).saturating_sub(first).min(PAGE_ENTRIES) * ENTRY_BYTES;
        let at = HostOffset(l1.offset() + first * ENTRY_BYTES);
        self.take_room(medium, Piece::L1Page(page), at, len).await
    }

    /// Takes the room of refcount block `index`, if there is such a block.
    pub(crate) async fn take_room_of_block(&self, medium: &Medium, index: u64) -> Result<(), Error> {
        if self.room.has(Piece::Block(index)) {
            return Ok(());
        }
        match self.refcounts.table_entry(index)? {
            Some(at) => self.take_room(medium, Piece::Block(index), at, medium.geometry.cluster_size()).await,
            None => Ok(()),
        }
    }

    /// Takes the room that the refcount table needs to lead to block `index`: in the table as it is, or for a larger one.
    pub(crate) async fn take_room_in_refcount_table(&self, medium: &Medium, index: u64) -> Result<(), Error> {
        let (at, capacity) = self.refcounts.table.read().place();
        if !RefcountTable::may_lead_to(index) {
            // The request that enters the block fails.
            return Ok(());
        }
        if index >= capacity {
            return self.set_table_aside(medium, index).await;
        }
        let page = index / PAGE_ENTRIES;
        let first = page * PAGE_ENTRIES;
        let len = (capacity - first).min(PAGE_ENTRIES) * ENTRY_BYTES;
        let at = HostOffset(at + first * ENTRY_BYTES);
        self.take_room(medium, Piece::RefcountPage(page), at, len).await
    }

    /// Clusters for a refcount table that leads to block `index`, and for the blocks that count them.
    async fn set_table_aside(&self, medium: &Medium, index: u64) -> Result<(), Error> {
        let lead_to = |table: u64| (table << medium.geometry.cluster_bits) / ENTRY_BYTES;
        if let Some(Aside { run, table }) = self.room.aside()
            && lead_to(table) > index.max(self.refcounts.block_of(run.end()))
        {
            return Ok(());
        }
        // The blocks that count the run are led to as well. There is half as much again in the table, for them and for those that
        // others make until the table moves: or each of them would set aside a longer run, further behind.
        let index = index.max(self.refcounts.block_of(self.allocator.lock().frontier()));
        let table = self.refcounts.table.read().clusters_to_lead_to(index);
        // The run may begin and end inside a block, and each block may be one more to count.
        let len = table + 2 + table.div_ceil(medium.geometry.refcount_block_entries() - 1);
        let run = self
            .taken(medium, |allocator| allocator.take_fresh(len).or_else(|| allocator.take_exactly(len)))
            .await?;
        self.make_room(medium, run.end()).await;
        if let Err(error) = self.take_room_of_new(medium, &run).await {
            self.allocator.lock().give(run.clusters());
            return Err(error);
        }
        if let Some(old) = self.room.set_aside(Aside { run, table }) {
            self.allocator.lock().give(old.clusters());
        }
        Ok(())
    }

    /// Takes the room of clusters that nothing leads to yet.
    pub(crate) async fn take_room_of_new(&self, medium: &Medium, run: &Run) -> Result<(), Error> {
        let bits = medium.geometry.cluster_bits;
        let (at, len) = (HostOffset(run.start << bits), run.len << bits);
        match run.fresh {
            // Not every file system tells its holes.
            true => self.reserve_fresh(medium, at, len).await,
            false => fill_holes(medium, at, len).await,
        }
    }

    /// Reserves clusters behind all that was used before. Where clusters are small, new tables are many and a system call for each would cost more than
    /// the write it is for: a longer range is reserved then, which data that comes next fills.
    async fn reserve_fresh(&self, medium: &Medium, at: HostOffset, len: u64) -> Result<(), Error> {
        if self.room.has_ahead(&(at.0..at.0 + len)) {
            return Ok(());
        }
        let end = (at.0 + AHEAD_BYTES).min(medium.file.length());
        let is_small = medium.geometry.cluster_size() <= AHEAD_CLUSTER_MAX;
        if !is_small || end <= at.0 + len || !medium.file.capabilities().resizable {
            return reserve_range(medium, at, len).await;
        }
        match medium.file.allocate(at.0, end - at.0, Allocation::Reserve).await {
            Ok(()) => {
                self.room.set_ahead(at.0..end);
                Ok(())
            }
            // There may be room for what is wanted.
            Err(error) if is_no_room(&error) || error.kind() == ErrorKind::Unsupported => {
                reserve_range(medium, at, len).await
            }
            Err(error) => Err(medium.blame.io("reserving room for metadata")(error)),
        }
    }

    async fn take_room(&self, medium: &Medium, piece: Piece, at: HostOffset, len: u64) -> Result<(), Error> {
        if self.room.has(piece) {
            return Ok(());
        }
        let _one_at_a_time = self.room.one_at_a_time.lock().await;
        if !self.room.has(piece) {
            fill_holes(medium, at, len).await?;
            self.room.note(piece);
        }
        Ok(())
    }
}

/// Takes room for the holes in a range of the file. Where there is none what is there is overwritten in place.
async fn fill_holes(medium: &Medium, start: HostOffset, len: u64) -> Result<(), Error> {
    if !medium.file.capabilities().resizable {
        return Ok(());
    }
    let (mut at, end) = (start.0, start.0 + len);
    while at < end {
        let length = medium.file.length();
        let (len, is_hole) = match at < length {
            true => {
                let extent = medium.file.extent(at, (end - at).min(length - at)).await;
                let extent = extent.map_err(medium.blame.io("looking for holes in metadata"))?;
                (extent.len, extent.kind == ExtentKind::Hole)
            }
            false => (end - at, true),
        };
        if is_hole {
            reserve_range(medium, HostOffset(at), len).await?;
        }
        at += len;
    }
    Ok(())
}

fn is_no_room(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Takes room for a range that reads as zeroes, by writing them if need be.
async fn reserve_range(medium: &Medium, at: HostOffset, len: u64) -> Result<(), Error> {
    if !medium.file.capabilities().resizable {
        return Ok(());
    }
    let reserved = match medium.file.allocate(at.0, len, Allocation::Reserve).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            medium.file.allocate(at.0, len, Allocation::Write).await
        }
        reserved => reserved,
    };
    reserved.map_err(medium.blame.io("reserving room for metadata"))
}
