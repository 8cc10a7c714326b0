//! Why a request failed: what its client has to know, and what the log has to.

use std::error::Error as StdError;
use std::fmt;

use memory::CopyError;

use crate::repeats::{self, Level};

/// What a door tells a client, in the words of its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The storage, or the user's quota there, is full.
    NoSpace,
    /// The disk takes no changes: it is read-only, or was stopped when it was found to be corrupt.
    ReadOnly,
    /// The range reaches past the end of the disk, which may have been made smaller while clients used it.
    PastEnd,
    /// The disk cannot do this; of [`ZeroFlags::fast_only`](crate::ZeroFlags::fast_only), not faster than by writing.
    NotSupported,
    /// The request makes no sense for this disk.
    Invalid,
    /// The storage failed.
    Io,
    /// There is no memory for it.
    NoMemory,
    /// The disk contradicts itself.
    Corrupt,
    /// The program is ending, or the disk is taken away.
    ShuttingDown,
}

impl ErrorKind {
    /// What it is called in a message.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoSpace => "no space",
            Self::ReadOnly => "read-only",
            Self::PastEnd => "past the end",
            Self::NotSupported => "not supported",
            Self::Invalid => "invalid",
            Self::Io => "I/O",
            Self::NoMemory => "no memory",
            Self::Corrupt => "corrupt",
            Self::ShuttingDown => "shutting down",
        }
    }
}

/// A request that failed. The kind decides what happens; the cause, where there is one, explains.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    cause: Option<Box<Cause>>,
}

#[derive(Debug)]
struct Cause {
    disk: String,
    source: Box<dyn StdError + Send + Sync>,
}

impl Error {
    /// A failure on `disk`, as the log names it, that `cause` explains.
    pub fn because(
        kind: ErrorKind,
        disk: impl Into<String>,
        cause: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self { kind, cause: Some(Box::new(Cause { disk: disk.into(), source: cause.into() })) }
    }

    /// What the client receives.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Tells the log the whole story, of a disk that fails again and again once a second. Without a cause there is
    /// none: the client's request was at fault.
    ///
    /// # Panics
    /// With a cause, outside of an event loop.
    pub fn log(&self) {
        if let Some(Cause { disk, source }) = self.cause.as_deref() {
            repeats::tell(Level::Error, self.kind.name(), disk, &source.to_string());
        }
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self { kind, cause: None }
    }
}

/// A disk's failure as doors know it.
impl From<block::Error> for Error {
    fn from(error: block::Error) -> Self {
        let kind = match error.kind() {
            _ if error.is_no_space() => ErrorKind::NoSpace,
            _ if error.is_no_memory() => ErrorKind::NoMemory,
            block::ErrorKind::Io => ErrorKind::Io,
            block::ErrorKind::Corrupt => ErrorKind::Corrupt,
            block::ErrorKind::Invalid => ErrorKind::Invalid,
            block::ErrorKind::PastEnd => ErrorKind::PastEnd,
            block::ErrorKind::Unsupported => ErrorKind::NotSupported,
            block::ErrorKind::Refused => ErrorKind::ReadOnly,
        };
        Self::because(kind, error.image().to_owned(), error)
    }
}

/// Bytes in memory of others: losing them is a fault of its owner, and nothing for the log.
impl From<CopyError> for Error {
    fn from(why: CopyError) -> Self {
        match why {
            CopyError::NoMemory => ErrorKind::NoMemory.into(),
            CopyError::Lost => ErrorKind::Io.into(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cause.as_deref() {
            Some(Cause { source, .. }) => write!(f, "{source}"),
            None => f.write_str(self.kind.name()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // Its text is ours; what is below it is not said yet.
        self.cause.as_deref().and_then(|cause| cause.source.source())
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;

    fn io_error(kind: io::ErrorKind) -> block::Error {
        block::Error::Io { image: "a".into(), action: "writing data", source: Arc::new(kind.into()) }
    }

    #[test]
    fn a_failure_keeps_its_kind_and_the_words_of_its_cause() {
        let (image, detail): (Arc<str>, Arc<str>) = ("a".into(), "why".into());
        let refused = block::Error::Refused { image: image.clone(), detail: detail.clone() };
        let past_end = block::Error::PastEnd { image: image.clone(), offset: 8, len: 2, size: 9 };
        let cases = [
            (io_error(io::ErrorKind::StorageFull), ErrorKind::NoSpace),
            (io_error(io::ErrorKind::QuotaExceeded), ErrorKind::NoSpace),
            (io_error(io::ErrorKind::OutOfMemory), ErrorKind::NoMemory),
            (io_error(io::ErrorKind::Other), ErrorKind::Io),
            (refused, ErrorKind::ReadOnly),
            (past_end, ErrorKind::PastEnd),
            (block::Error::Unsupported { image, detail }, ErrorKind::NotSupported),
        ];
        for (error, kind) in cases {
            let (text, failed) = (error.to_string(), Error::from(error));
            assert_eq!((failed.kind(), failed.to_string()), (kind, text));
        }
        assert_eq!(Error::from(ErrorKind::ShuttingDown).to_string(), "shutting down");
    }
}
