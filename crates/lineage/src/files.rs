//! The file system below a lineage, as a contract: commands reach files through it alone, so that the simulation runs the same commands on files of its own.

use std::ffi::OsString;
use std::fmt::Debug;
use std::fs::{File, Metadata, Permissions};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, RenameFlags, fstat, open, renameat_with};
use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};
use storage::{FileAccess, FileLock, LockError, Role};

/// What the file system says of a file or a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// It is a regular file, no link.
    pub is_file: bool,
    /// It is a directory.
    pub is_directory: bool,
    /// Who may use it.
    pub access: FileAccess,
    /// Its length.
    pub bytes: u64,
    /// Bytes that it takes.
    pub allocated_bytes: u64,
    /// When it was last written, in seconds since 1970.
    pub modified_sec: i64,
    /// And the part of a second.
    pub modified_nsec: i64,
    /// How many names it has.
    pub links: u64,
    /// Which file of which device it is.
    pub identity: (u64, u64),
}

impl FileFacts {
    /// Whether both are of one file.
    pub fn is_same_file(&self, other: &Self) -> bool {
        self.identity == other.identity
    }
}

impl From<Metadata> for FileFacts {
    fn from(found: Metadata) -> Self {
        Self {
            is_file: found.is_file(),
            is_directory: found.is_dir(),
            access: FileAccess::of(&found),
            bytes: found.len(),
            allocated_bytes: found.blocks() * 512,
            modified_sec: found.mtime(),
            modified_nsec: found.mtime_nsec(),
            links: found.nlink(),
            identity: (found.dev(), found.ino()),
        }
    }
}

/// A lock, until it is dropped or the process ends.
pub(crate) type LockGuard = Box<dyn Debug + Send + Sync>;

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To be read. No link is followed; a FIFO does not make the command wait, a device is not woken.
    Read,
    /// To be written.
    Write,
    /// To be made and written, with this mode less the process's mask, where nothing is.
    Make(u32),
}

/// Files and directories. Durable is what was synced: names with their directory, content and mode with their file.
pub(crate) trait FileSystem {
    /// What there is; links are followed.
    fn look(&self, path: &Path) -> io::Result<FileFacts>;

    /// As [`FileSystem::look`], of a link itself.
    fn look_at_name(&self, path: &Path) -> io::Result<FileFacts>;

    /// Names in a directory, in any order.
    fn names(&self, directory: &Path) -> io::Result<Vec<OsString>>;

    /// The path without links.
    fn resolve(&self, path: &Path) -> io::Result<PathBuf>;

    /// Where a link leads.
    fn read_link(&self, path: &Path) -> io::Result<PathBuf>;

    /// Opens a file.
    fn open(&self, path: &Path, purpose: Purpose) -> io::Result<Box<dyn OpenFile>>;

    /// What is in a file, up to `max` bytes.
    fn read(&self, path: &Path, max: u64) -> io::Result<Vec<u8>>;

    /// Makes a directory where nothing is.
    fn make_directory(&self, path: &Path) -> io::Result<()>;

    /// Makes a link at `path`, where nothing is.
    fn link_to(&self, leads_to: &Path, path: &Path) -> io::Result<()>;

    /// Gives a file another name, which no file has.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Renames a file, over another one if there is one.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Renames a file to a name that no file has.
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a name.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes a file, or the names of a directory, durable.
    fn sync(&self, path: &Path) -> io::Result<()>;

    /// Locks a file as one who opens it for that does, without waiting. `is_made` if it is not there.
    fn lock(&self, path: &Path, role: Role, is_made: bool) -> Result<io::Result<LockGuard>, LockError>;

    /// As [`FileSystem::lock`] of a writer, of a lock file that many wait for, which is made if it is not there: of those who try at once one gets it.
    fn lock_in_turn(&self, path: &Path) -> Result<io::Result<LockGuard>, LockError> {
        self.lock(path, Role::Writer, true)
    }

    /// Whether [`FileSystem::lock`] would lock a file that is there. No other process is refused because of it.
    fn test_lock(&self, path: &Path, role: Role) -> Result<io::Result<()>, LockError> {
        self.lock(path, role, false).map(|opened| opened.map(drop))
    }

    /// Refuses a file whose mode this process cannot set.
    fn check_owned(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    /// 64 random bits.
    fn random(&self) -> io::Result<u64>;
}

/// An open file.
pub(crate) trait OpenFile {
    /// What the file system says of it.
    fn found(&self) -> io::Result<FileFacts>;

    /// Fills `buffer` from `offset`, as far as there is something. Gives how much.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `bytes`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Sets its mode.
    fn set_mode(&self, mode: u32) -> io::Result<()>;

    /// Sets its owner and its group.
    fn give(&self, owner: u32, group: u32) -> io::Result<()>;

