//! An image as a block: the contract that doors, jobs and filters know.

use std::sync::Arc;

use block::{Block, BlockFuture, BlockStatus, Capabilities, ReadKind, Stored, Takes, ZeroOptions};
use storage::{ForeignBytes, Hints, IoBuf, IoVec, Step};

use crate::chain::Chain;
use crate::{Error, Qcow2};

impl Block for Qcow2 {
    fn driver(&self) -> &'static str {
        "qcow2"
    }

    fn name(&self) -> &str {
        self.inner.medium.file.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn about_to(&self, step: Step) {
        self.inner.medium.about_to(step);
    }

    fn subcluster_bytes(&self) -> Option<u64> {
        Some(self.inner.medium.geometry.subcluster_size())
    }

    fn awaits_backing(&self) -> bool {
        self.inner.awaits_backing() && (!self.inner.has_backing() || self.inner.is_over_changing())
    }

    fn capabilities(&self) -> Capabilities {
        let image = &self.inner;
        Capabilities {
            read_only: !image.options.writable,
            alignment: image
                .medium
                .data
                .capabilities()
                .alignment
                .max(image.medium.file.capabilities().alignment),
            cached: image.has_cached_data(),
            cluster_bytes: Some(image.medium.geometry.cluster_size()),
        }
    }

    fn below(&self) -> Option<Arc<dyn Block>> {
        self.inner.below.load().as_ref().map(|lower| Arc::clone(lower.block()))
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> Option<ReadKind> {
        self.inner.try_read(offset, buf, hints)
    }

    fn try_read_into(&self, offset: u64, memory: &ForeignBytes, hints: Hints) -> Option<ReadKind> {
        self.inner.try_read_into(offset, memory, hints)
    }

    fn read(
        &self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Qcow2::read(self, offset, buf, hints)
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Qcow2::write(self, offset, data, hints)
    }

    fn read_into(
        &self,
        offset: u64,
        memory: ForeignBytes,
        hints: Hints,
    ) -> BlockFuture<'_, Result<ReadKind, Error>> {
        Qcow2::read_into(self, offset, memory, hints)
    }

    fn write_from(
        &self,
        offset: u64,
        memory: ForeignBytes,
        hints: Hints,
    ) -> BlockFuture<'_, Result<(), Error>> {
        Qcow2::write_from(self, offset, memory, hints)
    }

    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Qcow2::zero(self, offset, len, options)
    }

    fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), Error>> {
        Qcow2::discard(self, offset, len)
    }

    fn flush(&self) -> BlockFuture<'_, Result<(), Error>> {
        Qcow2::flush(self)
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        Qcow2::block_status(self, offset, len)
    }

    fn stored(&self, offset: u64, len: u64, wanted: Takes) -> BlockFuture<'_, Result<Option<Stored>, Error>> {
        Box::pin(Qcow2::stored(self, offset, len, wanted))
    }

    fn takes(&self) -> Option<Takes> {
        Qcow2::takes(self)
    }

    fn take(&self, offset: u64, stored: Stored) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(Qcow2::take(self, offset, stored))
    }

    /// Refcounts too. Requests wait while the last of it is written.
    fn rest(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            match self.inner.options.writable {
                true => self.inner.managed(async |image| image.pause().await.map(drop)).await,
                false => Ok(()),
            }
        })
    }

    /// Clean map slices, also of the layers below, and refcount blocks (`cache-clean-interval`).
    fn clean_cache(&self) -> usize {
        let below = self.inner.ask_chain(Chain::clean).unwrap_or(0);
        self.inner.map.cache.clean() + below + self.inner.space.refcounts.clean()
    }

    fn close(&self) -> BlockFuture<'_, Result<(), Error>> {
        Qcow2::close(self)
    }
}
