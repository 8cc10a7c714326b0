//! A new file of our own: it gets its name when it is complete.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use storage::{FileLock, FileOptions, FileStorage, Role, UnlockedFile, open_locked};

use crate::file::LoopClock;

/// A file that was made.
#[derive(Debug)]
pub struct MadeFile {
    /// It, open.
    pub storage: FileStorage,
    /// A writer's.
    pub lock: FileLock,
    /// Its device and its number there.
    pub place: (u64, u64),
}

/// Makes a file, has `fill` write what is in it, and gives it the name `path`; `mode` is what the process's mask leaves of it. `None` where another file
/// got the name first.
///
/// # Errors
/// The system's, and those of `fill`.
///
/// # Crash
/// Nothing, or the whole file.
pub async fn make_file(
    path: &Path,
    mode: u32,
    fill: impl AsyncFnOnce(&FileStorage) -> io::Result<()>,
) -> io::Result<Option<MadeFile>> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open(directory, flags, Mode::from_raw_mode(mode))?;
    let stat = rustix::fs::fstat(&fd)?;
    let unlocked = UnlockedFile::from_fd(fd, path.display().to_string(), &FileOptions::default())
        .map_err(io::Error::other)?;
    let (storage, lock) = open_locked(&unlocked, Role::Writer, &LoopClock).await.map_err(io::Error::other)?;
    fill(&storage).await?;
    let unnamed = format!("/proc/self/fd/{}", unlocked.fd().as_raw_fd());
    match rustix::fs::linkat(CWD, unnamed, CWD, path, AtFlags::SYMLINK_FOLLOW) {
        Err(Errno::EXIST) => Ok(None),
        linked => {
            linked?;
            Ok(Some(MadeFile { storage, lock, place: (stat.st_dev, stat.st_ino) }))
        }
    }
}
