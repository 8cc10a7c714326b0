//! What is asked of a server, so that it can be asked again over another connection.

use std::fmt::Debug;

use memory::IoVec;

/// The kind of a request.
pub trait Kind: Clone + Debug + PartialEq {
    /// Makes durable what was acknowledged before it was sent.
    const FLUSH: Self;

    /// Whether it gives its whole range other bytes, which a flush makes durable: what was written there before does not matter any more.
    fn writes(&self) -> bool;
}

/// A request that fits into one message.
#[derive(Clone, Debug)]
pub struct Ask<K> {
    /// What is to be done.
    pub kind: K,
    /// Its first byte.
    pub offset: u64,
    /// Bytes of the disk, or what the kind says.
    pub len: u64,
    /// What is written.
    pub data: IoVec,
    /// A write that was acknowledged before, over another connection; or a flush of some of those.
    pub is_repeat: bool,
}

impl<K: Kind> Ask<K> {
    /// A request without data.
    pub fn new(kind: K, offset: u64, len: u64) -> Self {
        Self { kind, offset, len, data: IoVec::new(), is_repeat: false }
    }

    /// A request that brings `data`.
    pub fn write(kind: K, offset: u64, data: IoVec) -> Self {
        let len = data.len() as u64;
        Self { kind, offset, len, data, is_repeat: false }
    }

    /// A flush of all that was acknowledged.
    pub fn flush() -> Self {
        Self::new(K::FLUSH, 0, 0)
    }

    /// The byte after its last one.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    /// The same once more: of what is acknowledged then nothing is kept, it is already.
    pub fn repeated(self) -> Self {
        Self { is_repeat: true, ..self }
    }

    /// Whether it is a write of the user's, which a flush makes durable.
    pub fn is_to_be_flushed(&self) -> bool {
        self.kind.writes() && !self.is_repeat
    }
}
