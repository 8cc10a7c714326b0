//! Naming another backing file in the header of an open image.

use std::sync::Arc;

use block::BlockFuture;
use qcow2_layout::Header;

use crate::image::Inner;
use crate::{Error, Qcow2};

impl Qcow2 {
    /// Makes the header name `name` as the backing file, of format `format`, or none. What is open stays as it is: this is for the
    /// next open of the image. Durable when it returns.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Invalid`] for a name that does not fit; whatever the storage says.
    ///
    /// # Crash
    /// The old name or the new one, unless the header is so full of other names that it does not fit in a sector; such a header can be
    /// torn, as all that QEMU writes. docs/internals/write-order.md, `backing_name`.
    pub fn set_backing_name(
        &self,
        name: Option<String>,
        format: Option<String>,
    ) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let result = self.inner.set_backing_name(name, format).await;
            self.inner.reporting(result).await
        })
    }
}

impl Inner {
    async fn set_backing_name(
        self: &Arc<Self>,
        name: Option<String>,
        format: Option<String>,
    ) -> Result<(), Error> {
        self.check_writable()?;
        self.prepare_header_for_first_change().await?;
        self.managed(async move |image| {
            let change = |header: &mut Header| {
                header.backing = name;
                header.extensions.backing_format = format;
            };
            image.header.rewrite(&image.medium, change).await
        })
        .await
    }
}
