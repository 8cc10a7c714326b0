//! Why something failed: a kind to act on, a number for guests, and words with places and values.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use graph::OpenError;
use graph::drive::DriveError;
use graph::names::Reason;
use graph::options::OptionError;
use qcow2::CreateError;
use rustix::io::Errno;
use storage::LockError;
use throttle::LimitsError;

use crate::buffer::Buffer;

/// What kind of failure it is, for control flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such file.
    NotFound,
    /// The system, or the policy for names inside images, does not allow it.
    Denied,
    /// Another process uses the file.
    InUse,
    /// There is a file already.
    Exists,
    /// An option, a name or a range makes no sense.
    Invalid,
    /// The format, a feature of the image or the operation is not supported.
    Unsupported,
    /// The image contradicts itself.
    Corrupt,
    /// The disk takes no changes: it is read-only, or was stopped when it was found to be corrupt.
    ReadOnly,
    /// The range reaches past the end of the disk.
    PastEnd,
    /// The storage, or the user's quota there, is full.
    NoSpace,
    /// The storage failed.
    Io,
    /// The disk was closed.
    Closed,
    /// As many requests are in flight as the disk or the queue takes at a time.
    Full,
    /// Waiting on a disk's own loop, in a callback, would be for ever.
    WouldDeadlock,
    /// A job was cancelled before it had done its work.
    Cancelled,
    /// The event loop that carried out the requests has ended, by a fault of this library.
    LoopEnded,
}

impl ErrorKind {
    /// The error number that says the same to a guest or a C caller; of [`ErrorKind::Io`] the least that is true, EIO.
    pub fn errno(self) -> i32 {
        let errno = match self {
            Self::NotFound => Errno::NOENT,
            Self::Denied => Errno::ACCESS,
            Self::InUse => Errno::BUSY,
            Self::Exists => Errno::EXIST,
            Self::Invalid | Self::PastEnd => Errno::INVAL,
            Self::Unsupported => Errno::OPNOTSUPP,
            Self::ReadOnly => Errno::ROFS,
            Self::NoSpace => Errno::NOSPC,
            Self::Corrupt | Self::Io | Self::LoopEnded => Errno::IO,
            Self::Closed => Errno::SHUTDOWN,
            Self::Full => Errno::AGAIN,
            Self::WouldDeadlock => Errno::DEADLK,
            Self::Cancelled => Errno::CANCELED,
        };
        errno.raw_os_error()
    }
}

/// What a request was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// What was to be done: `"read"`, `"write"`, `"write zeroes"`, `"discard"`, `"flush"`.
    pub operation: &'static str,
    /// First byte of the range; 0 for a flush.
    pub offset: u64,
    /// Bytes of the range; 0 for a flush.
    pub len: u64,
}

/// A failure. Its text names the disk, the range where there is one, what was found and what is allowed.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    place: Option<Place>,
    cause: Cause,
    buffer: Option<Buffer>,
}

