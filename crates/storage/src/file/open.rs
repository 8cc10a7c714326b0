//! Opening a file as storage.

use std::os::fd::AsFd;
use std::path::Path;

use reactor::Backend;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::FileStorage;
use super::open_error::OpenError;
use super::unlocked::UnlockedFile;

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
