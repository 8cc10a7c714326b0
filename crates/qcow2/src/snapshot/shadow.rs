//! All tables of an image changed at once.
//!
//! What changes is written to new places: L2 tables, the L1 table, the snapshot table, every refcount block with
//! another count in it, the refcount table. Nothing leads there until one write of one sector of the header does.
//! A crash before that leaves the image as it was, with bytes in clusters that are free; a crash after it leaves
//! the new tables, with the places of the old ones leaked at most. So no crash sees a refcount that does not
//! go with its COPIED flag.

use std::sync::Arc;

use qcow2_layout::{
    Cluster, EntryError, HostOffset, L1Entry, L2Entry, SnapshotEntry, SnapshotError, encode_snapshots,
};
use sync::atomic::Ordering;

use crate::allocator::Run;
use crate::free::Free;
use crate::image::Inner;
use crate::overlap::Section;
use crate::pause::Pause;
use crate::refcount::{DirtyBlock, SavedTable};
use crate::table_io::encode_words;
use crate::{Error, lists};

/// What the tables are to say.
pub(super) struct Change {
    /// The active L1 table; its COPIED flags, and those of the tables it leads to, are set here.
    pub(super) l1: Vec<u64>,
    /// A snapshot keeps the place of the L1 table that was active.
    pub(super) l1_is_taken_over: bool,
    /// Size of the disk.
    pub(super) size: u64,
    /// All snapshots.
    pub(super) snapshots: Vec<SnapshotEntry>,
}

/// New tables on their way.
pub(super) struct Shadow {
    pub(super) image: Arc<Inner>,
    /// The refcount table before anything changed ...
    before: SavedTable,
    /// ... and the reserve, which is given back where there is no room otherwise.
    reserve: Vec<Run>,
    /// Clusters allocated for new tables.
    pub(super) taken: Vec<Run>,
    /// Clusters that lose their last reference when the new tables count.
    pub(super) freed: Vec<Free>,
}

/// New tables, complete on disk.
struct Complete {
    change: Change,
    l1_offset: u64,
    snapshots_offset: u64,
    snapshots_bytes: u64,
    refcount_table: Run,
    refcount_table_bytes: Vec<u8>,
    blocks: Vec<(HostOffset, DirtyBlock)>,
    inactive_l2: Vec<u64>,
}

/// What has another place afterwards.
const MOVED: [Section; 7] = [
    Section::ActiveL1,
    Section::ActiveL2,
    Section::InactiveL1,
    Section::InactiveL2,
    Section::SnapshotTable,
    Section::RefcountTable,
    Section::RefcountBlock,
];

impl Inner {
    /// Changes the refcounts in memory with `plan`, which says what the tables are to be, and makes
    /// them so. After a failure everything is as before.
    pub(super) async fn change_tables(
        self: &Arc<Self>,
        _pause: &Pause<'_>,
        plan: impl AsyncFnOnce(&mut Shadow) -> Result<Change, Error>,
    ) -> Result<(), Error> {
        let before =
            self.space.refcounts.save().map_err(|_| self.medium.blame.no_memory("the refcount table"))?;
        let reserve = self.space.reserve.save();
        let mut shadow =
            Shadow { image: Arc::clone(self), before, reserve, taken: Vec::new(), freed: Vec::new() };
        let switched = match shadow.complete(plan).await {
            Ok(complete) => shadow.switch(&complete).await.map(|()| complete),
            Err(error) => Err(error),
        };
        // The new refcount table, or the old one, is long enough.
        self.space.free_aside(self.space.room.clear_aside());
        match switched {
            Ok(complete) => {
                shadow.take_effect(complete);
                Ok(())
            }
            Err(error) => {
                shadow.roll_back();
                Err(error)
            }
        }
    }
}

impl Shadow {
    /// Writes all new tables; durable when this returns.
    async fn complete(
        &mut self,
        plan: impl AsyncFnOnce(&mut Shadow) -> Result<Change, Error>,
    ) -> Result<Complete, Error> {
        let mut change = plan(self).await?;
        let image = Arc::clone(&self.image);
        image.map.l1.reserve(change.l1.len()).map_err(|error| error.blamed(&image.medium.blame))?;
        self.set_copied_flags(&mut change.l1).await?;
        let l1_offset = self.write_l1(&change).await?;
        let (snapshots_offset, snapshots_bytes) = self.write_snapshot_table(&change.snapshots).await?;
        let inactive_l2 = image.inactive_l2_tables(&change.snapshots).await?;
        let (refcount_table, refcount_table_bytes, blocks) = self.write_refcounts().await?;
        image.medium.barrier().await?;
        Ok(Complete {
            change,
            l1_offset,
            snapshots_offset,
            snapshots_bytes,
            refcount_table,
            refcount_table_bytes,
            blocks,
            inactive_l2,
        })
    }

