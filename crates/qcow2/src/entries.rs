//! Changing the map: L2 tables that may be written, and their entries.

use std::sync::Arc;

use block::Blame;
use map_cache::{Load, Modify, Outcome, SliceKey};
use qcow2_layout::{Cluster, EntryError, HostOffset, L1Entry, L2Entry};
use storage::{IoBuf, IoBytes, IoVec};

use crate::Error;
use crate::allocator::Run;
use crate::deliberate::{self, Bug};
use crate::image::Inner;
use crate::overlap::Section;
use crate::table_io::is_in_file;
use crate::waiting::Needs;

impl Inner {
    /// Replaces the entries of consecutive clusters from `guest` on, all in one L2 table that may be
    /// written ([`Inner::table_for_writing`]). In memory only; never half of them, unless it fails. They
    /// reach the medium behind a barrier.
    pub(crate) async fn set_entries(self: &Arc<Self>, guest: u64, entries: &[L2Entry]) -> Result<(), Error> {
        self.set_entries_that_need(guest, entries, Needs::Barrier).await
    }

    /// The same; they reach the medium when what they need is there.
    pub(crate) async fn set_entries_that_need(
        self: &Arc<Self>,
        guest: u64,
        entries: &[L2Entry],
        needs: Needs,
    ) -> Result<(), Error> {
        self.table_for_writing(guest).await?;
        self.put_entries(guest, entries, needs).await
    }

    /// The same for a table that may be written.
    pub(crate) async fn put_entries(
        &self,
        guest: u64,
        entries: &[L2Entry],
        needs: Needs,
    ) -> Result<(), Error> {
        let mut done = 0;
        while let Some(rest) = entries.get(done..).filter(|rest| !rest.is_empty()) {
            let at = guest + ((done as u64) << self.medium.geometry.cluster_bits);
            let in_slice = (self.map.shape.slice_end(at) - at).div_ceil(self.medium.geometry.cluster_size());
            let part = &rest[..rest.len().min(in_slice as usize)];
            self.set_in_slice(self.map.shape.key(at), self.map.shape.index(at), part, needs).await?;
            done += part.len();
        }
        Ok(())
    }

    async fn set_in_slice(
        &self,
        key: SliceKey,
        first: usize,
        entries: &[L2Entry],
        needs: Needs,
    ) -> Result<(), Error> {
        self.modify_slice(key, needs, |slice| {
            (first..).zip(entries).for_each(|(index, entry)| self.put(slice, index, entry));
        })
        .await
    }

    /// Makes `entry` the one at `index` of a slice.
    fn put(&self, slice: &mut Modify<'_>, index: usize, entry: &L2Entry) {
        let width = self.map.shape.entry_words();
        for (at, word) in entry.encode(&self.medium.geometry).into_iter().take(width).enumerate() {
            slice.set_word(index * width + at, word);
        }
    }

    /// Says that the subclusters of `mask` of the cluster at `guest` are in use at the cluster's place, which
    /// it has. Others may do the same at the same time: each changes no bits but its own.
    pub(crate) async fn set_in_use(
        self: &Arc<Self>,
        guest: u64,
        mask: u32,
        needs: Needs,
    ) -> Result<(), Error> {
        self.table_for_writing(guest).await?;
        let width = self.map.shape.entry_words();
        let index = self.map.shape.index(guest);
        let mut decoded = Ok(());
        self.modify_slice(self.map.shape.key(guest), needs, |slice| {
            let word = |at: usize| if at < width { slice.word(index * width + at) } else { 0 };
            decoded = L2Entry::decode_at([word(0), word(1)], guest, &self.medium.geometry).map(|entry| {
                let L2Entry::Standard(old) = entry else { return };
                debug_assert!(old.host.is_some(), "the place of an owned cluster went away");
                let new = Cluster { alloc: old.alloc | mask, zero: old.zero & !mask, ..old };
                self.put(slice, index, &L2Entry::Standard(new));
            });
        })
        .await?;
        self.medium.noticing_corruption(decoded.map_err(|error| bad_entry(&self.medium.blame, guest, &error)))
    }

