//! What a connection leads to.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, io};

use crate::dial::address::{Address, AddressError};

/// Shown and read before the path of a unix socket.
const UNIX: &str = "unix:";

/// A server: at a port of a host, or at a unix socket of this machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// `HOST:PORT`.
    Tcp(Address),
    /// `unix:PATH`; the path is absolute, since a broker has another working directory.
    Unix(PathBuf),
    /// `abstract:NAME` or `abstract-padded:NAME`: a unix socket without a path.
    Abstract(AbstractName),
}

/// No target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "HOST:PORT, with a port from 1 to 65535 (IPv6 as [ADDRESS]:PORT), unix:PATH, or abstract:NAME (abstract-padded:NAME)"
)]
pub struct TargetError;

impl Target {
    /// The socket at `path`, from the working directory.
    pub fn unix(path: &Path) -> Self {
        // Only an empty path has no absolute one, and no socket.
        Self::Unix(std::path::absolute(path).unwrap_or_else(|_| path.to_owned()))
    }

    /// The address, unless it is a unix socket.
    pub fn address(&self) -> Option<&Address> {
        match self {
            Self::Tcp(address) => Some(address),
            Self::Unix(_) | Self::Abstract(_) => None,
        }
    }
}

impl From<Address> for Target {
    fn from(address: Address) -> Self {
        Self::Tcp(address)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
            Self::Abstract(name) => name.fmt(f),
        }
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        match text.strip_prefix(UNIX) {
            Some("") => Err(TargetError),
            Some(path) => Ok(Self::unix(Path::new(path))),
            // A host may be called so; then its port is no name's beginning.
            None => match (text.parse(), text.parse()) {
                (Ok(name), _) => Ok(Self::Abstract(name)),
                (Err(_), Ok(address)) => Ok(Self::Tcp(address)),
                (Err(_), Err(AddressError)) => Err(TargetError),
            },
        }
    }
}

/// Where connections may lead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Just these.
    pub targets: std::collections::BTreeSet<Target>,
    /// Unix sockets in these directories and below.
    pub directories: Vec<PathBuf>,
}

impl Allowed {
    /// Whether a connection may be made to `target`: what is to be connected to then, all symbolic links followed.
    pub fn resolve(&self, target: &Target) -> Option<Target> {
        if self.targets.contains(target) {
            return Some(target.clone());
        }
        let Target::Unix(path) = target else { return None };
        let socket = path.canonicalize().ok()?;
        let is_below = |directory: &PathBuf| directory.canonicalize().is_ok_and(|it| socket.starts_with(it));
        self.directories.iter().any(is_below).then(|| Target::Unix(socket.clone()))
    }

    /// Whether nothing may be connected to.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty() && self.directories.is_empty()
    }
}

/// Bytes of an abstract name at most: `sun_path` of Linux, without the zero that begins it.
const NAME_BYTES: usize = 107;

/// Shown and read before a name that is used as it is.
const TIGHT: &str = "abstract:";
/// Before one that is filled up with zeroes.
const PADDED: &str = "abstract-padded:";

/// The name of an abstract unix socket. It has no rights: every process of the network namespace may connect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AbstractName {
    name: String,
    /// Not filled up with zeroes to the length that addresses have.
    tight: bool,
}

/// No name of an abstract socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name of an abstract socket is {0} bytes; allowed: 1 to {NAME_BYTES}, none of them 0")]
pub struct AbstractNameError(usize);

impl AbstractName {
    /// `name`, filled up with zeroes unless `tight`: both ends must agree on that.
    ///
    /// # Errors
    /// When it is empty or too long, or has a zero byte.
    pub fn new(name: &str, tight: bool) -> Result<Self, AbstractNameError> {
        match (1..=NAME_BYTES).contains(&name.len()) && !name.contains('\0') {
            true => Ok(Self { name: name.to_owned(), tight }),
            false => Err(AbstractNameError(name.len())),
        }
    }

    /// The name, and whether it is used as it is.
    pub fn parts(&self) -> (&str, bool) {
        (&self.name, self.tight)
    }

    fn address(&self) -> io::Result<SocketAddr> {
        let mut bytes = self.name.clone().into_bytes();
        if !self.tight {
            bytes.resize(NAME_BYTES, 0);
        }
        SocketAddr::from_abstract_name(bytes)
    }

    /// Connects, without asking a broker.
    ///
    /// # Errors
    /// When no server listens there, or a sandbox forbids it.
    pub fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect_addr(&self.address()?)
    }

    /// Listens there. The name goes with the socket.
    ///
    /// # Errors
    /// When another server listens there.
    pub fn listen(&self) -> io::Result<UnixListener> {
        UnixListener::bind_addr(&self.address()?)
    }
}

impl fmt::Display for AbstractName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.tight { TIGHT } else { PADDED }, self.name)
    }
}

impl FromStr for AbstractName {
    type Err = AbstractNameError;

    fn from_str(text: &str) -> Result<Self, AbstractNameError> {
        match (text.strip_prefix(TIGHT), text.strip_prefix(PADDED)) {
            (Some(name), _) => Self::new(name, true),
            (None, Some(name)) => Self::new(name, false),
            (None, None) => Err(AbstractNameError(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_read_as_it_is_shown() {
        for text in ["h:1", "[::1]:80", "unix:/run/s", "unix:/run/a:b", "abstract:a", "abstract-padded:b"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        for text in ["", "h", "unix:", "unix", ":1"] {
            assert_eq!(text.parse::<Target>(), Err(TargetError), "{text}");
        }
    }

    /// A directory given with --allow-path opened every socket of the machine: through a link in it.
    #[test]
    fn a_socket_is_allowed_by_its_directory_only_if_it_lies_there() {
        let scratch = std::env::temp_dir().join(format!("cowhand-dial-{}", std::process::id()));
        let (inside, outside) = (scratch.join("in"), scratch.join("out"));
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        for file in [inside.join("s"), outside.join("s")] {
            std::fs::write(file, "").unwrap();
        }
        std::os::unix::fs::symlink(outside.join("s"), inside.join("link")).unwrap();
        let allowed = Allowed { directories: vec![inside.clone()], ..Allowed::default() };
        let allows = |path: PathBuf| allowed.resolve(&Target::Unix(path)).is_some();
        assert!(allows(inside.join("s")));
        for path in [inside.join("link"), inside.join("../out/s"), outside.join("s"), inside.join("none")] {
            assert!(!allows(path.clone()), "{}", path.display());
        }
        std::fs::remove_dir_all(scratch).unwrap();
    }

    /// A server that pads its name and one that does not are two servers.
    #[test]
    fn a_socket_is_reached_by_the_name_and_the_padding_that_it_listens_with() {
        let name = format!("cowhand-dial-{}", std::process::id());
        for tight in [true, false] {
            let server = AbstractName::new(&name, tight).unwrap();
            let other = AbstractName::new(&name, !tight).unwrap();
            let _listener = server.listen().unwrap();
            assert_eq!(server.listen().unwrap_err().kind(), io::ErrorKind::AddrInUse);
            assert!(server.connect().is_ok());
            assert_eq!(other.connect().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
            assert_eq!(server.to_string().parse(), Ok(server));
        }
    }

    #[test]
    fn names_have_a_length_that_addresses_hold() {
        assert!(AbstractName::new(&"a".repeat(NAME_BYTES), true).unwrap().address().is_ok());
        for name in ["", "a\0b", &"a".repeat(NAME_BYTES + 1)] {
            assert!(AbstractName::new(name, false).is_err(), "{name:?}");
        }
    }
}
