//! What a request does.

/// The kinds of requests that figures distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Reads, also those that a prefetch makes.
    Read,
    /// Writes, also those whose zeroes were detected.
    Write,
    /// Writes of zeroes that were asked for as such.
    Zero,
    /// Discards.
    Discard,
    /// Flushes; those that a write brings along are part of the write.
    Flush,
    /// Questions about the state of a range.
    Status,
}

impl Kind {
    /// All of them, in the order of [`Kind::index`].
    pub const ALL: [Self; 6] =
        [Self::Read, Self::Write, Self::Zero, Self::Discard, Self::Flush, Self::Status];

    /// The place in lists of all kinds.
    pub const fn index(self) -> usize {
        self as usize
    }
}
