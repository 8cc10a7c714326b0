//! Changing the map: L2 tables that may be written, and their entries.

use std::sync::Arc;

use qcow2_layout::{HostOffset, L1Entry, L2Entry};
use storage::{Hints, IoBytes, IoVec, Step};

use crate::Error;
use crate::allocator::Run;
use crate::deliberate::{self, Bug};
use crate::image::Inner;
use crate::overlap::Section;
use crate::waiting::Needs;

impl Inner {
    /// Replaces the entries of consecutive clusters from `guest` on, all in one L2 table that may be
    /// written ([`Inner::table_for_writing`]). In memory only; never half of them, unless it fails. They
    /// reach the file behind a barrier.
    pub(crate) async fn set_entries(self: &Arc<Self>, guest: u64, entries: &[L2Entry]) -> Result<(), Error> {
        self.set_entries_that_need(guest, entries, Needs::Barrier).await
    }

    /// The same; they reach the file when what they need is there.
    pub(crate) async fn set_entries_that_need(
        self: &Arc<Self>,
        guest: u64,
        entries: &[L2Entry],
        needs: Needs,
    ) -> Result<(), Error> {
        self.table_for_writing(guest).await?;
        self.map.put_entries(&self.medium, guest, entries, needs).await
    }

    /// Says that the subclusters of `mask` of the cluster at `guest` are in use at the cluster's place, which
    /// it has.
    pub(crate) async fn set_in_use(
        self: &Arc<Self>,
        guest: u64,
        mask: u32,
        needs: Needs,
    ) -> Result<(), Error> {
        self.table_for_writing(guest).await?;
        self.map.set_in_use(&self.medium, guest, mask, needs).await
    }

    /// Makes sure that the L2 table that maps `guest` exists, belongs to the active L1 table alone, and has its room in the
    /// file system.
    pub(crate) async fn table_for_writing(self: &Arc<Self>, guest: u64) -> Result<(), Error> {
        let index = self.medium.geometry.l1_index(guest);
        let entry = self.map.l1_entry(&self.medium, guest)?;
        if entry.copied && self.space.room.has_table(index) {
            return Ok(());
        }
        let _owned = self.map.tables.own(index..index + 1).await;
        let old = self.map.l1_entry(&self.medium, guest)?;
        if let (true, Some(at)) = (old.copied, old.table) {
            return self.space.take_room_of_table(&self.medium, index, at).await;
        }
        let shared = self.is_shared(old.table).await?;
        self.space.take_room_in_l1(&self.medium, &self.map.l1, index).await?;
        let run = self.space.allocate(&self.medium, 1).await?;
        let offset = run.start << self.medium.geometry.cluster_bits;
        let is_empty = old.table.is_none() && self.reads_as_zeroes(&run);
        let made = match is_empty {
            true => self.space.take_room_of_new(&self.medium, &run).await,
            false => self.fill_table(offset, old.table).await,
        };
        if let Err(error) = made {
            self.space.give_back(&self.medium, run).await;
            return Err(error);
        }
        if is_empty {
            self.map.keep_empty_slice(guest);
        }
        self.space.room.table_has_room(index);
        self.medium.overlap.add(offset, self.medium.geometry.cluster_size(), Section::ActiveL2);
        let may_go_ahead = is_empty && run.settled || deliberate::has(Bug::TableNotAwaited);
        if !may_go_ahead {
            self.map.waiting.l1();
        }
        // Below 2^22 by the limit on L1 tables.
        self.map.l1.set(index as usize, L1Entry { table: Some(HostOffset(offset)), copied: true });
        if let Some(old) = old.table {
            self.table_left(old, shared);
            self.space.free_cluster(&self.medium, old, self.discards().pass_discard_other);
        }
        Ok(())
    }

    /// Whether a snapshot leads to this table too. Asked before anything changes.
    pub(crate) async fn is_shared(&self, table: Option<HostOffset>) -> Result<bool, Error> {
        match table {
            Some(at) => Ok(self.space.refcounts.get(at.0 >> self.medium.geometry.cluster_bits).await? > 1),
            None => Ok(false),
        }
    }

    /// The active L1 table does not lead to the table at `at` any more; a snapshot does if it is `shared`.
    pub(crate) fn table_left(&self, at: HostOffset, shared: bool) {
        match shared {
            true => self.medium.overlap.leave_to_snapshot(at.0),
            false => self.medium.overlap.remove(at.0, Section::ActiveL2),
        }
    }

    /// Whether the clusters are a hole inside the file.
    fn reads_as_zeroes(&self, run: &Run) -> bool {
        run.fresh && run.end() <= self.medium.file.length() >> self.medium.geometry.cluster_bits
    }

    /// Writes the whole new table: what the shared one holds, or nothing allocated. It is in the file
    /// before L1 leads to it in memory, so a commit's first barrier covers it.
    async fn fill_table(&self, offset: u64, shared: Option<HostOffset>) -> Result<(), Error> {
        let len = 1 << self.medium.geometry.cluster_bits;
        let bytes = match shared {
            None => IoBytes::zeroed(len),
            Some(old) => self.map.read_table_bytes(&self.medium, old).await?.freeze(),
        };
        if let Some((at, other)) = self.medium.overlap.touched(offset, len as u64, None) {
            let what = format!("a new L2 table at {offset:#x} would overwrite {other} at {at:#x}");
            return self.medium.overlapping(offset, len as u64, what);
        }
        self.medium.about_to(Step::L2AllocWrite);
        self.medium
            .file
            .write(offset, IoVec::from(bytes), Hints::NONE)
            .await
            .map_err(self.medium.blame.io("writing an L2 table"))
    }
}