    /// Consecutive clusters for a new table, and their offset.
    pub(super) async fn place(&mut self, clusters: u64) -> Result<u64, Error> {
        let run = self.image.space.allocate_exactly(&self.image.medium, clusters).await?;
        self.taken.push(run);
        Ok(run.start << self.image.medium.geometry.cluster_bits)
    }

    /// Gives each L1 entry and each entry of the tables the COPIED flag that goes with the refcounts. A
    /// table in which a flag changes is written to a place of the image's own.
    async fn set_copied_flags(&mut self, l1: &mut [u64]) -> Result<(), Error> {
        let image = Arc::clone(&self.image);
        let bits = image.medium.geometry.cluster_bits;
        for word in l1 {
            let Some(table) = image.l1_entry_of(*word)?.table else { continue };
            let mut entries = image.map.read_table(&image.medium, table).await?;
            let at = table.0 >> bits;
            let mut entry = L1Entry { table: Some(table), copied: image.space.refcounts.get(at).await? == 1 };
            if image.set_copied(&mut entries).await? {
                let offset = self.place(1).await?;
                self.write_l2(offset, &entries).await?;
                image.lower_or_free(at..at + 1, &mut self.freed).await?;
                entry = L1Entry { table: Some(HostOffset(offset)), copied: true };
            }
            *word = entry.encode();
        }
        Ok(())
    }

    /// Writes an L2 table to a place of its own.
    pub(super) async fn write_l2(&self, offset: u64, entries: &[L2Entry]) -> Result<(), Error> {
        let image = &self.image;
        let words = entries.iter().flat_map(|entry| {
            entry.encode(&image.medium.geometry).into_iter().take(image.map.shape.entry_words())
        });
        let bytes: Vec<u8> = words.flat_map(u64::to_be_bytes).collect();
        image.medium.write_table(offset, &bytes, Section::ActiveL2).await
    }

    async fn write_l1(&mut self, change: &Change) -> Result<u64, Error> {
        let image = Arc::clone(&self.image);
        let bytes = change.l1.len() as u64 * 8;
        let clusters = image.medium.geometry.clusters_for(bytes);
        let old_bytes = image.map.l1.len() as u64 * 8;
        if !change.l1_is_taken_over && old_bytes > 0 {
            self.free_place(HostOffset(image.map.l1.offset()), image.medium.geometry.clusters_for(old_bytes));
        }
        if clusters == 0 {
            return Ok(image.map.l1.offset());
        }
        let offset = self.place(clusters).await?;
        let len = (clusters << image.medium.geometry.cluster_bits) as usize;
        let table = encode_words(change.l1.iter().copied(), len);
        let table = table.map_err(|_| image.medium.blame.no_memory("the L1 table"))?;
        image.medium.write_table(offset, &table, Section::ActiveL1).await?;
        Ok(offset)
    }

    /// Where the new snapshot table is, and its length.
    async fn write_snapshot_table(&mut self, snapshots: &[SnapshotEntry]) -> Result<(u64, u64), Error> {
        let image = Arc::clone(&self.image);
        let (old, old_bytes) = image.snapshot_table_place().await?;
        if old_bytes > 0 {
            self.free_place(HostOffset(old), image.medium.geometry.clusters_for(old_bytes));
        }
        if snapshots.is_empty() {
            return Ok((0, 0));
        }
        let mut bytes =
            encode_snapshots(snapshots, image.medium.geometry.version).map_err(|error| match error {
                SnapshotError::NoMemory(_) => image.medium.blame.no_memory("the snapshot table"),
                error => image.medium.blame.invalid(error.to_string()),
            })?;
        let len = bytes.len() as u64;
        let clusters = image.medium.geometry.clusters_for(len);
        let padded = (clusters << image.medium.geometry.cluster_bits) as usize;
        let room = bytes.try_reserve_exact(padded - bytes.len());
        room.map_err(|_| image.medium.blame.no_memory("the snapshot table"))?;
        bytes.resize(padded, 0);
        let offset = self.place(clusters).await?;
        image.medium.write_table(offset, &bytes, Section::SnapshotTable).await?;
        Ok((offset, len))
    }

