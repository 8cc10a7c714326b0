//! Messages between this program and its worker: fixed sizes, little-endian, one a packet.
//!
//! The first message of each side is another one ([`crate::rbd::opening`]). Then the parent sends [`Request`]s and the worker one [`Answer`] to each,
//! in any order. Bytes go through a memory file that both have: request number `slot` has [`SLOT_BYTES`] of it for itself.

use net::dial::line;
use thiserror::Error;

/// Requests on their way at a time. librbd splits them by objects; more would only wait there.
pub(crate) const SLOTS: u32 = 64;
/// Most bytes of a read or a write, each of which has room in the shared memory.
pub(crate) const SLOT_BYTES: usize = 512 << 10;
/// The shared memory. Pages that nothing went through take none.
pub(crate) const MEMORY_BYTES: usize = SLOTS as usize * SLOT_BYTES;

/// Bytes of a request.
pub(crate) const REQUEST_BYTES: usize = 32;
/// Bytes of an answer.
pub(crate) const ANSWER_BYTES: usize = 32;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
    Discard,
    /// Reads as zeroes afterwards; space may be given back.
    Zero,
    /// Likewise, and the space is taken.
    ZeroKept,
    /// What is at the offset.
    Status,
    /// At least so many bytes as `len` says.
    Grow,
    /// At most so many.
    Shorten,
}

/// A request, so that another worker can be asked again. Reads and writes fit into a slot; of a change of size, the length is the new one.
pub(crate) type Ask = line::Ask<Kind>;

impl line::Kind for Kind {
    const FLUSH: Self = Self::Flush;

    /// What a lost discard leaves is as good.
    fn writes(&self) -> bool {
        matches!(self, Self::Write | Self::Zero | Self::ZeroKept)
    }
}

const KINDS: [Kind; 9] = [
    Kind::Read,
    Kind::Write,
    Kind::Flush,
    Kind::Discard,
    Kind::Zero,
    Kind::ZeroKept,
    Kind::Status,
    Kind::Grow,
    Kind::Shorten,
];

/// A message that cannot be one.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Comes back with the answer; its lower half is the slot.
    pub(crate) cookie: u64,
    pub(crate) kind: Kind,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Request {
    /// Where the bytes of a request with this cookie lie in the shared memory.
    pub(crate) fn place(cookie: u64) -> Option<usize> {
        let slot = cookie & u64::from(u32::MAX);
        let slot = usize::try_from(slot).ok().filter(|slot| *slot < SLOTS as usize)?;
        slot.checked_mul(SLOT_BYTES)
    }

    pub(crate) fn encode(&self) -> [u8; REQUEST_BYTES] {
        let kind = KINDS.iter().position(|kind| *kind == self.kind).unwrap_or_default() as u64;
        joined([self.cookie, kind, self.offset, self.len])
    }

    /// # Errors
    /// When it is none.
    pub(crate) fn decode(message: &[u8]) -> Result<Self, Malformed> {
        let mut rest = Cursor(message);
        let (cookie, kind, offset, len) = (rest.u64()?, rest.u64()?, rest.u64()?, rest.u64()?);
        rest.end()?;
        let kind = usize::try_from(kind).ok().and_then(|kind| KINDS.get(kind));
        let kind = *kind.ok_or(Malformed("a request of no kind"))?;
        Self::place(cookie).ok_or(Malformed("a request without a slot"))?;
        if matches!(kind, Kind::Read | Kind::Write) && len > SLOT_BYTES as u64 {
            return Err(Malformed("more bytes than a slot has"));
        }
        Ok(Self { cookie, kind, offset, len })
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) cookie: u64,
    /// 0, or the system's number of what failed.
    pub(crate) error: i32,
    /// Of a status: whether there is data. Otherwise false.
    pub(crate) is_data: bool,
    /// Of a read, the bytes that there were; of a status, for how many bytes it holds; of a change of size, the bytes of the image.
    pub(crate) value: u64,
}

impl Answer {
    pub(crate) fn encode(&self) -> [u8; ANSWER_BYTES] {
        let error = u64::from(self.error.unsigned_abs());
        joined([self.cookie, error, u64::from(self.is_data), self.value])
    }

    /// # Errors
    /// When it is none.
    pub(crate) fn decode(message: &[u8]) -> Result<Self, Malformed> {
        let mut rest = Cursor(message);
        let (cookie, error, is_data, value) = (rest.u64()?, rest.u64()?, rest.u64()?, rest.u64()?);
        rest.end()?;
        let error = i32::try_from(error).map_err(|_| Malformed("an error of no number"))?;
        match is_data {
            0 | 1 => Ok(Self { cookie, error, is_data: is_data == 1, value }),
            _ => Err(Malformed("neither data nor a hole")),
        }
    }
}

fn joined(fields: [u64; 4]) -> [u8; 32] {
    let mut message = [0; 32];
    for (place, field) in message.chunks_exact_mut(8).zip(fields) {
        place.copy_from_slice(&field.to_le_bytes());
    }
    message
}

/// Takes fields off a message.
pub(crate) struct Cursor<'a>(pub(crate) &'a [u8]);

impl<'a> Cursor<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (field, rest) = self.0.split_first_chunk().ok_or(Malformed("too short"))?;
        self.0 = rest;
        Ok(*field)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, Malformed> {
        self.take().map(i32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_le_bytes)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = usize::try_from(self.u32()?).map_err(|_| Malformed("too long"))?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Malformed("too short"))?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        let text = std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("a name that is no text"))?;
        Ok(text.to_owned())
    }

    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("too long")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_arrive_as_they_are_and_nothing_else_is_one() {
        for kind in KINDS {
            let request = Request { cookie: 7 << 32 | 63, kind, offset: 1 << 40, len: SLOT_BYTES as u64 };
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        let answer = Answer { cookie: 9, error: 5, is_data: true, value: 1 << 50 };
        assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        for len in (0..40).filter(|len| *len != 32) {
            assert!(Request::decode(&vec![0; len]).is_err() && Answer::decode(&vec![0; len]).is_err());
        }
        assert!(Request::decode(&joined([64, 0, 0, 0])).is_err());
        assert!(Request::decode(&joined([0, 9, 0, 0])).is_err());
        assert!(Request::decode(&joined([0, 1, 0, SLOT_BYTES as u64 + 1])).is_err());
        assert!(Answer::decode(&joined([0, 1 << 40, 0, 0])).is_err());
        assert!(Answer::decode(&joined([0, 0, 2, 0])).is_err());
    }
}
