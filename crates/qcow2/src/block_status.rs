//! What an image says of a guest range, for tools and clients that ask before they read.

use block::{BlockFuture, BlockStatus};

use crate::Error;
use crate::below::BelowHeld;
use crate::image::Qcow2;
use crate::read::Source;

impl Qcow2 {
    /// The state of the disk at `offset`, for at most `len` bytes. Reads tables only.
    pub fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        Box::pin(async move {
            let range = self.inner.check_range(offset, len)?;
            if len == 0 {
                return Err(self.inner.medium.blame.invalid("the status of no bytes is not defined"));
            }
            let _pass = self.inner.enter().await?;
            self.inner.check_range(offset, len)?;
            let held = BelowHeld::default();
            let mut located = self.inner.locate(&held, range).await?;
            while let Source::Block(block) = located.source {
                let below = block.block_status(offset, located.len).await?;
                if self.inner.is_still_below(block, range.before(offset + below.len)).await? {
                    // Space that a layer below reserves for zeroes is not in this image's file. Of what changes below, nothing says what it will be.
                    let (depth, present) = (located.depth + below.depth, below.present && !block.changes());
                    return Ok(BlockStatus { depth, present, hole: below.zero, ..below });
                }
                located = self.inner.locate(&held, range).await?;
            }
            let status = BlockStatus::data(located.len, located.depth, None);
            Ok(match located.source {
                Source::Zero { explicit, host } => {
                    let hole = host.is_none() || !explicit || located.depth > 0;
                    BlockStatus {
                        present: explicit,
                        zero: true,
                        hole,
                        data: false,
                        offset: host.map(|host| host.0),
                        ..status
                    }
                }
                Source::Compressed { .. } => BlockStatus { compressed: true, ..status },
                Source::Plain { offset: host, .. } | Source::Ciphered { offset: host, .. } => {
                    BlockStatus { offset: Some(host.0), ..status }
                }
                // Answered above.
                Source::Block(_) => status,
            })
        })
    }
}