/// What lies below.
#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error(transparent)]
    Block(#[from] block::Error),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Drive(#[from] DriveError),
    #[error(transparent)]
    Option(#[from] OptionError),
    #[error(transparent)]
    Limits(#[from] LimitsError),
    #[error("{}", with_sources(.0))]
    Create(#[from] CreateError),
    #[error("{what}: {source}")]
    System { what: String, source: io::Error },
    #[error("{0}")]
    Said(String),
}

impl Error {
    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The system's error number if that is the cause, otherwise the one of the kind.
    pub fn errno(&self) -> i32 {
        self.system().and_then(io::Error::raw_os_error).unwrap_or_else(|| self.0.kind.errno())
    }

    /// The range of the request that failed.
    pub fn place(&self) -> Option<Place> {
        self.0.place
    }

    /// The bytes of the request that failed, given back. A failed read may have changed any of them.
    pub fn into_buffer(self) -> Option<Buffer> {
        self.0.buffer
    }

    pub(crate) fn take_buffer(&mut self) -> Option<Buffer> {
        self.0.buffer.take()
    }

    fn new(kind: ErrorKind, cause: impl Into<Cause>) -> Self {
        Self(Box::new(Inner { kind, place: None, cause: cause.into(), buffer: None }))
    }

    pub(crate) fn said(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self::new(kind, Cause::Said(text.into()))
    }

    pub(crate) fn system(&self) -> Option<&io::Error> {
        match &self.0.cause {
            Cause::System { source, .. } => Some(source),
            Cause::Block(block::Error::Io { source, .. }) => Some(source),
            Cause::Create(CreateError::Io { source, .. }) => Some(source),
            Cause::Open(error) => system_of_open(error),
            _ => None,
        }
    }

    /// The system refused `what`.
    pub(crate) fn of_system(what: impl Into<String>, source: io::Error) -> Self {
        Self::new(kind_of_system(&source), Cause::System { what: what.into(), source })
    }

    /// What failed for causes of which one may be a request's or the system's.
    #[cfg(feature = "jobs")]
    pub(crate) fn of_steps(what: &str, error: &(dyn StdError + 'static)) -> Self {
        Self::said(kind_of_steps(error), format!("{what}: {}", with_sources(error)))
    }

    pub(crate) fn closed(disk: &str) -> Self {
        Self::said(ErrorKind::Closed, format!("{disk}: the disk is closed"))
    }

    pub(crate) fn loop_ended() -> Self {
        Self::said(ErrorKind::LoopEnded, "the event loop of the disk has ended")
    }

    pub(crate) fn would_deadlock() -> Self {
        let text = "this is a disk's own loop, in a callback: waiting here would be for ever";
        Self::said(ErrorKind::WouldDeadlock, text)
    }

    pub(crate) fn taken() -> Self {
        Self::said(ErrorKind::Invalid, "the result was taken before")
    }

    /// The same, of a request with these bytes.
    pub(crate) fn of_request(mut self, place: Place, buffer: Buffer) -> Self {
        self.0.place = Some(place);
        self.0.buffer = Some(buffer);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.cause)?;
        match self.0.place {
            // Its text has the range.
            _ if self.0.kind == ErrorKind::PastEnd => Ok(()),
            None => Ok(()),
            Some(Place { operation, len: 0, .. }) => write!(f, " ({operation})"),
            Some(Place { operation, offset, len }) => {
                write!(f, " ({operation} of {len} bytes at offset {offset})")
            }
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // The cause's own text is part of ours.
        self.0.cause.source()
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        io::Error::new(io::Error::from_raw_os_error(error.errno()).kind(), error)
    }
}

impl From<block::Error> for Error {
    fn from(error: block::Error) -> Self {
        let kind = kind_of_block(&error);
        Self::new(kind, error)
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        let kind = kind_of_open(&error);
        Self::new(kind, error)
    }
}

impl From<DriveError> for Error {
    fn from(error: DriveError) -> Self {
        Self::new(ErrorKind::Invalid, error)
    }
}

impl From<OptionError> for Error {
    fn from(error: OptionError) -> Self {
        let kind = kind_of_option(&error);
        Self::new(kind, error)
    }
}

impl From<LimitsError> for Error {
    fn from(error: LimitsError) -> Self {
        Self::new(ErrorKind::Invalid, error)
    }
}

impl From<CreateError> for Error {
    fn from(error: CreateError) -> Self {
        let kind = match &error {
            CreateError::Io { source, .. } => kind_of_system(source),
            _ => ErrorKind::Invalid,
        };
        Self::new(kind, error)
    }
}

pub(crate) fn with_sources(error: &(dyn StdError + 'static)) -> String {
    let all = std::iter::successors(Some(error), |&error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The kind of the lowest cause that has one.
#[cfg(feature = "jobs")]
pub(crate) fn kind_of_steps(error: &(dyn StdError + 'static)) -> ErrorKind {
    let all = std::iter::successors(Some(error), |&error| error.source());
    let kind = all.filter_map(|error| {
        let block = error.downcast_ref::<block::Error>().map(kind_of_block);
        let open = || error.downcast_ref::<OpenError>().map(kind_of_open);
        block.or_else(open).or_else(|| error.downcast_ref::<io::Error>().map(kind_of_system))
    });
    kind.last().unwrap_or(ErrorKind::Invalid)
}

fn kind_of_block(error: &block::Error) -> ErrorKind {
    match error.kind() {
        _ if error.is_no_space() => ErrorKind::NoSpace,
        block::ErrorKind::Io => ErrorKind::Io,
        block::ErrorKind::Corrupt => ErrorKind::Corrupt,
        block::ErrorKind::Invalid => ErrorKind::Invalid,
        block::ErrorKind::PastEnd => ErrorKind::PastEnd,
        block::ErrorKind::Unsupported => ErrorKind::Unsupported,
        block::ErrorKind::Refused => ErrorKind::ReadOnly,
    }
}

pub(crate) fn kind_of_system(error: &io::Error) -> ErrorKind {
    use io::ErrorKind as System;
    match error.kind() {
        System::NotFound => ErrorKind::NotFound,
        System::PermissionDenied => ErrorKind::Denied,
        System::AlreadyExists => ErrorKind::Exists,
        System::InvalidInput => ErrorKind::Invalid,
        System::Unsupported => ErrorKind::Unsupported,
        System::ReadOnlyFilesystem => ErrorKind::ReadOnly,
        System::StorageFull | System::QuotaExceeded | System::FileTooLarge => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    }
}

fn kind_of_option(error: &OptionError) -> ErrorKind {
    match error {
        OptionError::NotBuilt { .. } => ErrorKind::Unsupported,
        _ => ErrorKind::Invalid,
    }
}

fn kind_of_open(error: &OpenError) -> ErrorKind {
    match error {
        OpenError::Lock { source: LockError::Busy { .. }, .. } => ErrorKind::InUse,
        OpenError::Refused(refused) => match &refused.reason {
            Reason::NotFound { source, .. } | Reason::Io(source) => kind_of_system(source),
            _ => ErrorKind::Denied,
        },
        OpenError::Image(error) => kind_of_block(error),
        OpenError::Repair { .. } => ErrorKind::Corrupt,
        OpenError::Format { .. } | OpenError::BackingFormat { .. } | OpenError::Filters { .. } => {
            ErrorKind::Unsupported
        }
        OpenError::Storage(storage::OpenError::SealedLayer { .. }) => ErrorKind::ReadOnly,
        OpenError::Find { .. } | OpenError::Storage(_) | OpenError::Lock { .. } => {
            system_of_open(error).map_or(ErrorKind::Invalid, kind_of_system)
        }
        OpenError::Options { source, .. } => kind_of_option(source),
        OpenError::Secret { .. }
        | OpenError::Caches { .. }
        | OpenError::Cycle { .. }
        | OpenError::DataIsImage { .. }
        | OpenError::ChainTooLong { .. } => ErrorKind::Invalid,
    }
}

fn system_of_open(error: &OpenError) -> Option<&io::Error> {
    match error {
        OpenError::Find { source, .. } | OpenError::Lock { source: LockError::Io(source), .. } => {
            Some(source)
        }
        OpenError::Storage(error) => error.io(),
        OpenError::Image(block::Error::Io { source, .. }) => Some(source),
        _ => None,
    }
}
