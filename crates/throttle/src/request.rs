//! What asks for permission.

/// Which way the bytes go. Zero writes and discards are writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From the disk.
    Read,
    /// To the disk.
    Write,
}

impl Direction {
    /// Both of them.
    pub const BOTH: [Self; 2] = [Self::Read, Self::Write];

    /// The other one.
    pub const fn other(self) -> Self {
        match self {
            Self::Read => Self::Write,
            Self::Write => Self::Read,
        }
    }

    /// 0 for reads, 1 for writes: the place in a pair.
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Read => 0,
            Self::Write => 1,
        }
    }
}

/// One request as far as limits care: what it will be charged for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which buckets it fills.
    pub direction: Direction,
    /// Bytes it is charged for; any value, also 0 (which still is one operation).
    pub bytes: u64,
}

impl Request {
    /// A read of `bytes` bytes.
    pub const fn read(bytes: u64) -> Self {
        Self { direction: Direction::Read, bytes }
    }

    /// A write of `bytes` bytes.
    pub const fn write(bytes: u64) -> Self {
        Self { direction: Direction::Write, bytes }
    }
}
