//! Reading big-endian fields off a slice.

/// The slice ended before the field did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message ends inside a field")]
pub struct Truncated;

/// A position in a slice of received bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// At the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What was not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Truncated> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next `N` bytes by value.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(Truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> Result<u16, Truncated> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Result<u32, Truncated> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> Result<u64, Truncated> {
        self.array().map(u64::from_be_bytes)
    }

    /// A 32-bit length and as many bytes.
    pub fn counted_bytes(&mut self) -> Result<&'a [u8], Truncated> {
        let count = self.u32()?;
        self.bytes(usize::try_from(count).map_err(|_| Truncated)?)
    }
}
