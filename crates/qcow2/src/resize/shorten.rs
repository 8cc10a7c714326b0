//! A shorter file, once what lay at its end is free.

use std::sync::Arc;

use crate::Error;
use crate::image::Inner;
use crate::pause::Pause;

impl Inner {
    /// Gives the space behind the last cluster in use back, where the file can become shorter.
    pub(super) async fn shorten_file(self: &Arc<Self>) -> Result<(), Error> {
        if !self.file.limits().resizable {
            return Ok(());
        }
        self.empty_reserve(false).await;
        // Most is freed while requests go on.
        self.commit().await?;
        self.frees.idle().await;
        let pause = self.pause().await?;
        let end = self.end_of_clusters_in_use(&pause).await?;
        if end << self.geometry.cluster_bits < self.file.length() {
            self.cut_file(&pause, end).await?;
        }
        Ok(())
    }

    /// Nothing on the medium or in memory refers to what is cut off. Durable before anybody may let the
    /// file grow again: the order of the two would be anybody's.
    async fn cut_file(self: &Arc<Self>, _pause: &Pause<'_>, end: u64) -> Result<(), Error> {
        let length = end << self.geometry.cluster_bits;
        for at in self.refcounts.drop_blocks_behind(end)? {
            self.overlap.remove(at.0);
        }
        self.write_refcounts().await?;
        self.barrier().await?;
        self.file.set_length(length).await.map_err(self.blame.io("shortening the file"))?;
        self.file.flush().await.map_err(self.blame.io("flushing"))?;
        self.allocator.lock().cut(end);
        Ok(())
    }

    /// First cluster of the file behind which none is in use, but for refcount blocks that count
    /// nothing but themselves. A block that counts anything before the end lies before it too.
    async fn end_of_clusters_in_use(&self, _pause: &Pause<'_>) -> Result<u64, Error> {
        let entries = self.geometry.refcount_block_entries();
        let frontier = self.allocator.lock().frontier();
        for index in (0..frontier.div_ceil(entries)).rev() {
            let last = self.refcounts.last_in_use(index).await?;
            if let Some(last) = last {
                return Ok(last + 1);
            }
        }
        Ok(0)
    }
}
