//! Numbers at places of a header.

use block::{Blame, Error};
use memory::IoBuf;
use storage::{Hints, Storage};

/// Bytes of a header that were read.
#[derive(Debug)]
pub struct Fields(IoBuf);

impl Fields {
    /// Reads `len` bytes at `offset`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where the file ends before.
    pub async fn read(file: &dyn Storage, offset: u64, len: usize, what: &str) -> Result<Self, Error> {
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > file.length()) {
            let (length, name) = (file.length(), file.name());
            let detail = format!(
                "the {what} ({len} bytes at {offset}) is beyond the end of the file ({length} bytes)"
            );
            return Err(Blame::new(name).corrupt(detail));
        }
        let (result, bytes) = file.read(offset, IoBuf::uninit(len), Hints::NONE).await;
        result.map_err(Blame::new(file.name()).io("reading the header"))?;
        Ok(Self(bytes))
    }

    /// `N` bytes at `at`, zeroes beyond the end.
    pub fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let found = self.0.get(at..).and_then(|rest| rest.first_chunk());
        found.copied().unwrap_or([0; N])
    }

    /// All of them.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn le32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    pub fn le64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }

    pub fn be16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.array(at))
    }

    pub fn be32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }

    pub fn be64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.array(at))
    }
}
