//! Opening a file as storage.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use reactor::Backend;
use reactor::fs::File;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::asking::{self, Tried};
use super::calls::retry;
use super::copy_queue::CopyQueue;
use super::inline::InlineWrites;
use super::kind::{Kind, kind_of, length_of};
use super::open_error::{OpenError, failed};
use super::write_queue::WriteQueue;
use super::{FileStorage, Shared, alignment, extent};
use crate::flushes::Flushes;
use crate::opening::Unlocked;
use crate::range_lock::RangeLocks;
use crate::sealed::{Standing, make_names_durable};
use crate::{FileLock, LockError, Role};

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
fn set_flags(fd: impl AsFd, flags: OFlags, direct: bool) -> Result<(), Errno> {
    let kept = flags & (OFlags::DSYNC | OFlags::SYNC | OFlags::NOATIME);
    let direct = if direct { OFlags::DIRECT } else { OFlags::empty() };
    rustix::fs::fcntl_setfl(fd, kept | direct)
}

/// A file that is open, of which nothing is known yet but that it can serve as storage.
/// The process that holds the lock may write the file, make it longer and cut it until the lock is ours, so nothing may be
/// read of it before. The type keeps that: it has a descriptor and no length, and only [`UnlockedFile::measured`]
/// makes a [`FileStorage`] of it.
#[derive(Debug)]
pub struct UnlockedFile {
    name: String,
    file: File,
    kind: Kind,
    options: FileOptions,
}

impl UnlockedFile {
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
    pub fn from_fd(
        fd: impl Into<Arc<OwnedFd>>,
        name: impl Into<String>,
        options: &FileOptions,
    ) -> Result<Self, OpenError> {
        let (fd, name) = (fd.into(), name.into());
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
        Self::take(Arc::new(fd), name, access, options)
    }

    fn take(fd: Arc<OwnedFd>, name: String, flags: OFlags, options: &FileOptions) -> Result<Self, OpenError> {
        let kind = kind_of(&fd, &name)?;
        if kind == Kind::BlockDevice && !options.read_only && extent::is_read_only(&fd) {
            return Err(OpenError::ReadOnlyDevice { path: name });
        }
        // One that is created has no checkpoint yet.
        let is_there = !flags.contains(OFlags::EXCL);
        if kind == Kind::Regular && !options.read_only && is_there {
            match Standing::of(&fd) {
                Standing::SealedLayer => return Err(OpenError::SealedLayer { path: name }),
                Standing::BesideLayers(directory) => make_names_durable(&directory)
                    .map_err(|errno| failed(&name, "make durable the name of", errno))?,
                Standing::Elsewhere => {}
            }
        }
        match set_flags(&fd, flags, options.direct) {
            Ok(()) => {}
            Err(Errno::INVAL) if options.direct => return Err(OpenError::NoDirect { path: name }),
            Err(errno) => return Err(failed(&name, "open", errno)),
        }
        Ok(Self { name, file: File::new(fd, options.aio), kind, options: *options })
    }

    /// The descriptor, for file locks.
    pub fn fd(&self) -> &Arc<OwnedFd> {
        self.file.fd()
    }

    /// Whether it is a device.
    pub fn is_device(&self) -> bool {
        self.kind != Kind::Regular
    }

    /// Takes the length and makes storage of it. `lock` is the one that keeps others away, taken by this descriptor or
    /// by one that opened the same file before; without one, others may write: then nothing beyond the length is taken for zeroes ([`crate::Capabilities::grows_zeroed`]).
    pub fn measured(&self, lock: Option<&FileLock>) -> Result<FileStorage, OpenError> {
        debug_assert!(lock.is_none_or(|lock| lock.is_on(self.fd())), "the lock is another file's");
        self.measure_as(lock.is_some_and(FileLock::keeps_length))
    }

    /// The same without a lock, for a caller that knows of no other user of the file.
    pub(super) fn alone(&self) -> Result<FileStorage, OpenError> {
        self.measure_as(true)
    }

    fn measure_as(&self, alone: bool) -> Result<FileStorage, OpenError> {
        let fd = self.file.fd();
        let direct = match self.options.direct {
            false => None,
            true => match alignment::find(fd, self.kind) {
                Some(alignment) => Some(alignment),
                None => return Err(OpenError::NoDirect { path: self.name.clone() }),
            },
        };
        let length = length_of(fd, self.kind).map_err(|errno| failed(&self.name, "open", errno))?;
        let shared = Shared {
            name: self.name.clone(),
            file: self.file.clone(),
            kind: self.kind,
            direct,
            read_only: self.options.read_only,
            no_flush: self.options.no_flush,
            length: AtomicU64::new(length),
            reach: Arc::default(),
            alone,
            ranges: RangeLocks::default(),
            flushes: Arc::new(Flushes::default()),
            inline: InlineWrites::default(),
            queue: WriteQueue::default(),
            copies: CopyQueue::default(),
            asked: asking::ask(fd, self.kind, length, direct),
            tried: Tried::default(),
        };
        Ok(FileStorage { shared: Arc::new(shared) })
    }
}

impl Unlocked for UnlockedFile {
    type Lock = FileLock;
    type Storage = FileStorage;

    fn try_lock(&self, role: Role) -> Result<FileLock, LockError> {
        FileLock::acquire_role(self.fd(), role)
    }

    fn measured(&self, lock: Option<&FileLock>) -> Result<FileStorage, OpenError> {
        UnlockedFile::measured(self, lock)
    }
}
