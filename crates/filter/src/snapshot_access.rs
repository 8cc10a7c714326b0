//! `snapshot-access`: the disk below a `copy-before-write` filter as it was when that was put over it. It is read, and parts of it can be given up (discarded), but it is never written.

use std::sync::Arc;

use block::{Blame, Block, BlockFuture, BlockStatus, Capabilities, Error, ReadKind};
use memory::IoBuf;
use storage::Hints;

use crate::copy_before_write::CopyBeforeWrite;
use crate::snapshot::Snapshot;

/// The disk as it was.
#[derive(Debug)]
pub struct SnapshotAccess {
    snapshot: Arc<Snapshot>,
    below: Arc<dyn Block>,
    name: String,
}

impl SnapshotAccess {
    /// Of the filter that `below` is, or that it leads to without anything between.
    ///
    /// # Errors
    /// When that is another block.
    pub fn new(below: &Arc<dyn Block>) -> Result<Self, Error> {
        let found = block::layers(Arc::clone(below)).take(2);
        let filter = found.into_iter().find_map(|block| {
            block.downcast_ref::<CopyBeforeWrite>().map(|filter| Arc::clone(filter.snapshot()))
        });
        let name = below.name().to_owned();
        match filter {
            Some(snapshot) => Ok(Self { snapshot, below: Arc::clone(below), name }),
            None => {
                let what =
                    format!("it is {}; only a copy-before-write filter has a snapshot", below.driver());
                Err(Blame::new(&name).invalid(what))
            }
        }
    }
}

impl Block for SnapshotAccess {
    fn driver(&self) -> &'static str {
        "snapshot-access"
    }

    fn refusal(&self) -> &'static str {
        "a snapshot is not written"
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.snapshot.size()
    }

    fn capabilities(&self) -> Capabilities {
        let alignment = self.snapshot.source().capabilities().alignment;
        let cluster_bytes = Some(self.snapshot.unit_bytes());
        Capabilities { read_only: true, alignment, cached: false, cluster_bytes }
    }

    fn read(
        &self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(self.snapshot.read(offset, buf, hints))
    }

    /// The snapshot does not keep these bytes any more: a client that read them does not need them again.
    fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(self.snapshot.give_up(offset..offset.saturating_add(len)))
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        Box::pin(self.snapshot.status(offset, len))
    }

    fn close(&self) -> BlockFuture<'_, Result<(), Error>> {
        self.below.close()
    }
}
