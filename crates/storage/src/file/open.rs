//! Opening a file as storage.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use reactor::Backend;
use rustix::fs::{FileType, OFlags, SeekFrom};
use rustix::io::Errno;

use super::unlocked::UnlockedFile;
use super::{FileStorage, Kind};

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
    /// A device that is to be written, and takes no writes.
    #[error("the device {path} is read-only; open it so: read-only=on")]
    ReadOnlyDevice {
        /// The path as given.
        path: String,
    },
    /// A layer that checkpoints are made of.
    #[error(
        "{path} is a sealed layer of checkpoints and stays as it is; for a disk that can be written, fork the checkpoint (cowhand fork); \
         cowhand forget merges and removes layers"
    )]
    SealedLayer {
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
            OpenError::NoDirect { .. }
            | OpenError::ReadOnlyDevice { .. }
            | OpenError::SealedLayer { .. }
            | OpenError::NotStorage { .. } => None,
        }
    }
}

impl FileStorage {
    /// Opens what is at `path` for a caller that knows of no other user: nothing is locked. Links are followed.
    pub fn open(path: impl AsRef<Path>, options: &FileOptions) -> Result<Self, OpenError> {
        UnlockedFile::open(path, options)?.alone()
    }

    /// Creates an empty file at `path` likewise; fails if anything is there.
    pub fn create_new(path: impl AsRef<Path>, options: &FileOptions) -> Result<Self, OpenError> {
        UnlockedFile::create_new(path, options)?.alone()
    }
}

/// Sets the status flags as the operations need them. O_NONBLOCK goes: io_uring would answer
/// EAGAIN where it is to wait for the disk.
pub(super) fn set_flags(fd: impl AsFd, flags: OFlags, direct: bool) -> Result<(), Errno> {
    let kept = flags & (OFlags::DSYNC | OFlags::SYNC | OFlags::NOATIME);
    let direct = if direct { OFlags::DIRECT } else { OFlags::empty() };
    rustix::fs::fcntl_setfl(fd, kept | direct)
}

pub(super) fn kind_of(fd: impl AsFd, name: &str) -> Result<Kind, OpenError> {
    let stat = rustix::fs::fstat(&fd).map_err(|errno| failed(name, "open", errno))?;
    let found = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(Kind::Regular),
        FileType::BlockDevice => return Ok(Kind::BlockDevice),
        FileType::CharacterDevice if length_of(&fd, Kind::CharacterDevice).is_ok() => {
            return Ok(Kind::CharacterDevice);
        }
        FileType::Directory => "directory",
        FileType::CharacterDevice => "character device without an end",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        FileType::Symlink | FileType::Unknown => "special file",
    };
    Err(OpenError::NotStorage { path: name.to_owned(), found })
}

pub(super) fn length_of(fd: impl AsFd, kind: Kind) -> Result<u64, Errno> {
    match kind {
        Kind::Regular => {
            let stat = rustix::fs::fstat(fd)?;
            u64::try_from(stat.st_size).map_err(|_| Errno::OVERFLOW)
        }
        Kind::BlockDevice | Kind::CharacterDevice => rustix::fs::seek(fd, SeekFrom::End(0)),
    }
}

pub(super) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

pub(super) fn failed(name: &str, action: &'static str, errno: Errno) -> OpenError {
    OpenError::Io { path: name.to_owned(), action, source: errno.into() }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Regular => "regular file",
            Kind::BlockDevice => "block device",
            Kind::CharacterDevice => "character device",
        })
    }
}
