//! `copy-before-write`: what is about to be overwritten is copied to a target first, so that the disk can still be read as it was
//! when the filter was put over it ([`crate::SnapshotAccess`]).
//!
//! Order: a change reaches the disk after everything that it overwrites is in the target, unless the snapshot is given up
//! ([`crate::OnError::BreakSnapshot`]). Nothing is flushed for that: after a crash the target is worth nothing, and the disk has what was
//! acknowledged.

use std::ops::Range;
use std::sync::Arc;

use block::{Block, BlockFuture, Error, ZeroOptions};
use memory::IoVec;
use storage::Hints;

use crate::snapshot::{Policy, Snapshot};

/// The filter.
#[derive(Debug)]
pub struct CopyBeforeWrite {
    over: Arc<dyn Block>,
    snapshot: Arc<Snapshot>,
}

impl CopyBeforeWrite {
    /// Over `over`, whose old content goes to `target`: all of it, or only units that `chosen` touches. The moment of the snapshot is this one, or the last one before writes go
    /// through the filter.
    ///
    /// # Errors
    /// When the target is smaller than the disk, or cannot be written.
    pub fn new(
        over: Arc<dyn Block>,
        target: Arc<dyn Block>,
        policy: Policy,
        chosen: Option<&[Range<u64>]>,
    ) -> Result<Self, Error> {
        let snapshot = Snapshot::new(Arc::clone(&over), target, policy, chosen)?;
        Ok(Self { over, snapshot })
    }

    /// The disk as it was.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    async fn before(
        &self,
        offset: u64,
        len: u64,
        change: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        self.snapshot.save(offset..offset.saturating_add(len)).await?;
        change.await
    }
}

impl Block for CopyBeforeWrite {
    fn driver(&self) -> &'static str {
        "copy-before-write"
    }

    fn over(&self) -> Option<&Arc<dyn Block>> {
        Some(&self.over)
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        let len = data.len() as u64;
        Box::pin(self.before(offset, len, async move { self.over.write(offset, data, hints).await }))
    }

    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(self.before(offset, len, async move { self.over.zero(offset, len, options).await }))
    }

    fn close(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let closed = self.over.close().await;
            closed.and(self.snapshot.target().close().await)
        })
    }

    fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(self.before(offset, len, async move { self.over.discard(offset, len).await }))
    }
}
