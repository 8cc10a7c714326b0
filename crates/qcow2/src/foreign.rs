//! Requests on memory of others (a guest's): filled and written in place where one plain range of the file answers for them.
//!
//! Bytes that the engine has to look at, or to keep while it allocates, are copied first: their owner may change them
//! at any time.

use std::sync::Arc;

use block::{Blame, BlockFuture, ReadKind};
use futures_util::future::join_all;
use storage::{ForeignBytes, Hints, IoBuf, Step as EngineStep, Storage, about_to};

use crate::Error;
use crate::below::BelowHeld;
use crate::guest_range::GuestRange;
use crate::image::{Inner, Qcow2};
use crate::read::{Located, PIECES_AT_ONCE, Source, Step};

impl Qcow2 {
    /// As [`Qcow2::read`], into memory of others: in place, but for clusters that are compressed or decrypted by the guest's offset.
    pub fn read_into(
        &self,
        offset: u64,
        memory: ForeignBytes,
        hints: Hints,
    ) -> BlockFuture<'_, Result<ReadKind, Error>> {
        Box::pin(async move {
            let len = memory.len() as u64;
            self.inner.check_range(offset, len)?;
            let result = {
                let _pass = self.inner.enter().await?;
                self.inner.check_range(offset, len)?;
                self.inner.read_into(offset, memory, hints).await
            };
            self.inner.reporting(result).await
        })
    }

    /// As [`Qcow2::write`], of memory of others: in place where the range has its place in the file already, otherwise through a copy.
    pub fn write_from(
        &self,
        offset: u64,
        memory: ForeignBytes,
        hints: Hints,
    ) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.inner.check_range(offset, memory.len() as u64)?;
            let result = self.inner.write_from(offset, memory, hints).await;
            self.inner.reporting(result).await
        })
    }
}

impl Inner {
    /// As [`Inner::try_read`], into memory of others.
    pub(crate) fn try_read_into(&self, offset: u64, memory: &ForeignBytes, hints: Hints) -> Option<ReadKind> {
        let _pass = self.turns.gate.try_enter()?;
        let len = memory.len();
        if offset.checked_add(len as u64).is_none_or(|end| end > self.size()) {
            return None;
        }
        let (mut done, held) = (0, BelowHeld::default());
        while done < len {
            let guest = offset + done as u64;
            let wanted = GuestRange::at(guest, (len - done) as u64);
            let Ok(Step::Located(located)) = self.try_locate(&held, wanted) else { return None };
            // At most what is left of `memory`.
            let end = done + located.len as usize;
            let is_whole = (done, end) == (0, len);
            // The usual request is one piece and needs no splitting.
            let slice = (!is_whole).then(|| memory.slice(done, end));
            match try_piece_into(&located, guest, slice.as_ref().unwrap_or(memory), hints)? {
                ReadKind::Zeroes if is_whole => return Some(ReadKind::Zeroes),
                ReadKind::Zeroes => memory.fill_with_zeroes(done, end),
                ReadKind::Data => {}
            }
            done = end;
        }
        Some(ReadKind::Data)
    }

    /// Fills `memory` from `offset`. The caller holds a pass.
    async fn read_into(&self, offset: u64, memory: ForeignBytes, hints: Hints) -> Result<ReadKind, Error> {
        let (held, len) = (BelowHeld::default(), memory.len());
        let (mut done, mut kind) = (0, ReadKind::Zeroes);
        while done < len {
            let mut reads = Vec::new();
            let mut located = Ok(());
            while done < len && reads.len() < PIECES_AT_ONCE {
                let guest = offset + done as u64;
                match self.locate(&held, GuestRange::at(guest, (len - done) as u64)).await {
                    Ok(piece) => {
                        // At most what is left of `memory`.
                        let end = done + piece.len as usize;
                        reads.push(self.read_piece_into(guest, piece, memory.slice(done, end), hints));
                        done = end;
                    }
                    Err(error) => {
                        located = Err(error);
                        break;
                    }
                }
            }
            for read in join_all(reads).await {
                if read? == ReadKind::Data {
                    kind = ReadKind::Data;
                }
            }
            located?;
        }
        Ok(kind)
    }

    /// Fills `memory` with what was located at `guest`, all of which is in one place.
    async fn read_piece_into(
        &self,
        guest: u64,
        located: Located<'_>,
        memory: ForeignBytes,
        hints: Hints,
    ) -> Result<ReadKind, Error> {
        match located.source {
            Source::Zero { .. } => {
                memory.fill_with_zeroes(0, memory.len());
                Ok(ReadKind::Zeroes)
            }
            Source::Plain { storage, offset } => {
                about_to(storage, EngineStep::ReadAio);
                let read = storage.read_into(offset.0, memory, hints).await;
                read.map(|()| ReadKind::Data)
                    .map_err(|error| Blame::new(storage.name()).io("reading data")(error))
            }
            Source::Block(block) if !block.changes() => block.read_into(guest, memory, hints).await,
            Source::Block(_) | Source::Ciphered { .. } | Source::Compressed { .. } => {
                let buf = IoBuf::for_request(memory.len());
                let buf = buf.map_err(Blame::new(self.medium.file.name()).io("reading data"))?;
                let (result, buf) = self.read_piece(guest, located, buf, hints).await;
                if result.is_ok() {
                    memory.copy_from(0, &buf);
                }
                result
            }
        }
    }

    async fn write_from(
        self: &Arc<Self>,
        offset: u64,
        memory: ForeignBytes,
        hints: Hints,
    ) -> Result<(), Error> {
        self.check_writable()?;
        if memory.is_empty() {
            return Ok(());
        }
        let range = GuestRange::at(offset, memory.len() as u64);
        let pass = self.enter_to_change(range).await?;
        if let Some(host) = self.place_of(range)? {
            let write = async move |medium: &dyn Storage| medium.write_from(host.0, memory, hints).await;
            return self.write_in_place(pass, host, range.len(), write).await;
        }
        drop(pass);
        let copy = memory.to_bytes().map_err(|why| block::not_copied(self.medium.file.name(), why))?;
        self.write(offset, copy.into(), hints).await
    }
}

/// Fills `memory` with what was located at `guest`, all of which is in one place, if nothing has to be waited for. Zeroes leave it as it was.
fn try_piece_into(
    located: &Located<'_>,
    guest: u64,
    memory: &ForeignBytes,
    hints: Hints,
) -> Option<ReadKind> {
    match located.source {
        Source::Zero { .. } => Some(ReadKind::Zeroes),
        Source::Plain { storage, offset } => {
            storage.try_read_into(offset.0, memory, hints).then_some(ReadKind::Data)
        }
        Source::Block(block) => block.try_read_into(guest, memory, hints),
        Source::Ciphered { .. } | Source::Compressed { .. } => None,
    }
}
