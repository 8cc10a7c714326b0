//! A smaller disk.

use std::sync::Arc;

use qcow2_layout::{HostOffset, L1Entry, L2Entry};

use crate::deliberate::{self, Bug};
use crate::image::Inner;
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
