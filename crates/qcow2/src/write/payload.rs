//! What a write puts into its place.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use storage::{Hints, IoVec, Storage};

/// Bytes, or where the kernel copies them from.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    /// In memory, with what is known of the request.
    Bytes(IoVec, Hints),
    /// In another file.
    File { file: Arc<OwnedFd>, offset: u64, len: u64 },
}

impl Payload {
    /// Bytes of a request of which `hints` are known.
    pub(crate) fn new(bytes: IoVec, hints: Hints) -> Self {
        Self::Bytes(bytes, hints)
    }

    /// What is known of the request; of what the kernel copies nothing is known.
    pub(crate) fn hints(&self) -> Hints {
        match self {
            Self::Bytes(_, hints) => *hints,
            Self::File { .. } => Hints::NONE,
        }
    }

    /// Bytes of it.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes, _) => bytes.len() as u64,
            Self::File { len, .. } => *len,
        }
    }

    /// The bytes of `range`, inside of it.
    pub(crate) fn slice(&self, range: Range<u64>) -> Self {
        match self {
            // Both fit a length in memory.
            Self::Bytes(bytes, hints) => {
                Self::Bytes(bytes.slice(range.start as usize, range.end as usize), *hints)
            }
            Self::File { file, offset, .. } => Self::File {
                file: Arc::clone(file),
                offset: offset + range.start,
                len: range.end - range.start,
            },
        }
    }

    /// Puts it to `offset` of `storage`.
    pub(crate) async fn put(self, storage: &dyn Storage, offset: u64) -> io::Result<()> {
        match self {
            Self::Bytes(bytes, hints) => storage.write(offset, bytes, hints).await,
            Self::File { file, offset: from, len } => storage.copy_from(offset, file, from, len).await,
        }
    }
}

impl From<IoVec> for Payload {
    /// Bytes of the engine's own.
    fn from(bytes: IoVec) -> Self {
        Self::Bytes(bytes, Hints::NONE)
    }
}
