//! Changing the disk as a whole: one change at a time, in moments without a request inside.

use std::sync::Arc;

use block::{Block, BlockFuture};
use sync::AsyncMutexGuard;

use crate::Error;
use crate::below::Lower;
use crate::gate::Closed;
use crate::image::{Inner, Qcow2};

/// No request is in flight, and the file has everything that memory has, until this is dropped.
#[derive(Debug)]
#[must_use = "requests wait until a pause is dropped"]
pub(crate) struct Pause<'a> {
    /// `None` where the gate stays closed.
    _closed: Option<Closed<'a>>,
}

/// No request is in flight, and no request changes it as a whole, until this is dropped: another backing layer can be put below it.
///
/// Requests that come wait. Deadlock: do not await a request to the same image while holding this.
#[derive(Debug)]
#[must_use = "the image works on as soon as this is dropped"]
pub struct HeldStill<'a> {
    pub(crate) image: &'a Arc<Inner>,
    _managing: AsyncMutexGuard<'a, ()>,
    closed: Closed<'a>,
}

impl Qcow2 {
    /// Waits until no request changes the image as a whole any more and the requests inside have left, and keeps both out. Writes
    /// nothing. Dropped before its end, it leaves everything as it was.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Refused`] when the image was closed.
    pub fn hold_still(&self) -> BlockFuture<'_, Result<HeldStill<'_>, Error>> {
        Box::pin(async move {
            let image = &self.inner;
            let _managing = image.turns.managing.lock().await;
            drop(image.enter().await?);
            let closed = image.turns.gate.close().await;
            Ok(HeldStill { image, _managing, closed })
        })
    }
}

impl HeldStill<'_> {
    /// No request enters any more.
    pub(crate) fn for_ever(self) {
        self.closed.for_ever();
    }

    /// Whether the image takes a backing layer at all.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Invalid`] for an image whose data file can be read by itself: what it does not have is zeroes there.
    pub fn check_takes_backing(&self) -> Result<(), Error> {
        match self.image.medium.raw_data {
            true => {
                Err(self.image.medium.blame.invalid("an image with data-file-raw=on has no backing layer"))
            }
            false => Ok(()),
        }
    }

    /// Puts `backing` below the image, with what lies below that now; nothing on disk changes. The map of the layers
    /// below is made anew when it is needed.
    ///
    /// An image further up in a chain has seen this one with its old backing layer: it is given this one again.
    ///
    /// # Errors
    /// As [`HeldStill::check_takes_backing`]; then nothing has changed.
    pub fn set_backing(&self, backing: Option<Arc<dyn Block>>) -> Result<(), Error> {
        if backing.is_some() {
            self.check_takes_backing()?;
        }
        self.image.below.store(backing.map(Lower::new));
        Ok(())
    }
}

impl Inner {
    /// Runs `work`, to its end, when no other request changes the disk as a whole.
    pub(crate) async fn managed<T: 'static>(
        self: &Arc<Self>,
        work: impl AsyncFnOnce(Arc<Self>) -> Result<T, Error> + 'static,
    ) -> Result<T, Error> {
        let image = Arc::clone(self);
        self.medium
            .to_the_end(async move {
                let _managing = image.turns.managing.lock().await;
                // Refuses when the image was closed while others managed it.
                drop(image.enter().await?);
                image.check_writable()?;
                work(Arc::clone(&image)).await
            })
            .await
    }

    /// Waits until the requests inside have left and the file has all metadata. Only for
    /// [`Inner::managed`] work: the gate can be closed once at a time.
    pub(crate) async fn pause(self: &Arc<Self>) -> Result<Pause<'_>, Error> {
        // Most of what is dirty is written while requests still go on.
        self.commit().await?;
        let closed = self.turns.gate.close().await;
        self.settle().await?;
        Ok(Pause { _closed: Some(closed) })
    }

    /// Waits until the requests inside have left; no request enters any more. Writes nothing. For one who manages the image.
    pub(crate) async fn pause_for_ever(&self) -> Pause<'_> {
        self.turns.gate.close().await.for_ever();
        Pause { _closed: None }
    }

    /// Writes everything, refcounts of freed clusters too. No request may be in flight.
    pub(crate) async fn settle(self: &Arc<Self>) -> Result<(), Error> {
        self.settle_map().await?;
        if self.header.is_lazy() {
            self.write_refcounts().await?;
            self.space.frees.idle().await;
            self.write_refcounts().await?;
            self.medium.barrier().await?;
        }
        Ok(())
    }

    /// Likewise, but for refcounts that are written at the close only. Dropped half-way it leaves work that ends by itself.
    pub(crate) async fn settle_map(self: &Arc<Self>) -> Result<(), Error> {
        // A commit of a dropped flush may still run.
        self.turns.committer.idle().await;
        self.space.frees.idle().await;
        while self.is_dirty() || self.space.frees.is_reclaiming() {
            self.commit().await?;
            self.space.frees.idle().await;
        }
        Ok(())
    }
}
