//! A Unix socket's name in the file system: private, unique, and not blocked by a dead server's.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use graph::names::directory_of;
use rustix::fs::{FlockOperation, flock};
use tool::failure::Failure;

use super::new_socket::{self, Lock};
use super::socket_mode::SocketMode;
use super::take_over::sockets;

/// Bytes of a socket's path at most (sun_path of Linux, with its terminating zero).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// A listening socket and the name it is reached by. Dropping it removes the name.
#[derive(Debug)]
pub struct NamedSocket {
    listener: UnixListener,
    path: PathBuf,
    identity: (u64, u64),
    stays: bool,
}

impl NamedSocket {
    /// Listens at `path`. `mode` says who may connect, from the first instant on. The socket of a server that
    /// no longer runs is replaced.
    ///
    /// # Errors
    /// When a server listens there, or the name belongs to something that is no socket.
    pub fn bind(path: &Path, mode: SocketMode) -> Result<Self, Failure> {
        bind(path, mode).map_err(|error| cannot_listen(path, &error))
    }

    /// Listens in the private directory, at `name.sock`. No other name is tried: clients would find one disk where they look for another.
    ///
    /// # Errors
    /// When there is no private directory, or a server listens there.
    pub fn bind_private(name: &str) -> Result<Self, Failure> {
        let path = private_directory()?.join(format!("{name}.sock"));
        bind(&path, SocketMode::default()).map_err(|error| {
            cannot_listen(&path, &error).with_hint("to listen elsewhere, give --socket PATH")
        })
    }

