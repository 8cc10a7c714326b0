//! A smaller disk.

use std::sync::Arc;

use qcow2_layout::{HostOffset, L1Entry, L2Entry};

use crate::deliberate::{self, Bug};
use crate::free::Free;
use crate::image::Inner;
use crate::overlap::Section;
use crate::pause::Pause;
use crate::{Error, ResizeOptions};

impl Inner {
    /// The header first: whatever happens after that, nothing beyond the end is ever seen again. Then what
    /// lies there is freed while requests go on, and the file cut off behind its last cluster.
    pub(super) async fn shrink(
        self: &Arc<Self>,
        old: u64,
        size: u64,
        options: ResizeOptions,
    ) -> Result<(), Error> {
        let pause = self.pause().await?;
        match options.bitmaps {
            true => self.set_size_with_bitmaps(&pause, old, size).await?,
            false => self.set_size(size).await?,
        }
        drop(pause);
        self.give_back_behind_end(size).await
    }

    /// Everything that an image of `size` bytes does not need any more. Can be done again where it failed half-way.
    pub(super) async fn give_back_behind_end(self: &Arc<Self>, size: u64) -> Result<(), Error> {
        if self.medium.raw_data && self.medium.data.capabilities().resizable {
            let shortened = self.medium.data.shorten_to(size).await;
            shortened.map_err(self.medium.blame.io("shortening the data file"))?;
            // One that was shorter than the disk is as long as it from now on.
            self.medium.data.grow_to(size).await.map_err(self.medium.blame.io("growing the data file"))?;
        }
        self.free_behind_end(size).await?;
        self.shorten_file().await
    }

    /// Frees every cluster and every L2 table that only the part of the disk behind `size` needs. No request
    /// inside can reach there any more.
    async fn free_behind_end(self: &Arc<Self>, size: u64) -> Result<(), Error> {
        let table = self.medium.geometry.bytes_per_l2_table();
        let start = size.next_multiple_of(self.medium.geometry.cluster_size());
        let first_whole = start.div_ceil(table);
        if start < first_whole.saturating_mul(table) && start / table < self.map.l1.len() as u64 {
            let _pass = self.enter().await?;
            self.free_entries(start, (start / table + 1).saturating_mul(table)).await?;
        }
        // Slices of the tables that go must not be dirty: where they belong is soon forgotten.
        self.commit().await?;
        self.forget_behind(first_whole);
        for index in first_whole..self.map.l1.len() as u64 {
            let _pass = self.enter().await?;
            if let Some(at) = self.map.l1_entry(&self.medium, index.saturating_mul(table))?.table {
                self.free_table(index, at).await?;
            }
            if self.wants_commit() {
                self.commit().await?;
            }
        }
        if deliberate::has(Bug::TablesForgottenAtTheEnd) {
            self.map.cache.clear();
        }
        Ok(())
    }

    /// Takes all slices of the tables from `first` on out of memory at once, while they are still true: one pass over the cache
    /// instead of one a table. Only what is loaded between this and the end of its table is left to [`Inner::free_table`].
    fn forget_behind(&self, first: u64) {
        // L1 tables have at most 2^22 entries.
        let tables = first.min(self.map.l1.len() as u64) as u32..self.map.l1.len() as u32;
        if !tables.is_empty() && !deliberate::has(Bug::TablesForgottenAtTheEnd) {
            self.map.cache.forget_tables(tables);
        }
    }

    /// Frees the clusters from `start` to `end`, which one L2 table maps, and leaves the table.
    async fn free_entries(self: &Arc<Self>, start: u64, end: u64) -> Result<(), Error> {
        let size = self.medium.geometry.cluster_size();
        let mut guest = start;
        while guest < end {
            let old = self.map.entry(&self.medium, guest).await?;
            if old != L2Entry::UNALLOCATED {
                self.set_entries(guest, &[L2Entry::UNALLOCATED]).await?;
                self.space.free_entry(&self.medium, &old, true);
            }
            guest += size;
        }
        Ok(())
    }

    /// Frees a whole L2 table and what it leads to: all of it, or with an error nothing.
    async fn free_table(self: &Arc<Self>, index: u64, at: HostOffset) -> Result<(), Error> {
        let entries = self.map.read_table(&self.medium, at).await?;
        let shared = self.is_shared(Some(at)).await?;
        // Below 2^22 by the limit on L1 tables.
        self.map.l1.set(index as usize, L1Entry::UNALLOCATED);
        // Right behind that: the cache is asked before L1. A slice that stays, or that a load under way puts back, would lead
        // the next table of this L1 entry to clusters that another request has by then.
        if !deliberate::has(Bug::TablesForgottenAtTheEnd) {
            self.map.cache.forget_tables(index as u32..index as u32 + 1);
        }
        self.table_left(at, shared);
        entries.iter().for_each(|entry| self.space.free_entry(&self.medium, entry, true));
        self.space.free_cluster(&self.medium, at, true);
        Ok(())
    }
}

