//! Changing the disk as a whole: one who does it at a time, and moments in which nobody else is inside.

use std::sync::Arc;

use crate::Error;
use crate::gate::Closed;
use crate::image::Inner;

/// Nobody is inside, and the file has everything that memory has, until this is dropped.
#[derive(Debug)]
#[must_use = "requests wait until a pause is dropped"]
pub(crate) struct Pause<'a> {
    _closed: Closed<'a>,
}

impl Inner {
    /// Runs `work`, to its end, when nobody else changes the disk as a whole.
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
        Ok(Pause { _closed: closed })
    }

    /// Writes everything, refcounts of freed clusters too. Nobody may be inside.
    pub(crate) async fn settle(self: &Arc<Self>) -> Result<(), Error> {
        // A commit of a dropped flush may still run.
        self.turns.committer.idle().await;
        self.space.frees.idle().await;
        while self.is_dirty() || self.space.frees.is_reclaiming() {
            self.commit().await?;
            self.space.frees.idle().await;
        }
        if self.header.is_lazy() {
            self.write_refcounts().await?;
            self.space.frees.idle().await;
            self.write_refcounts().await?;
            self.medium.barrier().await?;
        }
        Ok(())
    }
}
