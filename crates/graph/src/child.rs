//! A disk below a filter, as the filter sees it. Its requests pass the disk's front as those of doors do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use block::pace::Unpaced;
use block::{Block, BlockFuture, BlockStatus, Capabilities, Error, ReadKind, Stored, Takes, ZeroOptions};
use storage::{ForeignBytes, Hints, IoBuf, IoVec, Step};

use crate::disk::Disk;

/// A disk below a filter.
#[derive(Debug)]
pub(crate) struct Child {
    /// What messages call it: that of the first disk that was here.
    name: String,
    /// Another one is put here only while the filter's own disk is drained ([`crate::Graph::reopen`]).
    disk: ArcSwap<Disk>,
    owner: Owner,
    /// One task keeps the disk and the filter's own at rest ([`crate::AtRest`]): requests are that task's.
    asks_at_rest: AtomicBool,
}

/// The owner of the disk below a filter: it closes the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The filter. The disk has no other user.
    Filter,
    /// The graph, in which it is a node.
    Graph,
}

impl Child {
    /// `disk`, below a filter.
    pub(crate) fn new(disk: Arc<Disk>, owner: Owner) -> Arc<Self> {
        let name = Block::name(&*disk).to_owned();
        Arc::new(Self { name, disk: ArcSwap::new(disk), owner, asks_at_rest: AtomicBool::new(false) })
    }

    /// The disk of now.
    pub(crate) fn disk(&self) -> Arc<Disk> {
        self.disk.load_full()
    }

    /// The same, if only the filter has it.
    pub(crate) fn owned(&self) -> Option<Arc<Disk>> {
        (self.owner == Owner::Filter).then(|| self.disk())
    }

    /// Puts another disk here. No request of the filter is under way.
    pub(crate) fn set(&self, disk: Arc<Disk>) {
        self.disk.store(disk);
    }

    /// Whether reads, block status and flushes reach the disk while requests are kept out.
    pub(crate) fn ask_at_rest(&self, asks: bool) {
        self.asks_at_rest.store(asks, Ordering::SeqCst);
    }

    /// The disk's root, for the task that keeps requests out of the disk.
    fn at_rest(&self, disk: &Disk) -> Option<Arc<dyn Block>> {
        self.asks_at_rest.load(Ordering::SeqCst).then(|| disk.root())
    }
}

impl Block for Child {
    fn driver(&self) -> &'static str {
        self.disk.load().root().driver()
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.disk.load().size()
    }

    fn capabilities(&self) -> Capabilities {
        Block::capabilities(&**self.disk.load())
    }

    fn about_to(&self, step: Step) {
        self.disk.load().about_to(step);
    }

    fn subcluster_bytes(&self) -> Option<u64> {
        self.disk.load().subcluster_bytes()
    }

    fn below(&self) -> Option<Arc<dyn Block>> {
        Some(self.disk.load().root())
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> Option<ReadKind> {
        self.disk.load().try_read(offset, buf, hints)
    }

    fn try_read_into(&self, offset: u64, memory: &ForeignBytes, hints: Hints) -> Option<ReadKind> {
        self.disk.load().try_read_into(offset, memory, hints)
    }

    fn read(
        &self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        let disk = self.disk();
        Box::pin(async move {
            match self.at_rest(&disk) {
                Some(root) => root.read(offset, buf, hints).await,
                None => disk.read(offset, buf, hints).await,
            }
        })
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        let disk = self.disk();
        Box::pin(async move { disk.write(offset, data, false, hints).await })
    }

    fn write_compressed(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        let disk = self.disk();
        Box::pin(async move { disk.write_compressed(offset, data, hints).await })
    }

    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        let disk = self.disk();
        Box::pin(async move { disk.zero(offset, len, options, false, &Unpaced).await })
    }

    fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), Error>> {
        let disk = self.disk();
        Box::pin(async move { disk.discard(offset, len, false, &Unpaced).await })
    }

    fn flush(&self) -> BlockFuture<'_, Result<(), Error>> {
        let disk = self.disk();
        Box::pin(async move {
            match self.at_rest(&disk) {
                Some(_) => disk.flush_inside().await,
                None => disk.flush().await,
            }
        })
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        let disk = self.disk();
        Box::pin(async move {
            match self.at_rest(&disk) {
                Some(root) => root.block_status(offset, len).await,
                None => disk.block_status(offset, len).await,
            }
        })
    }

    fn stored(&self, offset: u64, len: u64, wanted: Takes) -> BlockFuture<'_, Result<Option<Stored>, Error>> {
        let disk = self.disk();
        Box::pin(async move {
            match self.at_rest(&disk) {
                Some(root) => root.stored(offset, len, wanted).await,
                None => disk.stored(offset, len, wanted).await,
            }
        })
    }

    fn takes(&self) -> Option<Takes> {
        Block::takes(&**self.disk.load())
    }

    fn take(&self, offset: u64, stored: Stored) -> BlockFuture<'_, Result<(), Error>> {
        let disk = self.disk();
        Box::pin(async move { Block::take(&*disk, offset, stored).await })
    }

    fn close(&self) -> BlockFuture<'_, Result<(), Error>> {
        let disk = self.disk();
        Box::pin(async move {
            match self.owner {
                Owner::Filter => {
                    disk.idle().await;
                    disk.close().await
                }
                Owner::Graph if disk.read_only() => Ok(()),
                Owner::Graph => disk.flush().await,
            }
        })
    }
}
