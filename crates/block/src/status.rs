//! What a block says of a range, for tools and clients that ask before they read.

/// A range in one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockStatus {
    /// Bytes, never 0.
    pub len: u64,
    /// Which layer knows: 0 is the block itself, 1 the one below, and so on. If none knows, the
    /// last one asked.
    pub depth: u32,
    /// A layer knows of the range, be it data or zeroes.
    pub present: bool,
    /// Reads as zeroes, as far as maps and file systems tell.
    pub zero: bool,
    /// No space is behind it in the uppermost layer's file, reserved space included.
    pub hole: bool,
    /// There are bytes to read.
    pub data: bool,
    /// The bytes are compressed.
    pub compressed: bool,
    /// Where they are in the file of their layer, if they can be read there as they are.
    pub offset: Option<u64>,
}

impl BlockStatus {
    /// `len` bytes of data at `depth` that can be read at `offset`, if that is given.
    pub fn data(len: u64, depth: u32, offset: Option<u64>) -> Self {
        Self { len, depth, present: true, zero: false, hole: false, data: true, compressed: false, offset }
    }
}
