//! Unix sockets without a name in the file system.

use std::fmt;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::str::FromStr;

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
