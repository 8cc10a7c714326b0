//! A disk below an image that clients go on writing.
//!
//! What they overwrite is written to the image first ([`Block::changes`]). So what was read from below is what the image stands for as long as
//! the image has not got the bytes meanwhile; where it has, they are read from it.

use block::{Block, ReadKind};
use storage::{Hints, IoBuf};

use crate::Error;
use crate::below::BelowHeld;
use crate::guest_range::GuestRange;
use crate::image::Inner;
use crate::read::Source;

impl Inner {
    /// Whether what is below changes: zeroes that are there now prove nothing.
    pub(crate) fn is_over_changing(&self) -> bool {
        self.below.load().as_ref().is_some_and(|lower| lower.block().changes())
    }

    /// Fills `buf` with what is at `guest`, all of which was found to be in `block`.
    pub(crate) async fn read_from_changing(
        &self,
        block: &dyn Block,
        guest: u64,
        buf: IoBuf,
        hints: Hints,
    ) -> (Result<ReadKind, Error>, IoBuf) {
        let range = GuestRange::at(guest, buf.len() as u64);
        let (result, buf) = block.read(guest, buf, hints).await;
        match self.is_still_below(block, range).await {
            Ok(true) => (result, buf),
            // Each time round, more of it is in this image.
            Ok(false) => self.read(guest, buf, hints).await,
            Err(error) => (Err(error), buf),
        }
    }

    /// Whether what was asked of `block` for all of `range` still holds: always, unless it changes and this image has some of the range now.
    pub(crate) async fn is_still_below(&self, block: &dyn Block, range: GuestRange) -> Result<bool, Error> {
        if !block.changes() {
            return Ok(true);
        }
        let (held, mut left) = (BelowHeld::default(), range);
        while !left.is_empty() {
            let located = self.locate(&held, left).await?;
            if !matches!(located.source, Source::Block(_)) {
                return Ok(false);
            }
            left = left.behind(located.len);
        }
        Ok(true)
    }
}
