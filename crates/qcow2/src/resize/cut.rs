//! A smaller disk.

use std::sync::Arc;

use qcow2_layout::{HostOffset, L1Entry, L2Entry};

use crate::Error;
use crate::image::Inner;

impl Inner {
    /// The header first: whatever happens after that, nothing beyond the end is ever seen again. Then what
    /// lies there is freed while requests go on, and the file cut off behind its last cluster.
    pub(super) async fn shrink(self: &Arc<Self>, size: u64) -> Result<(), Error> {
        let pause = self.pause().await?;
        self.set_size(size).await?;
        drop(pause);
        if self.raw_data && self.data.limits().resizable {
            self.data.set_length(size).await.map_err(self.blame.io("shortening the data file"))?;
        }
        self.free_behind_end(size).await?;
        self.shorten_file().await
    }

    /// Frees every cluster and every L2 table that only the part of the disk behind `size` needs. Nobody
    /// inside can reach there any more.
    async fn free_behind_end(self: &Arc<Self>, size: u64) -> Result<(), Error> {
        let table = self.geometry.bytes_per_l2_table();
        let start = size.next_multiple_of(self.geometry.cluster_size());
        let first_whole = start.div_ceil(table);
        if start < first_whole.saturating_mul(table) && start / table < self.l1.len() as u64 {
            let _pass = self.enter().await?;
            self.free_entries(start, (start / table + 1).saturating_mul(table)).await?;
        }
        // Slices of the tables that go must not be dirty: where they belong is soon forgotten.
        self.commit().await?;
        for index in first_whole..self.l1.len() as u64 {
            let _pass = self.enter().await?;
            let entry = self.l1.get(index, &self.geometry);
            let entry = entry.map_err(|error| self.blame.entry(index.saturating_mul(table), &error));
            if let Some(at) = self.noticing_corruption(entry)?.table {
                self.free_table(index, at).await?;
            }
            if self.wants_commit() {
                self.commit().await?;
            }
        }
        // What is in memory of those tables is clean.
        self.cache.clear();
        Ok(())
    }

    /// Frees the clusters from `start` to `end`, which one L2 table maps, and leaves the table.
    async fn free_entries(self: &Arc<Self>, start: u64, end: u64) -> Result<(), Error> {
        let size = self.geometry.cluster_size();
        let mut guest = start;
        while guest < end {
            let old = self.entry(guest).await?;
            if old != L2Entry::UNALLOCATED {
                self.set_entries(guest, &[L2Entry::UNALLOCATED]).await?;
                self.free_entry(&old, self.options.pass_discard_request);
            }
            guest += size;
        }
        Ok(())
    }

    /// Frees a whole L2 table and what it leads to.
    async fn free_table(self: &Arc<Self>, index: u64, at: HostOffset) -> Result<(), Error> {
        let entries = self.read_table(at).await?;
        // Below 2^22 by the limit on L1 tables.
        self.l1.set(index as usize, L1Entry::UNALLOCATED);
        self.overlap.remove(at.0);
        let punch = self.options.pass_discard_request;
        entries.iter().for_each(|entry| self.free_entry(entry, punch));
        self.free_cluster(at.0, self.options.pass_discard_other);
        Ok(())
    }
}
