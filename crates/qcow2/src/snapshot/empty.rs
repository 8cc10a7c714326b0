//! Giving up everything that the image itself holds: its backing file shows through everywhere.

use std::sync::Arc;

use super::shadow::{Change, Shadow};
use crate::image::Inner;
use crate::{Error, Qcow2};
use block::BlockFuture;

impl Qcow2 {
    /// Makes the disk read as its backing file does, and as zeroes without one. Snapshots stay. Durable when it returns.
    /// Costs reading all L2 tables and writing the refcounts of what was in use.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Unsupported`] with an external data file; whatever the storage says. Then nothing has changed.
    ///
    /// # Crash
    /// The old content or none; leaks. docs/internals/write-order.md, `make_empty`.
    pub fn make_empty(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let result = self.inner.make_empty().await;
            self.inner.reporting(result).await
        })
    }
}

impl Inner {
    async fn make_empty(self: &Arc<Self>) -> Result<(), Error> {
        self.check_writable()?;
        if self.medium.geometry.external_data {
            return Err(self.medium.blame.unsupported("an image with an external data file is not emptied"));
        }
        self.prepare_header_for_first_change().await?;
        self.managed(async move |image| {
            let snapshots = image.snapshots().await?;
            let size = image.size();
            let pause = image.pause().await?;
            image.note_everything(&pause).await?;
            let change = async |shadow: &mut Shadow| {
                let mut l1 =
                    image.map.l1.words().map_err(|_| image.medium.blame.no_memory("the L1 table"))?;
                image.lower_references(&l1, &mut shadow.freed).await?;
                l1.fill(0);
                Ok(Change { l1, l1_is_taken_over: false, size, snapshots })
            };
            image.change_tables(&pause, change).await
        })
        .await
    }
}
