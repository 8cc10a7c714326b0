//! Reading from the source, also from one that cannot be read everywhere.

use block::{Block, Hints, ReadKind};
use memory::{IoBuf, IoBytes};

use crate::counters::{Counters, Report};
use crate::error::{Action, Error, Side};

/// What is given up at once where the source cannot be read.
pub(crate) const SALVAGED_BYTES_MIN: usize = 512;

/// Bytes of the source; `None` where its map says zeroes. With `salvage` what cannot be read becomes zeroes, in units of
/// [`SALVAGED_BYTES_MIN`], and is counted.
pub(crate) async fn read(
    source: &dyn Block,
    offset: u64,
    len: usize,
    salvage: bool,
    hints: Hints,
    counters: &Counters,
) -> Result<Option<IoBytes>, Error> {
    let (result, buf) = source.read(offset, IoBuf::uninit(len), hints).await;
    match result {
        Ok(ReadKind::Zeroes) => Ok(None),
        Ok(ReadKind::Data) => {
            counters.add_read(len as u64);
            Ok(Some(buf.freeze()))
        }
        Err(_) if salvage => Ok(Some(salvaged(source, offset, len, counters).await)),
        Err(error) => Err(Error::request(Side::Source, source, Action::Read, offset)(error)),
    }
}

/// Halves what cannot be read until the parts can, or are small enough to give up.
async fn salvaged(source: &dyn Block, offset: u64, len: usize, counters: &Counters) -> IoBytes {
    let mut whole = IoBuf::zeroed(len);
    let mut parts: Vec<_> = std::iter::once(0..len).collect();
    while let Some(part) = parts.pop() {
        let (result, bytes) =
            source.read(offset + part.start as u64, IoBuf::uninit(part.len()), Hints::NONE).await;
        match result {
            Ok(_) => {
                counters.add_read(part.len() as u64);
                whole[part].copy_from_slice(&bytes);
            }
            Err(_) if part.len() > SALVAGED_BYTES_MIN => {
                // Below the end: a length above the unit is at least twice as long as it, or ends inside the second.
                let middle = part.start + (part.len() / 2).next_multiple_of(SALVAGED_BYTES_MIN);
                parts.extend([middle..part.end, part.start..middle]);
            }
            Err(error) => {
                counters.add_unreadable(part.len() as u64);
                counters.report(Report::Unreadable(offset + part.start as u64, &error));
            }
        }
    }
    whole.freeze()
}
