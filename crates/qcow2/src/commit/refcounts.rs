//! Refcounts on their way to the file, and the refcount table when it has outgrown its place.

use std::sync::Arc;

use qcow2_layout::HostOffset;
use storage::Step;

use super::all_of;
use crate::Error;
use crate::image::Inner;
use crate::overlap::Section;
use crate::refcount::DirtyTable;

impl Inner {
    /// Refcount blocks first, behind a barrier the table that leads to new ones.
    pub(crate) async fn write_refcounts(self: &Arc<Self>) -> Result<(), Error> {
        // Table before blocks: what the copied sectors lead to is then in the copies or in the file. A
        // block that is made later belongs to the next commit, table entry and all.
        let sectors = self.dirty_table_sectors().await?;
        let blocks = self.space.refcounts.copy_dirty()?;
        let pieces =
            blocks.iter().flat_map(|(at, block)| block.changed().map(|(from, bytes)| (at.0 + from, bytes)));
        let write = |(offset, bytes)| self.medium.write_table(offset, bytes, Section::RefcountBlock);
        all_of(pieces.map(write)).await?;
        blocks.iter().for_each(|(_, block)| block.written());
        self.space.refcounts.relieve();
        if sectors.is_empty() {
            return Ok(());
        }
        self.medium.barrier().await?;
        for (offset, bytes) in &sectors {
            self.medium.write_table(*offset, bytes, Section::RefcountTable).await?;
        }
        self.space.refcounts.table.write().written(&sectors);
        Ok(())
    }

    /// The sectors of the refcount table to be written in place, after making room if it has outgrown
    /// its clusters.
    async fn dirty_table_sectors(self: &Arc<Self>) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        loop {
            self.make_room_for_table().await?;
            let dirty = self.space.refcounts.table.read().dirty();
            match dirty {
                DirtyTable::Clean => return Ok(Vec::new()),
                DirtyTable::Sectors(sectors) => return Ok(sectors),
                DirtyTable::Outgrown(_) => {}
            }
        }
    }

    /// Moves the refcount table if it has outgrown its clusters: the new one is complete in the
    /// file before the header leads to it, the old one is freed after that.
    async fn make_room_for_table(self: &Arc<Self>) -> Result<(), Error> {
        loop {
            let dirty = self.space.refcounts.table.read().dirty();
            let DirtyTable::Outgrown(clusters) = dirty else { return Ok(()) };
            let run = match self.space.claim_table_aside(&self.medium).await? {
                Some(run) => run,
                None => self.space.allocate_exactly(&self.medium, clusters).await?,
            };
            let clusters = run.len;
            // The allocation may have made blocks that need a still larger table. Less room than a new one would
            // get is no reason: every attempt takes clusters that need blocks, and there might be no end.
            if self.space.refcounts.table.read().clusters_needed() > clusters {
                self.space.give_back(&self.medium, run).await;
                continue;
            }
            let at = HostOffset(run.start << self.medium.geometry.cluster_bits);
            match self.write_new_table(at, clusters).await {
                Ok(bytes) => {
                    self.space.free_aside(self.space.room.clear_rest_aside());
                    return self.move_table(at, clusters, &bytes).await;
                }
                Err(error) => {
                    self.space.give_back(&self.medium, run).await;
                    return Err(error);
                }
            }
        }
    }

    /// A copy of the whole table at `at`, and all blocks that it leads to: complete on disk
    /// when this returns.
    async fn write_new_table(self: &Arc<Self>, at: HostOffset, clusters: u64) -> Result<Vec<u8>, Error> {
        self.medium.about_to(Step::RefblockAllocWriteTable);
        // Table before blocks, as in write_refcounts.
        let bytes = self.space.refcounts.table.read().encode_all(clusters);
        let bytes = bytes.map_err(|_| self.medium.blame.no_memory("the refcount table"))?;
        let blocks = self.space.refcounts.copy_dirty()?;
        for (place, block) in &blocks {
            for (from, bytes) in block.changed() {
                self.medium.write_table(place.0 + from, bytes, Section::RefcountBlock).await?;
            }
        }
        self.medium.write_table(at.0, &bytes, Section::RefcountTable).await?;
        self.medium.barrier().await?;
        blocks.iter().for_each(|(_, block)| block.written());
        Ok(bytes)
    }

    /// Lets the header lead to the copy of the table at `at`. If that fails the file may have
    /// the old header or the new one: neither table is given back, one of them is leaked.
    async fn move_table(self: &Arc<Self>, at: HostOffset, clusters: u64, bytes: &[u8]) -> Result<(), Error> {
        self.medium.about_to(Step::RefblockAllocSwitchTable);
        self.header.point_header_at_refcount_table(&self.medium, at, clusters).await?;
        let (old_offset, old_clusters) = {
            let mut table = self.space.refcounts.table.write();
            let old = (table.offset(), table.clusters());
            table.moved(at, clusters, bytes);
            old
        };
        self.medium.overlap.remove(old_offset, Section::RefcountTable);
        self.medium.overlap.add(at.0, clusters << self.medium.geometry.cluster_bits, Section::RefcountTable);
        let start = old_offset >> self.medium.geometry.cluster_bits;
        self.reclaim(vec![crate::free::Free {
            start,
            len: old_clusters,
            punch: self.discards().pass_discard_other,
        }]);
        Ok(())
    }
}