    /// The name stays when the socket goes.
    pub fn leave_name(&mut self) {
        self.stays = true;
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

/// Whether names stay when their sockets go: another process listens at them.
static NAMES_STAY: AtomicBool = AtomicBool::new(false);

/// From now on names in the file system stay when what they belong to is dropped, or no longer.
pub fn let_names_stay(stay: bool) {
    NAMES_STAY.store(stay, Ordering::SeqCst);
}

/// Whether [`let_names_stay`] holds.
pub fn names_stay() -> bool {
    NAMES_STAY.load(Ordering::SeqCst)
}

impl Drop for NamedSocket {
    fn drop(&mut self) {
        if self.stays || names_stay() {
            return;
        }
        // A server started in the meantime may have taken the name over.
        if fs::symlink_metadata(&self.path).is_ok_and(|now| (now.dev(), now.ino()) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn cannot_listen(path: &Path, error: &io::Error) -> Failure {
    Failure::of_system(format!("cannot listen on the socket {}", path.display()), error)
}

fn bind(path: &Path, mode: SocketMode) -> io::Result<NamedSocket> {
    let bytes = path.as_os_str().len();
    if bytes > SOCKET_PATH_BYTES_MAX {
        let text = format!(
            "the path is {bytes} bytes; a socket's may have {SOCKET_PATH_BYTES_MAX}: give a shorter --socket"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    if let (Some(listener), Ok(metadata)) = (sockets::unix(path), fs::symlink_metadata(path)) {
        return Ok(NamedSocket {
            listener,
            path: path.to_owned(),
            identity: (metadata.dev(), metadata.ino()),
            stays: false,
        });
    }
    // Between finding a dead socket and replacing it no other process may do the same: the directory is
    // locked. Where it cannot be (no right to open it), binding alone still is atomic.
    let directory = File::open(directory_of(path));
    if let Ok(directory) = &directory {
        flock(directory, FlockOperation::LockExclusive)?;
    }
    let lock = if directory.is_ok() { Lock::Held } else { Lock::None };
    let listener = match new_socket::listen_at(path, mode, lock) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_dead(path)?;
            new_socket::listen_at(path, mode, lock)?
        }
        bound => bound?,
    };
    let metadata = fs::symlink_metadata(path)?;
    let identity = (metadata.dev(), metadata.ino());
    Ok(NamedSocket { listener, path: path.to_owned(), identity, stays: false })
}

/// Removes a socket that no server listens at.
fn remove_dead(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the name belongs to a file that is no socket",
        ));
    }
    match net::dial::connect_now(path) {
        // A server that was killed may be answered for a moment longer, by the kernel alone.
        Ok(stream) if is_gone(&stream) => fs::remove_file(path),
        Ok(stream) => Err(io::Error::new(io::ErrorKind::AddrInUse, in_use(&stream))),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}

fn in_use(stream: &UnixStream) -> String {
    match rustix::net::sockopt::socket_peercred(stream) {
        Ok(peer) => format!("another server listens there (process {})", peer.pid.as_raw_nonzero()),
        Err(_) => "another server listens there".to_owned(),
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

/// Makes the directory, or checks that the existing one is ours alone.
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

/// What a server's socket is called whose first export is `export`, of the disk at `path`: the same whenever and in whatever order
/// servers are started, and another one for every path.
pub fn private_name(export: &str, path: &Path) -> String {
    // It has to stay what it is, since clients remember the name.
    format!("{}-{:012x}", file_name(export), fnv_48(path.as_os_str().as_bytes()))
}

/// The upper 48 bits of FNV-1a.
pub fn fnv_48(bytes: &[u8]) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    bytes.iter().fold(BASIS, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME)) >> 16
}

/// An export's name as part of a file's name.
pub fn file_name(export: &str) -> String {
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
        let living = NamedSocket::bind(&path, SocketMode::default()).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        let refused = NamedSocket::bind(&path, SocketMode::default()).unwrap_err().to_string();
        assert!(refused.contains("another server listens there"), "{refused}");
        drop(living);
        assert!(!path.exists());
    }

    /// The umask of a service is 022 mostly: a socket was readable to all, and to be had by others under umask 0.
    #[test]
    fn a_socket_is_its_owners_alone_unless_others_are_let_in() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let mode = |asked| {
            let _socket = NamedSocket::bind(&path, asked).unwrap();
            assert!(UnixStream::connect(&path).is_ok());
            fs::metadata(&path).unwrap().mode() & 0o777
        };
        assert_eq!(mode(SocketMode::default()), 0o600);
        for octal in ["0660", "0666", "0777", "0600"] {
            let asked: SocketMode = octal.parse().unwrap();
            assert_eq!(mode(asked), asked.mode().as_raw_mode());
        }
    }

    /// A client that waited for the file and connected was refused now and then: the name was there before the socket listened.
    #[test]
    fn a_name_that_is_there_is_one_that_can_be_connected_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                while !ended.load(Ordering::SeqCst) {
                    if let Err(error) = UnixStream::connect(&path) {
                        assert_eq!(error.kind(), io::ErrorKind::NotFound);
                    }
                }
            });
            // They listen to the end: a name is gone before its socket.
            let sockets = (0..500).map(|_| {
                let socket = NamedSocket::bind(&path, SocketMode::default()).unwrap();
                fs::remove_file(&path).unwrap();
                socket
            });
            let sockets: Vec<_> = sockets.collect();
            ended.store(true, Ordering::SeqCst);
            client.join().unwrap();
            drop(sockets);
        });
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "something is left");
    }

    /// The name that a socket has for a moment fits wherever its own does: a whole path of 107 bytes, or a name of that length.
    #[test]
    fn a_path_as_long_as_a_sockets_may_be_is_one() {
        let directory = tempfile::tempdir().unwrap();
        let long = |bytes: usize, parts: &[&str]| {
            let all = parts.iter().fold(directory.path().to_owned(), |path, part| path.join(part));
            let left = bytes - all.as_os_str().len() - 1;
            all.join("n".repeat(left))
        };
        let deep = "d".repeat(60);
        fs::create_dir(directory.path().join(&deep)).unwrap();
        for path in [long(107, &[]), long(107, &[&deep])] {
            assert_eq!(path.as_os_str().len(), 107);
            let left = path
                .parent()
                .unwrap()
                .join(format!(".{:012x}.new", fnv_48(path.file_name().unwrap().as_bytes())));
            // What a process left that was killed between bind and rename.
            drop(UnixListener::bind(&left).unwrap());
            let socket = NamedSocket::bind(&path, SocketMode::default()).unwrap();
            UnixStream::connect(&path).unwrap();
            assert!(!left.exists());
            drop(socket);
            assert!(!path.exists());
        }
    }

    #[test]
    fn a_file_that_is_no_socket_is_never_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.qcow2");
        fs::write(&path, "data").unwrap();
        assert!(NamedSocket::bind(&path, SocketMode::default()).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"data");
    }

    #[test]
    fn a_socket_put_in_its_place_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let ours = NamedSocket::bind(&path, SocketMode::default()).unwrap();
        fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(ours);
        assert!(UnixStream::connect(&path).is_ok());
        drop(other);
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_an_error_that_says_so() {
        let path = PathBuf::from(format!("/tmp/{}", "x".repeat(200)));
        let refused = NamedSocket::bind(&path, SocketMode::default()).unwrap_err().to_string();
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
    fn a_private_name_stays_what_it_is() {
        assert_eq!(private_name("disk", Path::new("/images/disk.qcow2")), "disk-ff72e58faa09");
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
