//! The kit for filters: a filter says what it does differently, and everything else passes through.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use buffer::{IoBuf, IoVec};

use crate::{
    Blame, Block, BlockFuture, BlockStatus, Capabilities, Error, Hints, ReadKind, Step, Stored, Takes,
    ZeroOptions,
};

/// A block over another one of the same size and content. Every implementation is a [`Block`].
///
/// Each method is called in place of the one of that name, and passes the request on unless the filter says otherwise. A filter
/// that looks at requests or holds them back must do so in [`Filter::try_read`] too: give `None` where the request has to
/// take the way of [`Filter::read`].
pub trait Filter: Any + fmt::Debug + Send + Sync {
    /// The filter's name, as in options.
    fn driver(&self) -> &'static str;

    /// What it is put over.
    fn over(&self) -> &Arc<dyn Block>;

    /// In place of [`Block::size`].
    fn size(&self) -> u64 {
        self.over().size()
    }

    /// In place of [`Block::capabilities`].
    fn capabilities(&self) -> Capabilities {
        self.over().capabilities()
    }

    /// In place of [`Block::changes`].
    fn changes(&self) -> bool {
        self.over().changes()
    }

    /// In place of [`Block::try_read`].
    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> Option<ReadKind> {
        self.over().try_read(offset, buf, hints)
    }

    /// In place of [`Block::read`].
    fn read(
        &self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        self.over().read(offset, buf, hints)
    }

    /// In place of [`Block::write`].
    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        self.over().write(offset, data, hints)
    }

    /// In place of [`Block::zero`].
    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        self.over().zero(offset, len, options)
    }

    /// In place of [`Block::discard`].
    fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), Error>> {
        self.over().discard(offset, len)
    }

    /// In place of [`Block::flush`].
    fn flush(&self) -> BlockFuture<'_, Result<(), Error>> {
        self.over().flush()
    }

    /// In place of [`Block::block_status`].
    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        self.over().block_status(offset, len)
    }

    /// In place of [`Block::takes`]: nothing, because the filter would not see it.
    fn takes(&self) -> Option<Takes> {
        None
    }

    /// In place of [`Block::take`].
    fn take(&self, offset: u64, stored: Stored) -> BlockFuture<'_, Result<(), Error>> {
        let _ = (offset, stored);
        Box::pin(async { Err(Blame::new(self.over().name()).unsupported("data is only taken as bytes")) })
    }

    /// In place of [`Block::about_to`].
    fn about_to(&self, step: Step) {
        self.over().about_to(step);
    }

    /// In place of [`Block::close`].
    fn close(&self) -> BlockFuture<'_, Result<(), Error>> {
        self.over().close()
    }
}

impl<F: Filter> Block for F {
    fn driver(&self) -> &'static str {
        Filter::driver(self)
    }

    fn name(&self) -> &str {
        self.over().name()
    }

    fn size(&self) -> u64 {
        Filter::size(self)
    }

    fn capabilities(&self) -> Capabilities {
        Filter::capabilities(self)
    }

    fn subcluster_bytes(&self) -> Option<u64> {
        Filter::capabilities(self).cluster_bytes.and_then(|_| self.over().subcluster_bytes())
    }

    fn awaits_backing(&self) -> bool {
        self.over().awaits_backing()
    }

    fn below(&self) -> Option<Arc<dyn Block>> {
        Some(Arc::clone(self.over()))
    }

    fn changes(&self) -> bool {
        Filter::changes(self)
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> Option<ReadKind> {
        Filter::try_read(self, offset, buf, hints)
    }

    fn read(
        &self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Filter::read(self, offset, buf, hints)
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Filter::write(self, offset, data, hints)
    }

    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Filter::zero(self, offset, len, options)
    }

    fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), Error>> {
        Filter::discard(self, offset, len)
    }

    fn flush(&self) -> BlockFuture<'_, Result<(), Error>> {
        Filter::flush(self)
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        Filter::block_status(self, offset, len)
    }

    fn takes(&self) -> Option<Takes> {
        Filter::takes(self)
    }

    fn take(&self, offset: u64, stored: Stored) -> BlockFuture<'_, Result<(), Error>> {
        Filter::take(self, offset, stored)
    }

    fn about_to(&self, step: Step) {
        Filter::about_to(self, step);
    }

    fn close(&self) -> BlockFuture<'_, Result<(), Error>> {
        Filter::close(self)
    }
}
