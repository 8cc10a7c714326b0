//! What lies below the layers that an image takes over.
//!
//! It is no job's own: a commit further down may take it out, and another stream may open it for writing. What it reads as stays the same. So it is
//! found anew for each request, and a request that it did not outlast is made once more.

use std::sync::Arc;

use block::{Blame, Block, BlockFuture, BlockStatus, Capabilities, Error, ReadKind, ZeroOptions};
use buffer::{IoBuf, IoVec};
use storage::Hints;

/// The layer below the layers of an image.
#[derive(Debug)]
pub(crate) struct Base {
    image: Arc<dyn Block>,
    layers: u32,
    name: String,
}

impl Base {
    /// What is below `layers` layers, `image` included. These stay where they are.
    pub(crate) fn new(image: Arc<dyn Block>, layers: u32) -> Self {
        let base = Self { name: image.name().to_owned(), image, layers };
        let name = base.layer().map_or_else(String::new, |layer| layer.name().to_owned());
        Self { name, ..base }
    }

    /// How many layers are above it.
    pub(crate) fn layers(&self) -> u32 {
        self.layers
    }

    /// The layer that is there now.
    pub(crate) fn layer(&self) -> Option<Arc<dyn Block>> {
        block::layers(Arc::clone(&self.image)).nth(self.layers as usize)
    }

    fn found(&self) -> Result<Arc<dyn Block>, Error> {
        self.layer().ok_or_else(|| Blame::new(&self.name).refused("it is no layer of the disk any more"))
    }

    fn is_there(&self, layer: &Arc<dyn Block>) -> bool {
        self.layer().is_some_and(|now| Arc::ptr_eq(&now, layer))
    }

    fn refused<T>(&self) -> Result<T, Error> {
        Err(Blame::new(&self.name).refused("it is read by the job, not written"))
    }
}

impl Block for Base {
    fn driver(&self) -> &'static str {
        self.layer().map_or("base", |layer| layer.driver())
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.layer().map_or(0, |layer| layer.size())
    }

    fn capabilities(&self) -> Capabilities {
        let none = Capabilities { read_only: true, alignment: 1, cached: false, cluster_bytes: None };
        let now = self.layer().map_or(none, |layer| layer.capabilities());
        Capabilities { read_only: true, cached: false, ..now }
    }

    fn read(
        &self,
        offset: u64,
        mut buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(async move {
            loop {
                let layer = match self.found() {
                    Ok(layer) => layer,
                    Err(error) => return (Err(error), buf),
                };
                let result;
                (result, buf) = layer.read(offset, buf, hints).await;
                if self.is_there(&layer) {
                    return (result, buf);
                }
            }
        })
    }

    fn write(&self, _offset: u64, _data: IoVec, _hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async { self.refused() })
    }

    fn zero(&self, _offset: u64, _len: u64, _options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async { self.refused() })
    }

    fn discard(&self, _offset: u64, _len: u64) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async { self.refused() })
    }

    fn flush(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        Box::pin(async move {
            loop {
                let layer = self.found()?;
                let status = layer.block_status(offset, len).await;
                if self.is_there(&layer) {
                    return status;
                }
            }
        })
    }

    fn close(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }
}
