//! A smaller disk.

use std::sync::Arc;

use qcow2_layout::{HostOffset, L1Entry, L2Entry, refcount_get};
use storage::IoBuf;

use crate::Error;
use crate::image::Inner;
use crate::pause::Pause;

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

    /// All entries of the L2 table at `at`, as the file has them.
    pub(crate) async fn read_table(&self, at: HostOffset) -> Result<Vec<L2Entry>, Error> {
        let (result, bytes) = self.file.read(at.0, IoBuf::uninit(1 << self.geometry.cluster_bits)).await;
        result.map_err(self.blame.io("reading an L2 table"))?;
        let width = (self.geometry.l2_entry_bytes() / 8) as usize;
        let (words, _) = bytes.as_chunks::<8>();
        let decoded = words.chunks(width).map(|entry| {
            let word = |at: usize| entry.get(at).map_or(0, |word| u64::from_be_bytes(*word));
            L2Entry::decode([word(0), word(1)], &self.geometry)
        });
        let entries: Result<Vec<_>, _> = decoded.collect();
        let entries = entries.map_err(|error| self.blame.corrupt(format!("the L2 table at {at}: {error}")));
        self.noticing_corruption(entries)
    }

    /// Gives the space behind the last cluster in use back, where the file can become shorter.
    pub(crate) async fn shorten_file(self: &Arc<Self>) -> Result<(), Error> {
        if !self.file.limits().resizable {
            return Ok(());
        }
        // Most is freed while requests go on.
        self.commit().await?;
        self.frees.idle().await;
        let pause = self.pause().await?;
        let end = self.end_of_clusters_in_use().await?;
        let length = end << self.geometry.cluster_bits;
        if length < self.file.length() {
            self.cut_file(&pause, length, end).await?;
        }
        Ok(())
    }

    /// Nothing on the medium or in memory refers to what is cut off. Durable before anybody may let the
    /// file grow again: the order of the two would be anybody's.
    async fn cut_file(&self, _pause: &Pause<'_>, length: u64, end: u64) -> Result<(), Error> {
        self.file.set_length(length).await.map_err(self.blame.io("shortening the file"))?;
        self.file.flush().await.map_err(self.blame.io("flushing"))?;
        self.allocator.lock().cut(end);
        Ok(())
    }

    /// First cluster of the file behind which none is in use.
    async fn end_of_clusters_in_use(&self) -> Result<u64, Error> {
        let entries = self.geometry.refcount_block_entries();
        let frontier = self.allocator.lock().frontier();
        for index in (0..frontier.div_ceil(entries)).rev() {
            let Some(block) = self.refcounts.block(index).await? else { continue };
            let order = self.geometry.refcount_order;
            let used = |at: &u64| block.read(|bytes| refcount_get(bytes, *at, order)) != Some(0);
            if let Some(last) = (0..entries).rev().find(used) {
                return Ok(index * entries + last + 1);
            }
        }
        Ok(0)
    }
}
