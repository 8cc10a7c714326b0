//! A disk as a block, for jobs: requests pass its front as those of doors do.

use std::sync::Arc;

use block::pace::Unpaced;
use block::{Block, BlockFuture, BlockStatus, Capabilities, Error, ReadKind, Stored, Takes, ZeroOptions};
use storage::{ForeignBytes, Hints, IoBuf, IoVec, Step};

use super::Disk;

impl Block for Disk {
    fn driver(&self) -> &'static str {
        self.root().driver()
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        Disk::size(self)
    }

    fn about_to(&self, step: Step) {
        self.root().about_to(step);
    }

    fn subcluster_bytes(&self) -> Option<u64> {
        self.root().subcluster_bytes()
    }

    fn awaits_backing(&self) -> bool {
        self.root().awaits_backing()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { read_only: self.read_only(), ..self.root().capabilities() }
    }

    fn below(&self) -> Option<Arc<dyn Block>> {
        self.root().below()
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> Option<ReadKind> {
        Disk::try_read(self, offset, buf, hints)
    }

    fn try_read_into(&self, offset: u64, memory: &ForeignBytes, hints: Hints) -> Option<ReadKind> {
        Disk::try_read_into(self, offset, memory, hints)
    }

    fn read(
        &self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(Disk::read(self, offset, buf, hints))
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(Disk::write(self, offset, data, false, hints))
    }

    fn write_compressed(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(Disk::write_compressed(self, offset, data, hints))
    }

    fn read_into(
        &self,
        offset: u64,
        memory: ForeignBytes,
        hints: Hints,
    ) -> BlockFuture<'_, Result<ReadKind, Error>> {
        Box::pin(Disk::read_into(self, offset, memory, hints, &Unpaced))
    }

    fn write_from(
        &self,
        offset: u64,
        memory: ForeignBytes,
        hints: Hints,
    ) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(Disk::write_from(self, offset, memory, false, hints, &Unpaced))
    }

    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(Disk::zero(self, offset, len, options, false, &Unpaced))
    }

    fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(Disk::discard(self, offset, len, false, &Unpaced))
    }

    fn flush(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(Disk::flush(self))
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        Box::pin(Disk::block_status(self, offset, len))
    }

    fn stored(&self, offset: u64, len: u64, wanted: Takes) -> BlockFuture<'_, Result<Option<Stored>, Error>> {
        Box::pin(Disk::stored(self, offset, len, wanted))
    }

    fn takes(&self) -> Option<Takes> {
        Disk::takes(self)
    }

    fn take(&self, offset: u64, stored: Stored) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(Disk::take(self, offset, stored))
    }

    fn close(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(Disk::close(self))
    }
}
