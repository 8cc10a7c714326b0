//! What arrives for a request that is on its way.

use std::ops::Range;

use memory::IoBuf;
use wire::nbd::{Chunk, Descriptor, ErrorCode};

use crate::nbd::ask::{Ask, What};
use crate::nbd::errors::Error;

/// Most chunks of one reply that bring an error: one tells everything.
const ERRORS_MAX: u32 = 16;

/// What became of a request.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) result: Result<(), Error>,
    /// Of a read: its buffer, filled if it succeeded. None if it went with the connection.
    pub(crate) buf: Option<IoBuf>,
    /// Of a status: from the request's offset on.
    pub(crate) extents: Vec<Descriptor>,
}

/// What the server sends cannot be.
pub(crate) type Broken = String;

/// What has arrived of a reply.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    buf: Option<IoBuf>,
    coverage: Coverage,
    extents: Vec<Descriptor>,
    failure: Option<Error>,
    errors: u32,
}

impl Incoming {
    /// Nothing yet; data of a read goes into `buf`.
    pub(crate) fn into_buf(buf: Option<IoBuf>) -> Self {
        Self { buf, ..Self::default() }
    }

    /// Where in its buffer `len` bytes for `offset` belong, with the buffer, which must come back by [`Incoming::put_back`].
    pub(crate) fn take_buf(&mut self, ask: &Ask, offset: u64, len: u64) -> Result<(IoBuf, usize), Broken> {
        let at = self.arrives(ask, offset, len)?;
        let buf = self.buf.take().ok_or("data for a request that is no read")?;
        Ok((buf, at))
    }

    pub(crate) fn put_back(&mut self, buf: IoBuf) {
        self.buf = Some(buf);
    }

    /// A chunk other than data.
    pub(crate) fn take_chunk(
        &mut self,
        ask: &Ask,
        chunk: &Chunk<'_>,
        context: Option<u32>,
    ) -> Result<(), Broken> {
        match chunk {
            Chunk::None => Ok(()),
            Chunk::Data { .. } => Err("data in the wrong place".to_owned()),
            Chunk::Hole { offset, len } => self.hole(ask, *offset, u64::from(*len)),
            Chunk::BlockStatus { context: found, descriptors } => {
                if Some(*found) != context || ask.kind != What::Status || !self.extents.is_empty() {
                    return Err(format!("a status of context {found}, which was not asked for"));
                }
                self.extents = descriptors.iter().collect();
                Ok(())
            }
            Chunk::Error { code, message, .. } => {
                self.errors += 1;
                if self.errors > ERRORS_MAX {
                    return Err(format!("more than {ERRORS_MAX} errors for one request"));
                }
                self.fail(*code, message);
                Ok(())
            }
        }
    }

    /// The reply, if nothing more comes of it.
    pub(crate) fn end(mut self) -> Reply {
        let result = self.failure.take().map_or(Ok(()), Err);
        self.end_with(result)
    }

    /// The reply, whatever has arrived.
    pub(crate) fn end_with(self, result: Result<(), Error>) -> Reply {
        Reply { result, buf: self.buf, extents: self.extents }
    }

    /// Where in the buffer bytes for `offset` belong.
    fn arrives(&mut self, ask: &Ask, offset: u64, len: u64) -> Result<usize, Broken> {
        let outside =
            || format!("{len} bytes at {offset} answer a request for {} at {}", ask.len, ask.offset);
        let start = offset.checked_sub(ask.offset).ok_or_else(outside)?;
        let end = start.checked_add(len).filter(|&end| end <= ask.len).ok_or_else(outside)?;
        if ask.kind != What::Read || !self.coverage.add(start..end) {
            return Err(outside());
        }
        usize::try_from(start).map_err(|_| "a read is longer than memory".to_owned())
    }

    fn hole(&mut self, ask: &Ask, offset: u64, len: u64) -> Result<(), Broken> {
        let at = self.arrives(ask, offset, len)?;
        let end = at.saturating_add(usize::try_from(len).unwrap_or(usize::MAX));
        let buf = self.buf.as_mut().ok_or("a hole for a request that is no read")?;
        buf.get_mut(at..end).ok_or("a hole beyond the buffer")?.fill(0);
        Ok(())
    }

    pub(crate) fn fail(&mut self, code: ErrorCode, message: &[u8]) {
        let message = String::from_utf8_lossy(message).chars().filter(|c| !c.is_control()).collect();
        self.failure.get_or_insert(Error::Refused { code, message });
    }

    /// Whether all has arrived that was asked for.
    pub(crate) fn check_whole(&self, ask: &Ask) -> Result<(), Broken> {
        if self.failure.is_some() {
            return Ok(());
        }
        match &ask.kind {
            What::Read if !self.coverage.is_whole(ask.len) => {
                Err(format!("the reply to a read of {} bytes lacks some of them", ask.len))
            }
            What::Status if self.extents.is_empty() => Err("the reply to a status has no extents".to_owned()),
            _ => Ok(()),
        }
    }
}

/// Most separate pieces of one read that are held in mind: servers send holes and data in order, so that there is one.
const PIECES_MAX: usize = 1024;

/// The ranges that arrived, in order, none touching another.
#[derive(Debug, Default)]
struct Coverage {
    pieces: Vec<Range<u64>>,
}

impl Coverage {
    /// Notes that `range` arrives; false if it is empty, a part of it did before, or there are too many pieces.
    fn add(&mut self, range: Range<u64>) -> bool {
        let at = self.pieces.partition_point(|piece| piece.end <= range.start);
        let is_free = self.pieces.get(at).is_none_or(|next| range.end <= next.start);
        if range.is_empty() || !is_free || self.pieces.len() == PIECES_MAX {
            return false;
        }
        self.pieces.insert(at, range);
        self.join(at);
        if at > 0 {
            self.join(at - 1);
        }
        true
    }

    /// Makes one piece of two that touch.
    fn join(&mut self, at: usize) {
        if let Some([piece, next]) = self.pieces.get_mut(at..at + 2)
            && piece.end == next.start
        {
            piece.end = next.end;
            self.pieces.remove(at + 1);
        }
    }

    /// Whether all of `len` bytes have arrived.
    fn is_whole(&self, len: u64) -> bool {
        len == 0 || matches!(self.pieces.as_slice(), [only] if *only == (0..len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a read that no chunk brought would show what the buffer held before: another guest's data.
    #[test]
    fn a_read_is_whole_when_each_byte_arrived_once() {
        let orders: [&[Range<u64>]; 4] =
            [&[0..4, 4..8], &[4..8, 0..4], &[0..2, 6..8, 2..6], &[2..4, 6..8, 4..6, 0..2]];
        for order in orders {
            let mut coverage = Coverage::default();
            for (at, range) in order.iter().enumerate() {
                assert!(!coverage.is_whole(8), "{order:?}");
                assert!(coverage.add(range.clone()), "{order:?} at {at}");
                assert!(!coverage.add(range.clone()), "{order:?} twice");
            }
            assert!(coverage.is_whole(8), "{order:?}: {coverage:?}");
        }
        for wrong in [[0..4, 3..8], [4..8, 0..5], [0..4, 1..2], [2..3, 0..8]] {
            let mut coverage = Coverage::default();
            let [first, second] = wrong.clone();
            assert!(coverage.add(first) && !coverage.add(second), "{wrong:?}");
        }
        let mut coverage = Coverage::default();
        let added = (0..10_000).take_while(|at| coverage.add(at * 2..at * 2 + 1)).count();
        assert_eq!(added, PIECES_MAX);
    }
}
