//! Bytes to be written: shared, immutable.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::IoBuf;
use crate::allocation::Allocation;

/// A shared, immutable range of an aligned allocation. Cloning and slicing copy no bytes.
#[derive(Clone)]
pub struct IoBytes {
    allocation: Arc<Allocation>,
    start: usize,
    len: usize,
}

impl IoBytes {
    pub(crate) fn new(allocation: Arc<Allocation>, start: usize, len: usize) -> Self {
        Self { allocation, start, len }
    }

    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        IoBuf::zeroed(len).freeze()
    }

    /// A copy of `bytes`.
    pub fn copy_from(bytes: &[u8]) -> Self {
        IoBuf::copy_from(bytes).freeze()
    }

    /// The part from `from` (included) to `to` (excluded). No copy.
    ///
    /// # Panics
    /// If the range does not lie inside.
    pub fn slice(&self, from: usize, to: usize) -> IoBytes {
        assert!(from <= to && to <= self.len, "slice {from}..{to} of {} bytes", self.len);
        Self { allocation: Arc::clone(&self.allocation), start: self.start + from, len: to - from }
    }

    /// Whether every byte is zero.
    pub fn is_zero(&self) -> bool {
        is_zero(self)
    }

    /// The same bytes to be filled again, the reverse of [`IoBuf::freeze`]. No copy.
    ///
    /// # Errors
    /// With the bytes as they were while other code has a view of the allocation.
    pub fn thaw(mut self) -> Result<IoBuf, IoBytes> {
        match Arc::get_mut(&mut self.allocation) {
            Some(_) => Ok(IoBuf::of_last_view(self.allocation, self.start, self.len)),
            None => Err(self),
        }
    }
}

/// Whether every byte of `bytes` is zero; reads a word at a time.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|&byte| byte == 0)
}

impl Deref for IoBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        debug_assert!(self.start + self.len <= self.allocation.len());
        let first = self.allocation.start().as_ptr().wrapping_add(self.start);
        // SAFETY: the range lies inside the allocation, whose bytes are initialised; it was frozen,
        // so no exclusive view of it exists any more.
        unsafe { std::slice::from_raw_parts(first, self.len) }
    }
}

impl fmt::Debug for IoBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBytes({} bytes)", self.len)
    }
}
