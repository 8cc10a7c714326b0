//! Why a request on a block failed.

use std::io;
use std::sync::Arc;

use thiserror::Error;

/// Failure of a request, with the block it happened in. Cheap to clone: a failed load of a table
/// reaches every request that waited for it.
#[derive(Clone, Debug, Error)]
pub enum Error {
    /// The image contradicts itself or the specification.
    #[error("{image}: {detail}")]
    Corrupt {
        /// The image's name.
        image: Arc<str>,
        /// Where and what.
        detail: Arc<str>,
    },
    /// The image uses something that cowhand does not do.
    #[error("{image}: {detail}")]
    Unsupported {
        /// The image's name.
        image: Arc<str>,
        /// What is not supported.
        detail: Arc<str>,
    },
    /// The request or option makes no sense for this image.
    #[error("{image}: {detail}")]
    Invalid {
        /// The image's name.
        image: Arc<str>,
        /// What was found, and what is allowed.
        detail: Arc<str>,
    },
    /// The request reaches past the end of the disk, which may have been made smaller while it was in use.
    #[error("{image}: {len} bytes at offset {offset} reach past the end of the disk ({size} bytes)")]
    PastEnd {
        /// The image's name.
        image: Arc<str>,
        /// First byte of the request.
        offset: u64,
        /// Bytes of the request.
        len: u64,
        /// Bytes of the disk now.
        size: u64,
    },
    /// The image cannot be written: opened read-only, or stopped after corruption was found.
    #[error("{image}: {detail}")]
    Refused {
        /// The image's name.
        image: Arc<str>,
        /// Why.
        detail: Arc<str>,
    },
    /// The storage below failed.
    #[error("{image}: {action}: {source}")]
    Io {
        /// The image's name.
        image: Arc<str>,
        /// What was being done.
        action: &'static str,
        /// The storage's error.
        source: Arc<io::Error>,
    },
}

/// What kind of failure it is, for control flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The image contradicts itself.
    Corrupt,
    /// A feature that cowhand does not have.
    Unsupported,
    /// A request that makes no sense.
    Invalid,
    /// A request that reaches past the end of the disk.
    PastEnd,
    /// The image does not take writes.
    Refused,
    /// The storage failed.
    Io,
}

impl Error {
    /// The name of the image it is about.
    pub fn image(&self) -> &str {
        match self {
            Error::Corrupt { image, .. }
            | Error::Unsupported { image, .. }
            | Error::Invalid { image, .. }
            | Error::Refused { image, .. }
            | Error::PastEnd { image, .. }
            | Error::Io { image, .. } => image,
        }
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Corrupt { .. } => ErrorKind::Corrupt,
            Error::Unsupported { .. } => ErrorKind::Unsupported,
            Error::Invalid { .. } => ErrorKind::Invalid,
            Error::PastEnd { .. } => ErrorKind::PastEnd,
            Error::Refused { .. } => ErrorKind::Refused,
            Error::Io { .. } => ErrorKind::Io,
        }
    }

    /// The operating system's error number, where there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Error::Io { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Whether there was no room left: on the storage, in the user's quota there, or because the file has the size
    /// that its file system or the format allow at most.
    pub fn is_no_space(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        let Error::Io { source, .. } = self else { return false };
        matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge)
    }

    /// Whether there was no memory for the bytes of the request.
    pub fn is_no_memory(&self) -> bool {
        matches!(self, Error::Io { source, .. } if source.kind() == io::ErrorKind::OutOfMemory)
    }
}

/// Makes errors that name one block.
#[derive(Clone, Debug)]
pub struct Blame {
    image: Arc<str>,
}

impl Blame {
    /// For the block called `name`. Copies the name.
    pub fn new(name: &str) -> Self {
        Self { image: name.into() }
    }

    /// What the block is called.
    pub fn name(&self) -> &str {
        &self.image
    }

    /// [`Error::Corrupt`].
    pub fn corrupt(&self, detail: impl Into<Arc<str>>) -> Error {
        Error::Corrupt { image: self.image.clone(), detail: detail.into() }
    }

    /// [`Error::Unsupported`].
    pub fn unsupported(&self, detail: impl Into<Arc<str>>) -> Error {
        Error::Unsupported { image: self.image.clone(), detail: detail.into() }
    }

    /// [`Error::Invalid`].
    pub fn invalid(&self, detail: impl Into<Arc<str>>) -> Error {
        Error::Invalid { image: self.image.clone(), detail: detail.into() }
    }

    /// [`Error::PastEnd`].
    pub fn past_end(&self, offset: u64, len: u64, size: u64) -> Error {
        Error::PastEnd { image: self.image.clone(), offset, len, size }
    }

    /// [`Error::Refused`].
    pub fn refused(&self, detail: impl Into<Arc<str>>) -> Error {
        Error::Refused { image: self.image.clone(), detail: detail.into() }
    }

    /// [`Error::Io`]: there is no memory for `what`.
    pub fn no_memory(&self, what: &'static str) -> Error {
        let action = "making room in memory";
        let source = io::Error::new(io::ErrorKind::OutOfMemory, format!("no memory for {what}"));
        Error::Io { image: self.image.clone(), action, source: Arc::new(source) }
    }

    /// Makes [`Error::Io`] of a failure during `action`.
    pub fn io(&self, action: &'static str) -> impl FnOnce(io::Error) -> Error {
        let image = self.image.clone();
        move |source| Error::Io { image, action, source: Arc::new(source) }
    }
}
