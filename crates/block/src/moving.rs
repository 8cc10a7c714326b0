//! A block that is another one from time to time: it is found anew for each request.

use std::fmt;
use std::sync::Arc;

use buffer::{IoBuf, IoVec};

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

    /// In place of [`Block::driver`].
    fn driver(&self) -> &'static str;

    /// In place of [`Block::size`].
    fn size(&self) -> u64;

    /// Those of the block that is there now; [`MovingBlock`] makes them read-only and uncached.
    fn capabilities(&self) -> Capabilities;

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
pub struct MovingBlock<F>(pub F);

impl<F: FindBlock> MovingBlock<F> {
    fn is_still(&self, block: &Arc<dyn Block>) -> bool {
        self.0.now().is_ok_and(|now| Arc::ptr_eq(&now, block))
    }

    fn writer(&self) -> Result<Arc<dyn Block>, Error> {
        self.0.writer().ok_or_else(|| Blame::new(self.0.name()).refused(self.0.refusal()))
    }
}

impl<F: FindBlock> Block for MovingBlock<F> {
    fn driver(&self) -> &'static str {
        self.0.driver()
    }

    fn refusal(&self) -> &'static str {
        self.0.refusal()
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn size(&self) -> u64 {
        self.0.size()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { read_only: true, cached: false, ..self.0.capabilities() }
    }

    fn changes(&self) -> bool {
        self.0.changes()
    }

    fn read(
        &self,
        offset: u64,
        mut buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(async move {
            loop {
                let block = match self.0.now() {
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
        let writer = self.0.writer();
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
                let block = self.0.now()?;
                let status = block.block_status(offset, len).await;
                if self.is_still(&block) {
                    return status;
                }
            }
        })
    }
}
