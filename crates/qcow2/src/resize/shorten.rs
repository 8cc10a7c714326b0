//! A shorter file, once what lay at its end is free.

use std::sync::Arc;

use crate::Error;
use crate::deliberate::{self, Bug};
use crate::free::Free;
use crate::image::Inner;
use crate::overlap::Section;
use crate::pause::Pause;

impl Inner {
    /// Gives the space behind the last cluster in use back, where the file can become shorter.
    pub(super) async fn shorten_file(self: &Arc<Self>) -> Result<(), Error> {
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
