//! Options of an open image that change how it is written: `lazy-refcounts` and `overlap-check`.

use std::sync::Arc;

use block::BlockFuture;
use qcow2_layout::{Compatible, Version};
use sync::atomic::Ordering;

use crate::image::{Inner, Qcow2};
use crate::options::LAZY_NEEDS_V3;
use crate::{Error, Options, OverlapCheck};

impl Qcow2 {
    /// Whether refcounts are written at the close only.
    pub fn lazy_refcounts(&self) -> bool {
        self.inner.header.is_lazy()
    }

    /// Turns `lazy-refcounts` on or off; `None` is what the image says. Requests are held back meanwhile. Off, all
    /// refcounts are on disk and the dirty bit is gone when this returns. Costs a commit and at most two more
    /// writes, each with a barrier. On an image that is only read nothing happens.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Invalid`] for an image of version 2; whatever the storage says. After a failure refcounts
    /// are written with everything else, whatever was asked for, and the dirty bit may be set: that is never wrong.
    ///
    /// # Crash
    /// The dirty bit, as long as refcounts may be wrong. docs/internals/write-order.md, `lazy_refcounts_turned_off` and `_on`.
    pub fn set_lazy_refcounts(&self, lazy: Option<bool>) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            if !self.inner.options.writable {
                return Ok(());
            }
            self.inner.managed(async move |image| image.set_lazy_refcounts(lazy).await).await
        })
    }

    /// The metadata that is looked at before anything is read or written beside it.
    pub fn overlap_check(&self) -> OverlapCheck {
        self.inner.medium.overlap.check()
    }

    /// Puts another `overlap-check` in force. What is dirty is written first, requests are held back, and where
    /// metadata lies is read from the tables in the file anew: the cost of opening the image.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Corrupt`] when tables lie inside each other; whatever the storage says. Then the old
    /// one stays in force.
    pub fn set_overlap_check(&self, check: OverlapCheck) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let image = Arc::clone(&self.inner);
            self.inner.medium.to_the_end(async move { image.set_overlap_check(check).await }).await
        })
    }
}

impl Inner {
    async fn set_lazy_refcounts(self: &Arc<Self>, lazy: Option<bool>) -> Result<(), Error> {
        let lazy = match lazy {
            Some(lazy) => lazy,
            None => self.header.lock().await.compatible.contains(Compatible::LAZY_REFCOUNTS),
        };
        match (lazy, self.header.is_lazy()) {
            (true, false) => self.turn_lazy_on().await,
            (true, true) => Ok(()),
            // Also when it is off already: the dirty bit may be left from a failure.
            (false, _) => self.turn_lazy_off().await,
        }
    }

    async fn turn_lazy_on(self: &Arc<Self>) -> Result<(), Error> {
        if self.medium.geometry.version == Version::V2 {
            return Err(self.medium.blame.invalid(LAZY_NEEDS_V3));
        }
        let _pause = self.pause().await?;
        // A request may have looked at the header before it waits at the gate: it will not look again.
        if self.header.prepared_for_data.load(Ordering::Acquire) {
            self.header.set_dirty(&self.medium).await?;
        }
        self.header.lazy_refcounts.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn turn_lazy_off(self: &Arc<Self>) -> Result<(), Error> {
        // Refcounts are on disk when it begins, and no request is in flight to change them.
        let _pause = self.pause().await?;
        self.header.lazy_refcounts.store(false, Ordering::Relaxed);
        self.header.clear_dirty(&self.medium).await
    }

    async fn set_overlap_check(self: &Arc<Self>, check: OverlapCheck) -> Result<(), Error> {
        let _managing = self.turns.managing.lock().await;
        // Refuses when the image was closed meanwhile.
        drop(self.enter().await?);
        if self.medium.overlap.check() == check {
            return Ok(());
        }
        if self.options.writable {
            self.check_writable()?;
            let _pause = self.pause().await?;
            self.read_places(check).await
        } else {
            let _closed = self.turns.gate.close().await;
            self.read_places(check).await
        }
    }

    /// No request is in flight, and the file says what memory says.
    async fn read_places(&self, check: OverlapCheck) -> Result<(), Error> {
        let options = Options { overlap_check: check, ..self.options };
        let header = self.header.lock().await;
        let places = crate::open::metadata_places(
            &*self.medium.file,
            &header,
            &self.medium.geometry,
            &options,
            &self.medium.blame,
            &self.map.l1,
        )
        .await?;
        self.medium.overlap.change(check, places);
        Ok(())
    }
}
