//! The end of an image's life: everything written, everything given back.
//!
//! An image comes to rest in one order, for good here or for a moment in a pause: no other request changes the disk as a whole, the gate is
//! closed behind the last request, what runs in the background has ended, and what is dirty is written
//! ([`Inner::settle`]). Only then the reserve's mark and the dirty bit can go.

use std::sync::Arc;

use sync::atomic::Ordering;

use crate::Error;
use crate::image::Inner;
use crate::pause::Pause;

impl Inner {
    /// See [`crate::Qcow2::close`].
    pub(crate) async fn close(self: &Arc<Self>) -> Result<(), Error> {
        self.turns.closing.store(true, Ordering::Relaxed);
        if !self.options.writable {
            return Ok(());
        }
        // A change of the disk as a whole closes the gate too, and opens it again.
        let _managing = self.turns.managing.lock().await;
        // The handle over the other files closes the image.
        if self.turns.went_on.load(Ordering::Acquire) {
            return Ok(());
        }
        let pause = self.pause_for_ever().await;
        let result = self.write_everything(&pause).await;
        // Nothing of ours may reach the file once the caller has released it, also after a failure.
        self.turns.committer.idle().await;
        self.space.frees.idle().await;
        result
    }

    async fn write_everything(self: &Arc<Self>, pause: &Pause<'_>) -> Result<(), Error> {
        self.stop_if_corrupt("the image is corrupt; what was not flushed before is not written").await?;
        // Before bitmaps are stored: their places would lie behind the reserve, and the file could not end before them.
        self.space.empty_reserve(&self.medium, true).await;
        let bitmaps = self.store_bitmaps_at_the_end(pause).await;
        self.settle().await?;
        // The barrier for data that was written in place, too.
        self.commit().await?;
        self.stop_if_corrupt("the image is corrupt: some of its clusters could not be freed").await?;
        // Behind the barrier: the file knows that nothing is there.
        self.space.cut_tail(&self.medium, &self.header).await?;
        let named = self.header.put_names_back(&self.medium).await;
        self.header.clear_reserve_mark(&self.medium).await?;
        self.header.clear_dirty(&self.medium).await?;
        named?;
        bitmaps
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
