//! What is known of the target before the copy: it decides what need not be written.

use block::{Block, Hints, ZeroOptions};
use buffer::{IoBuf, IoBytes};

use crate::counters::Counters;
use crate::error::{Action, Error, Side};
use crate::read::read;
use crate::runs::Before;

/// What the target reads as where the copy writes nothing.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// Nothing is known: zeroes are written unless the target's own map says that they are there.
    Unknown,
    /// Zeroes everywhere, as in an image that was just made.
    Zeroes,
    /// What this block reads as at the same offset, and zeroes behind its end.
    As(&'a dyn Block),
}

impl Content<'_> {
    /// What the target reads as at `offset`.
    pub(crate) async fn before(
        &self,
        offset: u64,
        len: usize,
        hints: Hints,
        counters: &Counters,
    ) -> Result<Before, Error> {
        match self {
            Self::Unknown => Ok(Before::Unknown),
            Self::Zeroes => Ok(Before::Zeroes),
            Self::As(block) => Ok(match bytes(*block, offset, len, hints, counters).await? {
                Some(bytes) => Before::Bytes(bytes),
                None => Before::Zeroes,
            }),
        }
    }
}

/// Bytes of `block`, zeroes behind its end; `None` if all are zeroes.
async fn bytes(
    block: &dyn Block,
    offset: u64,
    len: usize,
    hints: Hints,
    counters: &Counters,
) -> Result<Option<IoBytes>, Error> {
    let inside = block.size().saturating_sub(offset).min(len as u64) as usize;
    if inside == 0 {
        return Ok(None);
    }
    let Some(found) = read(block, offset, inside, false, hints, counters).await? else {
        return Ok(None);
    };
    if inside == len {
        return Ok(Some(found));
    }
    let mut whole = IoBuf::zeroed(len);
    whole[..inside].copy_from_slice(&found);
    Ok(Some(whole.freeze()))
}

/// Makes a range of `target` zeroes, where `known` does not say that it reads so.
pub(crate) async fn zero(
    target: &dyn Block,
    known: &Content<'_>,
    offset: u64,
    len: u64,
    unmap: bool,
    counters: &Counters,
) -> Result<(), Error> {
    let (proof, side) = match known {
        Content::Zeroes => return Ok(()),
        Content::Unknown => (target, Side::Target),
        Content::As(block) => (*block, Side::Source),
    };
    let (mut at, end) = (offset, offset + len);
    while at < end {
        let (zero, found) = match proof.size() {
            size if size <= at => (true, end - at),
            size => {
                let status = proof.block_status(at, end.min(size) - at).await;
                let status = status.map_err(Error::request(side, proof, Action::Status, at))?;
                // What an overlay does not say itself, the image below it will say.
                let is_said =
                    status.present || !(matches!(known, Content::Unknown) && target.awaits_backing());
                (status.zero && is_said, status.len)
            }
        };
        if !zero {
            let options = ZeroOptions { unmap, fast_only: false };
            let zeroed = target.zero(at, found, options).await;
            zeroed.map_err(Error::request(Side::Target, target, Action::Zero, at))?;
            counters.add_zeroed(found);
        }
        at += found;
    }
    Ok(())
}
