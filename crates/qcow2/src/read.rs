//! Reading guest data.

use block::{Blame, ReadKind};
use futures_util::future::join_all;
use storage::{Hints, IoBuf, Step as EngineStep, about_to};

use crate::Error;
use crate::below::BelowHeld;
use crate::encryption::read_by_guest;
use crate::guest_range::GuestRange;
use crate::health::Contradiction;
use crate::image::Inner;
use crate::locate::{Located, Source, Step};

/// Pieces of one request that are read at the same time: enough to keep a device busy, bounded
/// whatever the image looks like.
pub(crate) const PIECES_AT_ONCE: usize = 64;

impl Inner {
    /// Reads without waiting; see [`crate::Qcow2::try_read`].
    pub(crate) fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> Option<ReadKind> {
        let _pass = self.turns.gate.try_enter()?;
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.size()) {
            return None;
        }
        let (mut guest, mut rest) = (offset, buf);
        let held = BelowHeld::default();
        while !rest.is_empty() {
            let wanted = GuestRange::at(guest, rest.len() as u64);
            let Ok(Step::Located(located)) = self.try_locate(&held, wanted) else { return None };
            let (piece, behind) = rest.split_at_mut(located.len as usize);
            match located.source {
                Source::Zero { .. } if guest == offset && behind.is_empty() => return Some(ReadKind::Zeroes),
                Source::Zero { .. } => piece.fill(0),
                Source::Plain { storage, offset } if storage.try_read(offset.0, piece, hints) => {}
                Source::Block(block) => match block.try_read(guest, piece, hints)? {
                    ReadKind::Data => {}
                    ReadKind::Zeroes if guest == offset && behind.is_empty() => {
                        return Some(ReadKind::Zeroes);
                    }
                    ReadKind::Zeroes => piece.fill(0),
                },
                Source::Plain { .. } | Source::Ciphered { .. } | Source::Compressed { .. } => return None,
            }
            guest += located.len;
            rest = behind;
        }
        Some(ReadKind::Data)
    }

    /// Fills `buf` from `offset`; beyond the disk there are zeroes. The caller holds a pass.
    pub(crate) async fn read(
        &self,
        offset: u64,
        mut buf: IoBuf,
        hints: Hints,
    ) -> (Result<ReadKind, Error>, IoBuf) {
        let mut done: Option<IoBuf> = None;
        let mut guest = offset;
        let held = BelowHeld::default();
        loop {
            // The usual request is one piece and needs neither splitting nor a list.
            let located = match self.locate_if_any(&held, GuestRange::at(guest, buf.len() as u64)).await {
                Ok(Some(located)) => located,
                Ok(None) => return (Ok(ReadKind::Data), joined(done, buf)),
                Err(error) => return (Err(error), joined(done, buf)),
            };
            if done.is_none() && located.len == buf.len() as u64 {
                return self.read_piece(guest, located, buf, hints).await;
            }
            let (result, filled, rest) = self.read_pieces(&held, guest, located, buf, hints).await;
            guest += filled.len() as u64;
            buf = rest;
            done = Some(joined(done, filled));
            if let Err(error) = result {
                return (Err(error), joined(done, buf));
            }
        }
    }

    async fn locate_if_any<'a>(
        &'a self,
        held: &'a BelowHeld,
        range: GuestRange,
    ) -> Result<Option<Located<'a>>, Error> {
        if range.is_empty() { Ok(None) } else { self.locate(held, range).await.map(Some) }
    }

    /// Reads up to [`PIECES_AT_ONCE`] pieces from the front of `buf` in parallel; gives back what
    /// was read and the rest.
    async fn read_pieces(
        &self,
        held: &BelowHeld,
        guest: u64,
        first: Located<'_>,
        mut buf: IoBuf,
        hints: Hints,
    ) -> (Result<(), Error>, IoBuf, IoBuf) {
        let mut reads = Vec::new();
        let first_len = first.len;
        let mut guest = guest + first_len;
        let piece = buf.split_to(first_len as usize);
        reads.push(self.read_piece(guest - first_len, first, piece, hints));
        let mut located = Ok(());
        while !buf.is_empty() && reads.len() < PIECES_AT_ONCE {
            match self.locate(held, GuestRange::at(guest, buf.len() as u64)).await {
                Ok(next) => {
                    let len = next.len;
                    guest += len;
                    let piece = buf.split_to(len as usize);
                    reads.push(self.read_piece(guest - len, next, piece, hints));
                }
                Err(error) => {
                    located = Err(error);
                    break;
                }
            }
        }
        let mut filled: Option<IoBuf> = None;
        let mut result = located;
        for (read, piece) in join_all(reads).await {
            filled = Some(joined(filled, piece));
            result = result.and(read.map(drop));
        }
        (result, joined(filled, buf.split_to(0)), buf)
    }

    /// Fills `buf` with what was located at `guest`, all of which is in one place.
    pub(crate) async fn read_piece(
        &self,
        guest: u64,
        located: Located<'_>,
        mut buf: IoBuf,
        hints: Hints,
    ) -> (Result<ReadKind, Error>, IoBuf) {
        match located.source {
            Source::Zero { .. } => {
                buf.fill(0);
                (Ok(ReadKind::Zeroes), buf)
            }
            Source::Plain { storage, offset } => {
                if !std::ptr::addr_eq(storage, &*self.medium.data) {
                    self.medium.about_to(EngineStep::ReadBackingAio);
                }
                about_to(storage, EngineStep::ReadAio);
                let (result, buf) = storage.read(offset.0, buf, hints).await;
                let result = result.map_err(|error| Blame::new(storage.name()).io("reading data")(error));
                (result.map(|()| ReadKind::Data), buf)
            }
            Source::Ciphered { layer, cipher, offset } => {
                let storage = &*layer.medium.data;
                about_to(storage, EngineStep::ReadAio);
                let (result, buf) = read_by_guest(storage, cipher, offset, guest, buf, hints).await;
                (result.map(|()| ReadKind::Data).map_err(layer.medium.blame.io("reading data")), buf)
            }
            Source::Block(block) => {
                self.medium.about_to(EngineStep::ReadBackingAio);
                match block.changes() {
                    false => block.read(guest, buf, hints).await,
                    true => Box::pin(self.read_from_changing(block, guest, buf, hints)).await,
                }
            }
            Source::Compressed { layer, cluster, skip } => {
                match layer.decompressed.content(&layer.medium, cluster).await {
                    Ok(bytes) => {
                        let skip = skip as usize;
                        let len = buf.len();
                        buf.copy_from_slice(&bytes[skip..skip + len]);
                        (Ok(ReadKind::Data), buf)
                    }
                    Err(error) => {
                        (layer.medium.noticing_corruption(Contradiction::Compressed, Err(error)), buf)
                    }
                }
            }
        }
    }
}

/// `next` appended to what is there already.
fn joined(done: Option<IoBuf>, next: IoBuf) -> IoBuf {
    match done {
        None => next,
        Some(mut done) => {
            done.rejoin(next);
            done
        }
    }
}