    fn free_place(&mut self, at: HostOffset, clusters: u64) {
        let start = at.0 >> self.image.medium.geometry.cluster_bits;
        self.freed.push(Free { start, len: clusters, punch: self.image.options.pass_discard_other });
    }

    /// Gives every block with another count in it a new place, until finding places changes no more of
    /// them, and writes blocks and table.
    async fn write_refcounts(&mut self) -> Result<(Run, Vec<u8>, Vec<(HostOffset, DirtyBlock)>), Error> {
        let image = Arc::clone(&self.image);
        let bits = image.medium.geometry.cluster_bits;
        let mut home: Option<Run> = None;
        loop {
            let in_place = image.space.refcounts.changed_in_place(&self.before);
            for index in &in_place {
                let offset = self.place(1).await?;
                if let Some(old) = image.space.refcounts.relocate(*index, HostOffset(offset))? {
                    self.free_place(old, 1);
                }
            }
            let needed = image.space.refcounts.table.read().clusters_needed();
            if home.is_some_and(|home| home.len >= needed) && in_place.is_empty() {
                break;
            }
            if home.is_none_or(|home| home.len < needed) {
                if let Some(home) = home.take() {
                    self.taken.retain(|run| *run != home);
                    image.space.give_back(&image.medium, home).await;
                }
                self.place(needed).await?;
                home = self.taken.last().copied();
            }
        }
        let Some(home) = home else {
            return Err(image.medium.blame.invalid("no place for the refcount table"));
        };
        let (old, old_clusters) = self.before.place();
        self.free_place(old, old_clusters);
        let blocks = image.space.refcounts.copy_dirty()?;
        for (offset, block) in &blocks {
            image.medium.write_table(offset.0, &block.bytes, Section::RefcountBlock).await?;
        }
        let bytes = image.space.refcounts.table.read().encode_all(home.len);
        let bytes = bytes.map_err(|_| image.medium.blame.no_memory("the refcount table"))?;
        image.medium.write_table(home.start << bits, &bytes, Section::RefcountTable).await?;
        Ok((home, bytes, blocks))
    }

    /// The one write that counts.
    async fn switch(&self, complete: &Complete) -> Result<(), Error> {
        let bits = self.image.medium.geometry.cluster_bits;
        let change = &complete.change;
        self.image
            .header
            .switch_header(&self.image.medium, |header| {
                header.size = change.size;
                // Below 2^22, 2^20 and 2^16 by the limits on the tables.
                header.l1_size = change.l1.len() as u32;
                header.l1_table_offset = HostOffset(complete.l1_offset);
                header.refcount_table_offset = HostOffset(complete.refcount_table.start << bits);
                header.refcount_table_clusters = complete.refcount_table.len as u32;
                header.snapshots = change.snapshots.len() as u32;
                header.snapshots_offset = HostOffset(complete.snapshots_offset);
            })
            .await
    }

    /// Memory follows the file; what is not needed any more is freed.
    fn take_effect(self, complete: Complete) {
        let image = &self.image;
        let bits = image.medium.geometry.cluster_bits;
        let cluster = image.medium.geometry.cluster_size();
        let Complete { change, .. } = complete;
        complete.blocks.iter().for_each(|(_, block)| block.written());
        let table = complete.refcount_table;
        image.space.refcounts.table.write().moved(
            HostOffset(table.start << bits),
            table.len,
            &complete.refcount_table_bytes,
        );
        let left_to_snapshots =
            if change.l1_is_taken_over { image.left_to_snapshots(&change.l1) } else { Vec::new() };
        image.map.l1.replace(complete.l1_offset, &change.l1);
        image.size.store(change.size, Ordering::Relaxed);
        image.forget_map();
        let singles = [
            (Section::ActiveL1, complete.l1_offset, change.l1.len() as u64 * 8),
            (Section::SnapshotTable, complete.snapshots_offset, complete.snapshots_bytes),
            (Section::RefcountTable, table.start << bits, table.len << bits),
        ];
        let active_l2 =
            change.l1.iter().filter_map(|&word| L1Entry::decode(word, &image.medium.geometry).ok()?.table);
        let active_l2 = active_l2.map(|table| (Section::ActiveL2, table.0, cluster));
        let inactive_l1 = change.snapshots.iter().map(|snapshot| {
            (Section::InactiveL1, snapshot.l1_table_offset.0, u64::from(snapshot.l1_size) * 8)
        });
        let inactive_l2 = complete.inactive_l2.iter().map(|&at| (Section::InactiveL2, at, cluster));
        let refcounts = image.space.refcounts.table.read();
        let blocks =
            refcounts.blocks(&image.medium.geometry).map(|at| (Section::RefcountBlock, at.0, cluster));
        let tables = active_l2.chain(inactive_l1).chain(inactive_l2).chain(blocks);
        image.medium.overlap.replace(&MOVED, singles.into_iter().chain(tables));
        left_to_snapshots.iter().for_each(|&at| image.medium.overlap.add_to_snapshot(at));
        drop(refcounts);
        image.reclaim(self.freed);
    }

