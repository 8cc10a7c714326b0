//! `copy-on-read`: what is read and lies below the uppermost image is written to that, so that it is found there the next time.
//!
//! The content of the disk never changes: a copy is made under an exclusive lock, which guests' writes there share among each other, of
//! what the image does not have, and the engine orders it before any later write of the same clusters, also if the read is dropped. A
//! crash leaves the copy or what lies below: both read the same.

use std::ops::Range;
use std::sync::Arc;

use block::{Block, BlockFuture, BlockStatus, Capabilities, Error, ReadKind, Step, ZeroOptions};
use job::{Says, Scope};
use memory::{IoBuf, IoVec};
use storage::{Hints, RangeLocks, RangeMode};

/// Bytes that are copied at a time at most, but for whole clusters.
const PIECE_BYTES: u64 = 1 << 20;
/// Bytes that are copied together where no map has clusters.
const UNIT_BYTES: u64 = 64 << 10;

/// The filter.
#[derive(Debug)]
pub struct CopyOnRead {
    over: Arc<dyn Block>,
    /// Layers whose data is copied, from the uppermost on; `None`: of all.
    layers: Option<u32>,
    locks: RangeLocks,
}

impl CopyOnRead {
    /// Over `over`. With `layers` only what the uppermost so many images have is copied, and nothing that none of them knows.
    pub fn new(over: Arc<dyn Block>, layers: Option<u32>) -> Self {
        Self { over, layers, locks: RangeLocks::default() }
    }

    /// Whether a range in this state is to be copied.
    fn takes(&self, status: &BlockStatus) -> bool {
        let is_below = !status.present || status.depth > 0;
        let scope = self.layers.map_or(Scope::BelowTop, Scope::Layers);
        is_below && scope.says(status) != Says::Nothing
    }

    /// Copies what of `range` lies below, in whole clusters, or subclusters.
    async fn copy(&self, range: Range<u64>) -> Result<(), Error> {
        let size = self.over.size();
        let unit = self.over.subcluster_bytes().unwrap_or(UNIT_BYTES);
        let mut at = range.start;
        while at < range.end.min(size) {
            let status = self.over.block_status(at, range.end.min(size) - at).await?;
            let end = at + status.len;
            if !self.takes(&status) {
                at = end;
                continue;
            }
            let from = at / unit * unit;
            let to = end.next_multiple_of(unit).min(from + PIECE_BYTES.next_multiple_of(unit)).min(size);
            let _alone = self.locks.acquire(from, to, RangeMode::Exclusive).await;
            self.copy_alone(from..to).await?;
            at = to;
        }
        Ok(())
    }

    async fn copy_alone(&self, range: Range<u64>) -> Result<(), Error> {
        let mut at = range.start;
        while at < range.end {
            let status = self.over.block_status(at, range.end - at).await?;
            let len = status.len.min(range.end - at);
            if self.takes(&status) {
                self.copy_piece(at, len).await?;
            }
            at += len;
        }
        Ok(())
    }

    async fn copy_piece(&self, at: u64, len: u64) -> Result<(), Error> {
        // At most a piece, or a cluster.
        let buf = IoBuf::try_uninit(len as usize).ok_or_else(|| block::no_memory(self.over.name()))?;
        let (result, buf) = self.over.read(at, buf, Hints::NONE).await;
        let kind = result?;
        self.over.about_to(Step::CorWrite);
        match kind {
            ReadKind::Data => self.over.write(at, buf.freeze().into(), Hints::NONE).await,
            ReadKind::Zeroes => self.over.zero(at, len, ZeroOptions { unmap: true, fast_only: false }).await,
        }
    }

    async fn change(
        &self,
        offset: u64,
        len: u64,
        change: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        let _shared = self.locks.acquire(offset, offset.saturating_add(len), RangeMode::Shared).await;
        change.await
    }
}

impl Block for CopyOnRead {
    fn driver(&self) -> &'static str {
        "copy-on-read"
    }

    fn over(&self) -> Option<&Arc<dyn Block>> {
        Some(&self.over)
    }

    fn capabilities(&self) -> Capabilities {
        let below = self.over.capabilities();
        Capabilities { cached: below.cached && below.read_only, ..below }
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> Option<ReadKind> {
        match self.over.capabilities().read_only {
            true => self.over.try_read(offset, buf, hints),
            // It may have to be copied.
            false => None,
        }
    }

    fn read(
        &self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(async move {
            let end = offset.saturating_add(buf.len() as u64);
            let (read, buf) = self.over.read(offset, buf, hints).await;
            if read.is_ok()
                && !self.over.capabilities().read_only
                && let Err(error) = self.copy(offset..end).await
            {
                return (Err(error), buf);
            }
            (read, buf)
        })
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        let len = data.len() as u64;
        Box::pin(self.change(offset, len, async move { self.over.write(offset, data, hints).await }))
    }

    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(self.change(offset, len, async move { self.over.zero(offset, len, options).await }))
    }

    fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(self.change(offset, len, async move { self.over.discard(offset, len).await }))
    }
}
