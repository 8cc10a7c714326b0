//! The map of a whole chain read before anybody asks for it.

use crate::Error;
use crate::below::Below;
use crate::image::Qcow2;

impl Qcow2 {
    /// Brings the map of the whole disk into memory, through all layers, as far as there is room. For a
    /// task of its own: it ends early when the image is closed.
    ///
    /// # Errors
    /// When a table cannot be read. Requests are not harmed: who needs it tries again.
    pub async fn prefetch(&self) -> Result<(), Error> {
        let mut image = self;
        loop {
            image.inner.map.prefetch_tables(&image.inner.medium, &image.inner.turns).await?;
            if let Some(chain) = image.inner.chain() {
                return chain.prefetch(|| self.inner.map.reads_ahead(&self.inner.turns)).await;
            }
            match &image.inner.backing {
                Some(Below::Image(below)) if self.inner.map.reads_ahead(&self.inner.turns) => image = below,
                Some(_) | None => return Ok(()),
            }
        }
    }
}