impl Inner {
    /// Gives the space behind the last cluster in use back, where the file can become shorter.
    async fn shorten_file(self: &Arc<Self>) -> Result<(), Error> {
        if !self.medium.file.capabilities().resizable {
            return Ok(());
        }
        self.space.empty_reserve(&self.medium, false).await;
        // Most is freed while requests go on.
        self.commit().await?;
        self.space.frees.idle().await;
        let pause = self.pause().await?;
        let mut end = self.end_of_clusters_in_use(&pause).await?;
        let empty = self.space.refcounts.empty_blocks_before(end).await?;
        let mut freed = self.drop_blocks(&pause, end, &empty).await?;
        // The place of a block may have been the last cluster in use.
        while freed {
            end = self.end_of_clusters_in_use(&pause).await?;
            freed = self.drop_blocks(&pause, end, &[]).await?;
        }
        if end << self.medium.geometry.cluster_bits < self.medium.file.length() {
            self.cut_file(&pause, end).await?;
        }
        Ok(())
    }

    /// Drops the refcount blocks that count only clusters from `end` on, and those that are `empty`: they count nothing but themselves.
    /// The file forgets them before memory does: until then their places are in use, whatever fails. Says whether places before the
    /// end became free.
    async fn drop_blocks(
        self: &Arc<Self>,
        _pause: &Pause<'_>,
        end: u64,
        empty: &[u64],
    ) -> Result<bool, Error> {
        let without = self.space.refcounts.without_blocks_behind(end, empty)?;
        if deliberate::has(Bug::BlocksForgottenFirst) {
            self.space.refcounts.forget_blocks(&without);
        }
        for (offset, bytes) in &without.sectors {
            self.medium.write_table(*offset, bytes, Section::RefcountTable).await?;
        }
        if without.blocks.is_empty() {
            return Ok(false);
        }
        self.medium.barrier().await?;
        self.space.refcounts.forget_blocks(&without);
        let mut counted = Vec::new();
        for (_, at) in &without.blocks {
            self.medium.overlap.remove(at.0, Section::RefcountBlock);
            let start = at.0 >> self.medium.geometry.cluster_bits;
            let by = self.space.refcounts.block_of(start);
            let is_counted =
                start < end && without.blocks.binary_search_by_key(&by, |(index, _)| *index).is_err();
            match is_counted {
                true => counted.push(Free { start, len: 1, punch: true }),
                // What counted it is gone, too.
                false => self.space.allocator.lock().give(start..start + 1),
            }
        }
        let any = !counted.is_empty();
        self.reclaim(counted);
        self.settle().await?;
        Ok(any)
    }

    /// Nothing on disk or in memory refers to what is cut off. Durable before the
    /// file may grow again: the order of the two would be undefined.
    async fn cut_file(self: &Arc<Self>, _pause: &Pause<'_>, end: u64) -> Result<(), Error> {
        // It may lie there, and would have lost its room.
        self.space.free_aside(self.space.room.clear_aside());
        self.space.room.forget_ahead();
        let length = end << self.medium.geometry.cluster_bits;
        self.medium.file.shorten_to(length).await.map_err(self.medium.blame.io("shortening the file"))?;
        self.medium.file.flush().await.map_err(self.medium.blame.io("flushing"))?;
        self.space.allocator.lock().cut(end);
        Ok(())
    }

    /// First cluster of the file behind which none is in use, but for refcount blocks that count
    /// nothing but themselves. A block that counts anything before the end lies before it too.
    async fn end_of_clusters_in_use(&self, _pause: &Pause<'_>) -> Result<u64, Error> {
        let entries = self.medium.geometry.refcount_block_entries();
        let frontier = self.space.allocator.lock().frontier();
        // Blocks may count clusters that the file is too short for: those read as zeroes, and are in use.
        let blocks = frontier.div_ceil(entries).max(self.space.refcounts.table.read().len());
        for index in (0..blocks).rev() {
            let last = self.space.refcounts.last_in_use(index).await?;
            if let Some(last) = last {
                return Ok(last + 1);
            }
        }
        Ok(0)
    }
}
