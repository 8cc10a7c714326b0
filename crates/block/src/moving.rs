//! A block that is another one from time to time: it is found anew for each request.

use std::fmt;
use std::sync::Arc;

use memory::{IoBuf, IoVec};

use crate::{Blame, Block, BlockFuture, BlockStatus, Capabilities, Error, Hints, ReadKind, ZeroOptions};

/// How the block is found. What it reads as does not depend on which one it is at the moment.
pub trait FindBlock: fmt::Debug + Send + Sync + 'static {
    /// The block that is there now.
    ///
    /// # Errors
    /// When there is none any more.
    fn now(&self) -> Result<Arc<dyn Block>, Error>;

    /// What messages call it.
    fn name(&self) -> &str;

    /// In place of [`Block::changes`].
    fn changes(&self) -> bool {
        false
    }

    /// What a job that commits into it writes to. To all others it is read-only.
    fn writer(&self) -> Option<Arc<dyn Block>> {
        None
    }

    /// Why it is not written.
    fn refusal(&self) -> &'static str;
}

/// The block that `F` finds. A request that the block did not outlast is made once more: it may have been closed meanwhile, and its file given to others.
#[derive(Debug)]
pub struct MovingBlock<F> {
    find: F,
    /// What is known of it where there is no block any more: what it was at first.
    driver: &'static str,
    size: u64,
    capabilities: Capabilities,
}

impl<F: FindBlock> MovingBlock<F> {
    /// What `find` finds from now on; `first` is what is there at first.
    pub fn new(find: F, first: Option<&dyn Block>) -> Self {
        let nothing = Capabilities { read_only: true, alignment: 1, cached: false, cluster_bytes: None };
        let (driver, size, capabilities) =
            first.map_or(("", 0, nothing), |block| (block.driver(), block.size(), block.capabilities()));
        Self { find, driver, size, capabilities }
    }

    /// How the block is found.
    pub fn find(&self) -> &F {
        &self.find
    }

    fn is_still(&self, block: &Arc<dyn Block>) -> bool {
        self.find.now().is_ok_and(|now| Arc::ptr_eq(&now, block))
    }

    fn writer(&self) -> Result<Arc<dyn Block>, Error> {
        self.find.writer().ok_or_else(|| Blame::new(self.find.name()).refused(self.find.refusal()))
    }
}

impl<F: FindBlock> Block for MovingBlock<F> {
    fn driver(&self) -> &'static str {
        self.find.now().map_or(self.driver, |block| block.driver())
    }

    fn refusal(&self) -> &'static str {
        self.find.refusal()
    }

    fn name(&self) -> &str {
        self.find.name()
    }

    fn size(&self) -> u64 {
        self.find.now().map_or(self.size, |block| block.size())
    }

    fn capabilities(&self) -> Capabilities {
        let capabilities = self.find.now().map_or(self.capabilities, |block| block.capabilities());
        Capabilities { read_only: true, cached: false, ..capabilities }
    }

    fn changes(&self) -> bool {
        self.find.changes()
    }

    fn read(
        &self,
        offset: u64,
        mut buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(async move {
            loop {
                let block = match self.find.now() {
                    Ok(block) => block,
                    Err(error) => return (Err(error), buf),
                };
                let result;
                (result, buf) = block.read(offset, buf, hints).await;
                if self.is_still(&block) {
                    return (result, buf);
                }
            }
        })
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        let writer = self.writer();
        Box::pin(async move { writer?.write(offset, data, hints).await })
    }

    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        let writer = self.writer();
        Box::pin(async move { writer?.zero(offset, len, options).await })
    }

    fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), Error>> {
        let writer = self.writer();
        Box::pin(async move { writer?.discard(offset, len).await })
    }

    fn flush(&self) -> BlockFuture<'_, Result<(), Error>> {
        let writer = self.find.writer();
        Box::pin(async move {
            match writer {
                Some(writer) => writer.flush().await,
                None => Ok(()),
            }
        })
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        Box::pin(async move {
            loop {
                let block = self.find.now()?;
                let status = block.block_status(offset, len).await;
                if self.is_still(&block) {
                    return status;
                }
            }
        })
    }
}
