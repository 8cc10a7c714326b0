//! What is known of the target before the copy: it decides what need not be written.

use std::ops::Range;

use block::{Block, Hints, ZeroOptions};
use memory::{IoBuf, IoBytes};

use crate::counters::Counters;
use crate::deliberate::{self, Bug};
use crate::error::{Action, Error, Side};
use crate::layers::{needs_zero, widened};
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
    /// Nothing is known, and what the target does not say itself will be said by an image that is put below it later, or that it is read with:
    /// zeroes are written in any case, and a cluster of the target that is written in part gets its rest from the source.
    Overlay,
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
            Self::Unknown | Self::Overlay => Ok(Before::Unknown),
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

/// How a range is made zeroes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Zeroing {
    /// Space may be given back.
    pub(crate) unmap: bool,
    /// Whether zeroes are needed is asked of whole units of so many bytes of the target.
    pub(crate) unit_bytes: u64,
    /// Zeroes before this offset of the target are written as data.
    pub(crate) written_before: u64,
}

/// Zeroes that are written as data at a time.
const WRITTEN_BYTES: u64 = 1 << 20;

/// Makes a range of `target` zeroes, where `known` does not say that it reads so.
pub(crate) async fn zero(
    target: &dyn Block,
    known: &Content<'_>,
    range: Range<u64>,
    how: Zeroing,
    counters: &Counters,
) -> Result<(), Error> {
    let (known, awaits_backing) = match known {
        Content::Overlay if deliberate::has(Bug::ZeroesLeftOut) => (&Content::Unknown, false),
        known => (known, target.awaits_backing()),
    };
    let (proof, side) = match known {
        Content::Zeroes => return Ok(()),
        Content::Overlay => return zero_all(target, range, how, counters).await,
        Content::Unknown => (target, Side::Target),
        Content::As(block) => (*block, Side::Source),
    };
    let mut at = range.start;
    // Units that need zeroes, from the first on.
    let mut needed: Option<Range<u64>> = None;
    while at < range.end {
        let size = proof.size();
        if size <= at {
            // Behind its end it reads as zeroes; only a target itself is never shorter than what is copied to it.
            break;
        }
        let status = proof.block_status(at, range.end.min(size) - at).await;
        let status = status.map_err(Error::request(side, proof, Action::Status, at))?;
        let found = at..at + status.len.min(range.end - at);
        at = found.end;
        if !needs_zero(known, &status, awaits_backing) {
            continue;
        }
        let is_asked_in_part = matches!(known, Content::As(_)) && deliberate::has(Bug::BaseAskedInPart);
        let units = widened(found, if is_asked_in_part { 1 } else { how.unit_bytes }, &range);
        at = at.max(units.end);
        needed = match needed {
            Some(before) if before.end >= units.start => Some(before.start..units.end),
            Some(before) => {
                zero_all(target, before, how, counters).await?;
                Some(units)
            }
            None => Some(units),
        };
    }
    match needed {
        Some(units) => zero_all(target, units, how, counters).await,
        None => Ok(()),
    }
}

async fn zero_all(
    target: &dyn Block,
    range: Range<u64>,
    how: Zeroing,
    counters: &Counters,
) -> Result<(), Error> {
    let mut at = range.start;
    while at < range.end.min(how.written_before) {
        let len = (range.end.min(how.written_before) - at).min(WRITTEN_BYTES);
        // At most the constant.
        let data = IoBytes::zeroed(len as usize);
        let written = target.write(at, data.into(), Hints::NONE).await;
        written.map_err(Error::request(Side::Target, target, Action::Write, at))?;
        counters.add_written(len);
        at += len;
    }
    let len = range.end - at;
    if len == 0 {
        return Ok(());
    }
    let options = ZeroOptions { unmap: how.unmap, fast_only: false };
    let zeroed = target.zero(at, len, options).await;
    zeroed.map_err(Error::request(Side::Target, target, Action::Zero, at))?;
    counters.add_zeroed(len);
    Ok(())
}
