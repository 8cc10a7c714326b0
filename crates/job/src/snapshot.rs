//! A snapshot: an overlay is put over a disk at work. What was written before is below it, what comes goes into it.

/// The disk and its overlay, while nothing else changes the disk's layers. Each method is one step; a step that fails has changed nothing.
#[expect(async_fn_in_trait, reason = "snapshots are taken on one loop: their futures need not be Send")]
pub trait SnapshotHost {
    /// The overlay, opened.
    type Overlay;
    /// Why a step failed.
    type Error;

    /// Makes the image of the overlay, if that is asked for: durably, and its header names what it is put over.
    async fn make(&self) -> Result<(), Self::Error>;

    /// Opens the overlay, without a backing layer.
    async fn open(&self) -> Result<Self::Overlay, Self::Error>;

    /// Flushes what guests wrote, keeps requests out, waits for those that run, and puts the overlay over the disk. The first request
    /// afterwards finds it. From then on a flush of the disk covers both images, until what is below is durable.
    async fn put_over(&self, overlay: Self::Overlay) -> Result<(), Self::Error>;

    /// Makes durable what was written below the overlay. A failure is reported: flushes of the disk repeat it.
    async fn flush_below(&self);

    /// Opens what is below for reading only, so that others may read its file. A failure is reported.
    async fn make_below_readable(&self);

    /// Takes the overlay off and closes it; requests were kept out since it was put there.
    async fn take_off(&self) -> Result<(), Self::Error>;

    /// Removes the image that [`SnapshotHost::make`] made, if it did.
    fn remove(&self);
}

/// A snapshot that is kept or, while requests are kept out, undone.
#[derive(Debug)]
pub struct Snapshot<H>(H);

impl<H: SnapshotHost> Snapshot<H> {
    /// Takes it.
    ///
    /// # Errors
    /// Then nothing is left of it.
    ///
    /// # Crash
    /// The disk is backed by the old image or by the overlay, which reads the same.
    pub async fn take(host: H) -> Result<Self, H::Error> {
        host.make().await?;
        let put = async {
            let overlay = host.open().await?;
            host.put_over(overlay).await
        };
        match put.await {
            Ok(()) => Ok(Self(host)),
            Err(error) => {
                host.remove();
                Err(error)
            }
        }
    }

    /// It stays.
    pub async fn keep(self) {
        self.0.flush_below().await;
        self.0.make_below_readable().await;
    }

    /// Takes it back.
    ///
    /// # Errors
    /// Then the overlay stays.
    pub async fn undo(self) -> Result<(), H::Error> {
        self.0.take_off().await?;
        self.0.remove();
        Ok(())
    }
}