    /// Memory is as before. What was allocated is free again, unless the file may lead there.
    fn roll_back(self) {
        let image = &self.image;
        let bits = image.medium.geometry.cluster_bits;
        let made = image.space.refcounts.restore(self.before);
        made.iter().for_each(|at| image.medium.overlap.remove(at.0, Section::RefcountBlock));
        if image.medium.check_not_stopped().is_err() {
            return;
        }
        image.space.reserve.restore(self.reserve);
        let mut allocator = image.space.allocator.lock();
        self.taken.iter().for_each(|run| allocator.give(run.clusters()));
        made.iter().map(|at| at.0 >> bits).for_each(|at| allocator.give(at..at + 1));
    }
}

impl Inner {
    /// Sets the flags of a table's entries as the refcounts want them; says whether any changed.
    async fn set_copied(&self, entries: &mut [L2Entry]) -> Result<bool, Error> {
        let mut changed = false;
        for entry in entries {
            let L2Entry::Standard(cluster @ Cluster { host: Some(_), .. }) = entry else { continue };
            let host = cluster.host.map_or(0, |host| host.0);
            let copied = self.space.refcounts.get(host >> self.medium.geometry.cluster_bits).await? == 1;
            changed |= cluster.copied != copied;
            cluster.copied = copied;
        }
        Ok(changed)
    }

    /// Where the snapshot table is, and its length.
    async fn snapshot_table_place(&self) -> Result<(u64, u64), Error> {
        let header = self.header.lock().await;
        if header.snapshots == 0 {
            return Ok((0, 0));
        }
        let (_, bytes) = super::read_table(&*self.medium.file, &header, &self.medium.blame).await?;
        Ok((header.snapshots_offset.0, bytes))
    }

    /// The L2 tables of snapshots, where anybody asks before writing.
    async fn inactive_l2_tables(&self, snapshots: &[SnapshotEntry]) -> Result<Vec<u64>, Error> {
        let mut tables = Vec::new();
        if !self.medium.overlap.checks(Section::InactiveL2) {
            return Ok(tables);
        }
        for snapshot in snapshots {
            for word in self.l1_of_snapshot(snapshot).await? {
                if let Some(table) = self.l1_entry_of(word)?.table {
                    lists::push(&mut tables, table.0)
                        .map_err(|_| self.medium.blame.no_memory("the place of all tables"))?;
                }
            }
        }
        Ok(tables)
    }

    /// The L2 tables whose places are known and that only snapshots have once `l1` is the active table and a new snapshot
    /// has the old one. None of those known before goes with that.
    fn left_to_snapshots(&self, l1: &[u64]) -> Vec<u64> {
        let mut left = self.medium.overlap.inactive_l2();
        if self.medium.overlap.checks(Section::ActiveL2) {
            let table = |entry: Result<L1Entry, EntryError>| Some(entry.ok()?.table?.0);
            let old = |index| table(self.map.l1.get(index, &self.medium.geometry));
            let new = l1.iter().map(|&word| table(L1Entry::decode(word, &self.medium.geometry)));
            left.extend((0..).zip(new).filter_map(|(index, new)| old(index).filter(|old| new != Some(*old))));
        }
        left
    }

    /// Forgets what was read of the map: the file has another one from now on.
    fn forget_map(&self) {
        debug_assert_eq!(self.map.cache.dirty_slices(), 0, "a dirty slice would be written to its old place");
        self.map.cache.forget_all();
        self.decompressed.clear();
        self.space.room.forget_tables();
    }
}
