//! The map of a whole chain, read ahead of requests.

use std::sync::Arc;

use crate::Error;
use crate::below::Below;
use crate::image::Qcow2;
use block::BlockFuture;

impl Qcow2 {
    /// Brings the map of the whole disk into memory, through all layers, as far as there is room. For a
    /// task of its own: it ends early when the image is closed.
    ///
    /// # Errors
    /// When a table cannot be read. Requests are not harmed: one that needs the table reads it again.
    pub fn prefetch(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let mut image = self.clone();
            loop {
                image.inner.map.prefetch_tables(&image.inner.medium, &image.inner.turns).await?;
                let Some(lower) = image.inner.below.load_full() else { return Ok(()) };
                if let Some(chain) = lower.chain(&image.inner) {
                    // What another backing layer has replaced is read for nothing.
                    let is_below =
                        || image.inner.below.load().as_ref().is_some_and(|now| Arc::ptr_eq(now, &lower));
                    return chain
                        .prefetch(|| self.inner.map.reads_ahead(&self.inner.turns) && is_below())
                        .await;
                }
                image = match lower.layer() {
                    Below::Image(below) if self.inner.map.reads_ahead(&self.inner.turns) => below.clone(),
                    Below::Image(_) | Below::Block(_) => return Ok(()),
                };
            }
        })
    }
}
