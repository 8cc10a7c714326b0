//! Bytes of the guest's disk, as one value: an offset and a length, or two ends, cannot be taken for each other.

/// Consecutive bytes of the guest's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuestRange {
    /// The first byte.
    pub(crate) start: u64,
    /// One behind the last; not below `start`.
    pub(crate) end: u64,
}

impl GuestRange {
    /// `len` bytes from `start` on, which end within 64 bits.
    #[inline]
    pub(crate) fn at(start: u64, len: u64) -> Self {
        Self { start, end: start + len }
    }

    /// Bytes in it.
    #[inline]
    pub(crate) fn len(self) -> u64 {
        self.end - self.start
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// What is left of it behind its first `len` bytes.
    #[inline]
    pub(crate) fn behind(self, len: u64) -> Self {
        Self { start: self.start + len, ..self }
    }

    /// Its part before `end`.
    #[inline]
    pub(crate) fn before(self, end: u64) -> Self {
        Self { end: self.end.min(end), ..self }
    }
}
