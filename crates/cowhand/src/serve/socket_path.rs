//! A Unix socket's name in the file system: private, unique, and not blocked by a dead server's.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::failure::Failure;

/// Bytes of a socket's path at most (sun_path of Linux, with its terminating zero).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Names that are tried for the default socket before giving up.
const DEFAULT_NAMES_MAX: u32 = 100;

/// A listening socket and the name it is reached by. Dropping it removes the name.
#[derive(Debug)]
pub struct NamedSocket {
    listener: UnixListener,
    path: PathBuf,
    identity: (u64, u64),
}

impl NamedSocket {
    /// Listens at `path`. The socket of a server that no longer runs is replaced.
    ///
    /// # Errors
    /// When somebody listens there, or the name belongs to something that is no socket.
    pub fn bind(path: &Path) -> Result<Self, Failure> {
        bind(path).map_err(|error| cannot_listen(path, &error))
    }

    /// Listens in the private directory, at the first free of `name.sock`, `name-2.sock`, ...
    ///
    /// # Errors
    /// When there is no private directory, or no free name.
    pub fn bind_private(name: &str) -> Result<Self, Failure> {
        let directory = private_directory()?;
        let name = file_name(name);
        for number in 1..=DEFAULT_NAMES_MAX {
            let suffix = if number == 1 { String::new() } else { format!("-{number}") };
            let path = directory.join(format!("{name}{suffix}.sock"));
            match bind(&path) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                bound => return bound.map_err(|error| cannot_listen(&path, &error)),
            }
        }
        Err(Failure::new(format!(
            "{DEFAULT_NAMES_MAX} servers listen as {name} in {} already; give --socket PATH",
            directory.display()
        )))
    }

    /// Where it is reached.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Another handle on the listening socket.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl Drop for NamedSocket {
    fn drop(&mut self) {
        // A server started in the meantime may have taken the name over.
        if fs::symlink_metadata(&self.path).is_ok_and(|now| (now.dev(), now.ino()) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn cannot_listen(path: &Path, error: &io::Error) -> Failure {
    Failure::because(format!("cannot listen on the socket {}", path.display()), error)
}

fn bind(path: &Path) -> io::Result<NamedSocket> {
    let bytes = path.as_os_str().len();
    if bytes > SOCKET_PATH_BYTES_MAX {
        let text = format!(
            "the path is {bytes} bytes; a socket's may have {SOCKET_PATH_BYTES_MAX}: give a shorter --socket"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    // Between finding a dead socket and replacing it nobody else may do the same: the directory is
    // locked. Where it cannot be (no right to open it), binding alone still is atomic.
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let lock = File::open(directory);
    if let Ok(directory) = &lock {
        flock(directory, FlockOperation::LockExclusive)?;
    }
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_dead(path)?;
            UnixListener::bind(path)?
        }
        bound => bound?,
    };
    let metadata = fs::symlink_metadata(path)?;
    Ok(NamedSocket { listener, path: path.to_owned(), identity: (metadata.dev(), metadata.ino()) })
}

/// Removes a socket behind which nobody listens.
fn remove_dead(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the name belongs to a file that is no socket",
        ));
    }
    match UnixStream::connect(path) {
        // A server that was killed may be answered for a moment longer, by the kernel alone.
        Ok(stream) if is_gone(&stream) => fs::remove_file(path),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}

/// Whether the process that listens at the other end has ended.
fn is_gone(stream: &UnixStream) -> bool {
    let listener = rustix::net::sockopt::socket_peercred(stream);
    listener.is_ok_and(|peer| !Path::new(&format!("/proc/{}", peer.pid.as_raw_nonzero())).exists())
}

/// A directory that only we can enter: `$XDG_RUNTIME_DIR/cowhand`, or `/tmp/cowhand-UID`.
fn private_directory() -> Result<PathBuf, Failure> {
    let user = rustix::process::getuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_dir());
    let path =
        runtime.map_or_else(|| PathBuf::from(format!("/tmp/cowhand-{user}")), |dir| dir.join("cowhand"));
    make_private(&path, user).map_err(|error| {
        Failure::because(format!("cannot use {} for the socket (give --socket PATH)", path.display()), &error)
    })?;
    Ok(path)
}

/// Makes the directory, or makes sure that the one which is there is nobody else's.
fn make_private(path: &Path, user: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_dir() || metadata.uid() != user || metadata.mode() & 0o077 != 0 {
        let text = format!("it must be a directory of user {user} with mode 0700");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(())
}

/// An export's name as part of a file's name.
fn file_name(export: &str) -> String {
    const BYTES_MAX: usize = 32;
    let safe = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = export.chars().take(BYTES_MAX).map(safe).collect();
    match name.trim_start_matches('.') {
        "" => "disk".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_dead_servers_socket_is_replaced_and_a_living_ones_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a dead socket stays behind");
        let living = NamedSocket::bind(&path).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        let refused = NamedSocket::bind(&path).unwrap_err().to_string();
        assert!(refused.contains("another server listens there"), "{refused}");
        drop(living);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_is_no_socket_is_never_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.qcow2");
        fs::write(&path, "data").unwrap();
        assert!(NamedSocket::bind(&path).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"data");
    }

    #[test]
    fn a_socket_put_in_its_place_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let ours = NamedSocket::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(ours);
        assert!(UnixStream::connect(&path).is_ok());
        drop(other);
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_an_error_that_says_so() {
        let path = PathBuf::from(format!("/tmp/{}", "x".repeat(200)));
        let refused = NamedSocket::bind(&path).unwrap_err().to_string();
        assert!(refused.contains("the path is 205 bytes; a socket's may have 107"), "{refused}");
    }

    #[test]
    fn a_directory_that_others_can_enter_is_not_private() {
        let directory = tempfile::tempdir().unwrap();
        let user = rustix::process::getuid().as_raw();
        let path = directory.path().join("d");
        make_private(&path, user).unwrap();
        make_private(&path, user).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(make_private(&path, user).is_err());
        let link = directory.path().join("l");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(make_private(&link, user).is_err());
    }

    #[test]
    fn an_exports_name_never_leaves_the_directory() {
        for (export, name) in
            [("disk", "disk"), ("../x", "_x"), ("", "disk"), ("a/b c", "a_b_c"), ("...", "disk")]
        {
            assert_eq!(file_name(export), name);
        }
    }
}
