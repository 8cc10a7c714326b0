//! A Unix socket that listens before its name is there.
//!
//! `bind` makes the name, and until `listen` a client that finds it is refused: managers wait for the file and then connect. So the socket is
//! bound to a name of its own in the same directory, listens, and is renamed to where clients look for it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use graph::names::directory_of;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::socket_mode::SocketMode;
use super::socket_path::fnv_48;

/// Connections that wait to be accepted, at most: the kernel's default limit.
const BACKLOG: i32 = 4096;

/// Whether this process has the lock of the directory: then no other one makes a socket there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// It is held.
    Held,
    /// The directory cannot be opened.
    None,
}

/// Listens at `path`, with the rights that `mode` says from the first instant on.
///
/// # Errors
/// `AddrInUse` when `path` is there; else when the socket cannot be made. Then nothing is left.
pub fn listen_at(path: &Path, mode: SocketMode, lock: Lock) -> io::Result<UnixListener> {
    let Some(name) = path.file_name() else { return Err(io::ErrorKind::InvalidInput.into()) };
    // Looked at again when the socket is renamed; here so that nothing is made beside a name that is taken.
    if fs::symlink_metadata(path).is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    let temporary = beside(path, name, lock);
    if fs::symlink_metadata(&temporary).is_ok_and(|left| left.file_type().is_socket()) {
        fs::remove_file(&temporary)?;
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fchmod(&socket, mode.mode())?;
    bind(&socket, &temporary)?;
    let named = begun(&socket, &temporary, mode).and_then(|()| name_as(&temporary, path));
    if let Err(error) = named {
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    Ok(UnixListener::from(socket))
}

/// The name of a socket until it listens; the kernel's list of sockets shows it ever after, so it has the name in it if there is room. With the
/// lock a socket of this name is one that a process left that was killed here.
fn beside(path: &Path, name: &OsStr, lock: Lock) -> PathBuf {
    let directory = directory_of(path);
    let own = match lock {
        Lock::Held => String::new(),
        Lock::None => format!(".{}", std::process::id()),
    };
    let mut long = OsString::from(".");
    long.push(name);
    long.push(format!("{own}.new"));
    let long = directory.join(long);
    if SocketAddrUnix::new(&long).is_ok() {
        return long;
    }
    directory.join(format!(".{:012x}{own}.new", fnv_48(name.as_bytes())))
}

/// Binds `socket` to a short name in a directory whose path may be long: then it is reached by a descriptor of the directory.
fn bind(socket: &OwnedFd, path: &Path) -> io::Result<()> {
    if let Ok(address) = SocketAddrUnix::new(path) {
        return Ok(rustix::net::bind(socket, &address)?);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory_of(path), flags, Mode::empty())?;
    let mut short = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    short.push(path.file_name().unwrap_or_default());
    let address = SocketAddrUnix::new(&short)?;
    Ok(rustix::net::bind(socket, &address)?)
}

/// A name gets the rights of the socket that is bound to it, less those of the umask. What the umask took away is given back before clients can
/// find it.
fn begun(socket: &OwnedFd, path: &Path, mode: SocketMode) -> io::Result<()> {
    if fs::symlink_metadata(path)?.mode() & 0o777 != mode.mode().as_raw_mode() {
        rustix::fs::chmod(path, mode.mode())?;
    }
    Ok(rustix::net::listen(socket, BACKLOG)?)
}

/// Renames the socket, unless `path` is there.
fn name_as(temporary: &Path, path: &Path) -> io::Result<()> {
    match renameat_with(CWD, temporary, CWD, path, RenameFlags::NOREPLACE) {
        // The file system cannot rename like that; a hard link is refused, too, if the name exists.
        Err(Errno::INVAL | Errno::NOSYS) => match fs::hard_link(temporary, path) {
            Ok(()) => fs::remove_file(temporary),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(io::ErrorKind::AddrInUse.into())
            }
            Err(error) => Err(error),
        },
        Err(Errno::EXIST) => Err(io::ErrorKind::AddrInUse.into()),
        renamed => Ok(renamed?),
    }
}
