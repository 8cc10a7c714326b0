//! The end of an image's life: everything written, everything given back.

use std::sync::Arc;

use sync::atomic::Ordering;

use crate::Error;
use crate::image::Inner;

impl Inner {
    /// See [`crate::Qcow2::close`].
    pub(crate) async fn close(self: &Arc<Self>) -> Result<(), Error> {
        self.turns.closing.store(true, Ordering::Relaxed);
        if !self.options.writable {
            return Ok(());
        }
        // Whoever changes the disk as a whole closes the gate too, and opens it again.
        let _managing = self.turns.managing.lock().await;
        self.turns.gate.close().await.for_ever();
        let result = self.write_everything().await;
        // Nothing of ours may reach the file once the caller has let go of it, also after a failure.
        self.turns.committer.idle().await;
        self.space.frees.idle().await;
        result
    }

    async fn write_everything(self: &Arc<Self>) -> Result<(), Error> {
        self.stop_if_corrupt("the image is corrupt; what was not flushed before is not written").await?;
        self.space.empty_reserve(&self.medium, true).await;
        // Freeing lowers refcounts, which the next commit writes; moving the refcount table frees
        // the old one. Each round leaves less to do.
        while self.is_dirty() || self.space.frees.is_reclaiming() {
            self.commit().await?;
            self.space.frees.idle().await;
        }
        self.commit().await?;
        if self.header.is_lazy() {
            self.write_refcounts().await?;
            self.space.frees.idle().await;
            self.write_refcounts().await?;
            self.medium.barrier().await?;
        }
        self.stop_if_corrupt("the image is corrupt: some of its clusters could not be freed").await?;
        // Behind the barrier: the medium knows that nothing is there.
        self.space.cut_tail(&self.medium, &self.header).await?;
        self.header.clear_reserve_mark(&self.medium).await?;
        self.header.clear_dirty(&self.medium).await
    }

    /// Corruption that was noticed up to now is in the header when this fails.
    async fn stop_if_corrupt(self: &Arc<Self>, detail: &'static str) -> Result<(), Error> {
        if !self.medium.health.is_corrupt() {
            return Ok(());
        }
        self.mark_corrupt().await;
        Err(self.medium.blame.corrupt(detail))
    }
}
