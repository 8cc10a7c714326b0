//! Opening a file as storage.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use reactor::Backend;
use reactor::fs::File;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use super::alignment;
use super::buffered::InlineWrites;
use super::flush::FlushState;
use super::write_queue::WriteQueue;
use super::{FileStorage, Kind, Shared};
use crate::range_lock::RangeLocks;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// Beside the page cache (O_DIRECT).
    pub direct: bool,
    /// For reading only.
    pub read_only: bool,
    /// Flushes answer at once and reach nothing (`cache=unsafe`).
    pub no_flush: bool,
    /// Through the loop's ring, or by threads. With a loop that has no ring it is threads anyway.
    pub aio: Backend,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self { direct: false, read_only: false, no_flush: false, aio: Backend::Ring }
    }
}

/// Why a file cannot serve as storage.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// The path as given.
        path: String,
        /// What was tried: "open", "create".
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// O_DIRECT was asked for in vain.
    #[error(
        "cache.direct=on needs O_DIRECT, which the file system of {path} refuses; \
         use cache=writeback, cache=writethrough or cache=unsafe there"
    )]
    NoDirect {
        /// The path as given.
        path: String,
    },
    /// A directory, a pipe, a terminal.
    #[error("{path} is a {found}; storage must be a regular file or a block device")]
    NotStorage {
        /// The path as given.
        path: String,
        /// What it is.
        found: &'static str,
    },
}

impl OpenError {
    /// The system's error, where that was the reason.
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            OpenError::Io { source, .. } => Some(source),
            OpenError::NoDirect { .. } | OpenError::NotStorage { .. } => None,
        }
    }
}

impl FileStorage {
    /// Opens what is at `path`, links followed. Never blocks on a pipe, never creates anything.
    pub fn open(path: impl AsRef<Path>, options: &FileOptions) -> Result<Self, OpenError> {
        let access = if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        Self::open_with(path.as_ref(), access, "open", options)
    }

    /// Creates an empty file at `path`; fails if anything is there.
    pub fn create_new(path: impl AsRef<Path>, options: &FileOptions) -> Result<Self, OpenError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        Self::open_with(path.as_ref(), flags, "create", options)
    }

    /// Uses a descriptor that is open already, for reading and (unless read-only) writing; `name`
    /// is for messages. Whether O_DIRECT is set on it follows the options from here on.
    pub fn from_fd(fd: OwnedFd, name: impl Into<String>, options: &FileOptions) -> Result<Self, OpenError> {
        let name = name.into();
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(|errno| failed(&name, "open", errno))?;
        Self::take(fd, name, flags, options)
    }

    fn open_with(
        path: &Path,
        access: OFlags,
        action: &'static str,
        options: &FileOptions,
    ) -> Result<Self, OpenError> {
        let name = path.display().to_string();
        // Without O_NONBLOCK the open of a pipe waits for its other end, before we see what it is.
        let flags = access | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let mode = Mode::from_raw_mode(0o644);
        let fd =
            retry(|| rustix::fs::open(path, flags, mode)).map_err(|errno| failed(&name, action, errno))?;
        Self::take(fd, name, access, options)
    }

    fn take(fd: OwnedFd, name: String, flags: OFlags, options: &FileOptions) -> Result<Self, OpenError> {
        let kind = kind_of(&fd, &name)?;
        let direct = match set_flags(&fd, flags, options.direct) {
            Ok(()) if options.direct => Some(alignment::find(&fd, kind)),
            Ok(()) => None,
            Err(Errno::INVAL) if options.direct => Some(None),
            Err(errno) => return Err(failed(&name, "open", errno)),
        };
        let direct = match direct {
            Some(None) => return Err(OpenError::NoDirect { path: name }),
            Some(Some(alignment)) => Some(alignment),
            None => None,
        };
        let length = length_of(&fd, kind).map_err(|errno| failed(&name, "open", errno))?;
        let shared = Shared {
            name,
            file: File::new(fd, options.aio),
            kind,
            direct,
            read_only: options.read_only,
            no_flush: options.no_flush,
            length: AtomicU64::new(length),
            ranges: RangeLocks::default(),
            flush: FlushState::default(),
            inline: InlineWrites::default(),
            queue: WriteQueue::default(),
            no_try_read: AtomicBool::new(direct.is_some()),
        };
        Ok(Self { shared: Arc::new(shared) })
    }
}

/// Sets the status flags as the operations need them. O_NONBLOCK goes: io_uring would answer
/// EAGAIN where it is to wait for the disk.
fn set_flags(fd: impl AsFd, flags: OFlags, direct: bool) -> Result<(), Errno> {
    let kept = flags & (OFlags::DSYNC | OFlags::SYNC | OFlags::NOATIME);
    let direct = if direct { OFlags::DIRECT } else { OFlags::empty() };
    rustix::fs::fcntl_setfl(fd, kept | direct)
}

fn kind_of(fd: impl AsFd, name: &str) -> Result<Kind, OpenError> {
    let stat = rustix::fs::fstat(fd).map_err(|errno| failed(name, "open", errno))?;
    let found = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(Kind::Regular),
        FileType::BlockDevice => return Ok(Kind::BlockDevice),
        FileType::Directory => "directory",
        FileType::CharacterDevice => "character device",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        FileType::Symlink | FileType::Unknown => "special file",
    };
    Err(OpenError::NotStorage { path: name.to_owned(), found })
}

fn length_of(fd: impl AsFd, kind: Kind) -> Result<u64, Errno> {
    match kind {
        Kind::Regular => {
            let stat = rustix::fs::fstat(fd)?;
            u64::try_from(stat.st_size).map_err(|_| Errno::OVERFLOW)
        }
        Kind::BlockDevice => rustix::fs::seek(fd, SeekFrom::End(0)),
    }
}

fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

fn failed(name: &str, action: &'static str, errno: Errno) -> OpenError {
    OpenError::Io { path: name.to_owned(), action, source: errno.into() }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Regular => "regular file",
            Kind::BlockDevice => "block device",
        })
    }
}
