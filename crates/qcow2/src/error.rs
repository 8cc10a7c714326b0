//! Why a request on an image failed.

use std::io;
use std::sync::Arc;

use qcow2_layout::EntryError;
use thiserror::Error;

/// Failure of a request, with the image it happened in. Cheap to clone: a failed load of a table
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
    /// The image does not take writes.
    Refused,
    /// The storage failed.
    Io,
}

impl Error {
    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Corrupt { .. } => ErrorKind::Corrupt,
            Error::Unsupported { .. } => ErrorKind::Unsupported,
            Error::Invalid { .. } => ErrorKind::Invalid,
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
}

/// Makes errors that name one image.
#[derive(Clone, Debug)]
pub(crate) struct Blame {
    image: Arc<str>,
}

impl Blame {
    pub(crate) fn new(image: &str) -> Self {
        Self { image: image.into() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.image
    }

    pub(crate) fn corrupt(&self, detail: impl Into<Arc<str>>) -> Error {
        Error::Corrupt { image: self.image.clone(), detail: detail.into() }
    }

    pub(crate) fn entry(&self, guest: u64, error: &EntryError) -> Error {
        self.corrupt(format!("the map entry of guest offset {guest:#x}: {error}"))
    }

    pub(crate) fn unsupported(&self, detail: impl Into<Arc<str>>) -> Error {
        Error::Unsupported { image: self.image.clone(), detail: detail.into() }
    }

    pub(crate) fn invalid(&self, detail: impl Into<Arc<str>>) -> Error {
        Error::Invalid { image: self.image.clone(), detail: detail.into() }
    }

    pub(crate) fn refused(&self, detail: impl Into<Arc<str>>) -> Error {
        Error::Refused { image: self.image.clone(), detail: detail.into() }
    }

    /// There is no memory for `what`.
    pub(crate) fn no_memory(&self, what: &'static str) -> Error {
        let action = "making room in memory";
        let source = io::Error::new(io::ErrorKind::OutOfMemory, format!("no memory for {what}"));
        Error::Io { image: self.image.clone(), action, source: Arc::new(source) }
    }

    pub(crate) fn io(&self, action: &'static str) -> impl FnOnce(io::Error) -> Error {
        let image = self.image.clone();
        move |source| Error::Io { image, action, source: Arc::new(source) }
    }
}