    /// Changes a slice, which is loaded if it is not there. It reaches the medium when what it needs is there.
    async fn modify_slice(
        &self,
        key: SliceKey,
        needs: Needs,
        mut modify: impl FnMut(&mut Modify<'_>),
    ) -> Result<(), Error> {
        if needs == Needs::Barrier {
            self.map.waiting.slice(key);
        }
        loop {
            match self.map.cache.modify(key, &mut modify) {
                Outcome::Modified => return Ok(()),
                Outcome::Gone => self.load(key).await?,
            }
        }
    }

    /// Makes sure that the L2 table that maps `guest` exists, belongs to the active L1 table alone, and has its room in the
    /// file system.
    pub(crate) async fn table_for_writing(self: &Arc<Self>, guest: u64) -> Result<(), Error> {
        let index = self.medium.geometry.l1_index(guest);
        let entry = self.l1_entry(index, guest)?;
        if entry.copied && self.space.room.has_table(index) {
            return Ok(());
        }
        let _owned = self.map.tables.own(index, index + 1).await;
        let old = self.l1_entry(index, guest)?;
        if let (true, Some(at)) = (old.copied, old.table) {
            return self.space.take_room_of_table(&self.medium, index, at.0).await;
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
            self.keep_empty_slice(guest);
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
            self.space.free_cluster(&self.medium, old.0, self.discards().pass_discard_other);
        }
        Ok(())
    }

    /// Whether anybody else leads to this table: a snapshot. Asked before anything changes.
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

    /// Brings the slice that maps `guest` into memory without reading it: its table is about to be made,
    /// with nothing allocated. Nobody else can be loading it yet.
    fn keep_empty_slice(&self, guest: u64) {
        let key = self.map.shape.key(guest);
        if let Load::Lead(ticket) = self.map.cache.load(key) {
            self.map.cache.insert_loaded(ticket, std::iter::repeat_n(0, self.map.shape.slice_bytes() / 8));
        }
    }

    /// All entries of the L2 table at `at`, as the file has them.
    pub(crate) async fn read_table(&self, at: HostOffset) -> Result<Vec<L2Entry>, Error> {
        let bytes = self.read_table_bytes(at).await?;
        let width = (self.medium.geometry.l2_entry_bytes() / 8) as usize;
        let (words, _) = bytes.as_chunks::<8>();
        let decoded = words.chunks(width).map(|entry| {
            let word = |at: usize| entry.get(at).map_or(0, |word| u64::from_be_bytes(*word));
            L2Entry::decode([word(0), word(1)], &self.medium.geometry)
        });
        let entries: Result<Vec<_>, _> = decoded.collect();
        let entries =
            entries.map_err(|error| self.medium.blame.corrupt(format!("the L2 table at {at}: {error}")));
        self.medium.noticing_corruption(entries)
    }

    async fn read_table_bytes(&self, at: HostOffset) -> Result<IoBuf, Error> {
        let size = self.medium.geometry.cluster_size();
        if !is_in_file(&*self.medium.file, size, at.0, size) {
            let detail = format!(
                "an L2 table lies at {at}, past the end of the file ({:#x})",
                self.medium.file.length()
            );
            return self.medium.noticing_corruption(Err(self.medium.blame.corrupt(detail)));
        }
        let (result, bytes) =
            self.medium.file.read(at.0, IoBuf::uninit(1 << self.medium.geometry.cluster_bits)).await;
        result.map_err(self.medium.blame.io("reading an L2 table"))?;
        Ok(bytes)
    }

    pub(crate) fn l1_entry(&self, index: u64, guest: u64) -> Result<L1Entry, Error> {
        let entry = self
            .map
            .l1
            .get(index, &self.medium.geometry)
            .map_err(|error| bad_entry(&self.medium.blame, guest, &error));
        self.medium.noticing_corruption(entry)
    }

    /// Writes the whole new table: what the shared one holds, or nothing allocated. It is in the file
    /// before L1 leads to it in memory, so a commit's first barrier covers it.
    async fn fill_table(&self, offset: u64, shared: Option<HostOffset>) -> Result<(), Error> {
        let len = 1 << self.medium.geometry.cluster_bits;
        let bytes = match shared {
            None => IoBytes::zeroed(len),
            Some(old) => self.read_table_bytes(old).await?.freeze(),
        };
        if let Some((at, other)) = self.medium.overlap.touched(offset, len as u64, None) {
            return self.medium.noticing_corruption(Err(self
                .medium
                .blame
                .corrupt(format!("a new L2 table at {offset:#x} would overwrite {other} at {at:#x}"))));
        }
        self.medium
            .file
            .write(offset, IoVec::from(bytes))
            .await
            .map_err(self.medium.blame.io("writing an L2 table"))
    }
}

/// The map entry of `guest` makes no sense.
pub(crate) fn bad_entry(blame: &Blame, guest: u64, error: &EntryError) -> Error {
    blame.corrupt(format!("the map entry of guest offset {guest:#x}: {error}"))
}