    /// Makes content and mode durable.
    fn sync(&self) -> io::Result<()>;
}

/// The file system: the kernel's.
#[cfg(not(test))]
pub(crate) fn files() -> &'static dyn FileSystem {
    &Kernel
}

/// The file system: the one that a simulation on this thread has, or the kernel's.
#[cfg(test)]
pub(crate) fn files() -> std::rc::Rc<dyn FileSystem> {
    crate::simulated::file_system().unwrap_or_else(|| std::rc::Rc::new(Kernel))
}

/// `removed`, where the name may be gone.
pub(crate) fn remove_if_there(path: &Path) -> io::Result<()> {
    match files().remove(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

pub(crate) struct Kernel;

impl FileSystem for Kernel {
    fn look(&self, path: &Path) -> io::Result<FileFacts> {
        path.metadata().map(FileFacts::from)
    }

    fn look_at_name(&self, path: &Path) -> io::Result<FileFacts> {
        path.symlink_metadata().map(FileFacts::from)
    }

    fn names(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        std::fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        path.canonicalize()
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        std::fs::read_link(path)
    }

    fn open(&self, path: &Path, purpose: Purpose) -> io::Result<Box<dyn OpenFile>> {
        let mut options = File::options();
        let options = match purpose {
            Purpose::Read => {
                let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
                options.read(true).custom_flags(flags.bits().cast_signed())
            }
            Purpose::Write => options.write(true),
            Purpose::Make(mode) => options.write(true).create_new(true).mode(mode),
        };
        Ok(Box::new(options.open(path)?))
    }

    fn read(&self, path: &Path, max: u64) -> io::Result<Vec<u8>> {
        // A FIFO does not make the command wait.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
        }
        let mut bytes = Vec::new();
        file.take(max).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        std::fs::create_dir(path)?;
        give_to_owner_of_directory(&File::open(path)?, path)
    }

    fn link_to(&self, leads_to: &Path, path: &Path) -> io::Result<()> {
        symlink(leads_to, path)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // Not every file system can. A link fails where a file is.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                std::fs::hard_link(from, to).and_then(|()| std::fs::remove_file(from))
            }
            renamed => renamed.map_err(Into::into),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn lock(&self, path: &Path, role: Role, is_made: bool) -> Result<io::Result<LockGuard>, LockError> {
        match if is_made { open_lock(path) } else { open_to_lock(path) } {
            Ok(file) => {
                FileLock::acquire_role(&Arc::new(file), role).map(|lock| Ok(Box::new(lock) as LockGuard))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    fn lock_in_turn(&self, path: &Path) -> Result<io::Result<LockGuard>, LockError> {
        match open_lock(path) {
            Ok(file) => {
                FileLock::acquire_in_turn(&Arc::new(file)).map(|lock| Ok(Box::new(lock) as LockGuard))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    fn test_lock(&self, path: &Path, role: Role) -> Result<io::Result<()>, LockError> {
        match open_to_lock(path) {
            Ok(file) => FileLock::test_role(&file, role).map(Ok),
            Err(error) => Ok(Err(error)),
        }
    }

    fn check_owned(&self, path: &Path) -> io::Result<()> {
        let file = File::open(path)?;
        // Only who may set it may set it to what it is.
        let mode = file.metadata()?.permissions();
        file.set_permissions(mode)
    }

    fn random(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        let count = getrandom(&mut bytes, GetRandomFlags::empty())?;
        match count == bytes.len() {
            true => Ok(u64::from_ne_bytes(bytes)),
            false => Err(io::Error::other("the system gave too few random bytes")),
        }
    }
}

fn open_to_lock(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?)
}

/// Opens a lock file, and makes it if it is not there. It is the directory's owner's: who may change the lineage may lock it, also where root did so first.
fn open_lock(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = open(path, flags, Mode::from_bits_truncate(0o644))?;
    give_to_owner_of_directory(&file, path)?;
    Ok(file)
}

/// What root makes at `path` is the owner's of the directory around it.
fn give_to_owner_of_directory(file: impl AsFd, path: &Path) -> io::Result<()> {
    if geteuid().is_root() {
        let directory = path.parent().unwrap_or(Path::new(".")).metadata()?;
        let (owner, found) = ((directory.uid(), directory.gid()), fstat(&file)?);
        if owner != (found.st_uid, found.st_gid) {
            fchown(&file, Some(owner.0), Some(owner.1))?;
        }
    }
    Ok(())
}

impl OpenFile for File {
    fn found(&self) -> io::Result<FileFacts> {
        self.metadata().map(FileFacts::from)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match FileExt::read_at(self, &mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.set_permissions(Permissions::from_mode(mode))
    }

    fn give(&self, owner: u32, group: u32) -> io::Result<()> {
        fchown(self, Some(owner), Some(group))
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}
