//! Where clients come in: a Unix socket, or TCP with the rule for leaving this machine.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use control::{QmpError, arguments};
use net::dial::AbstractName;
use tool::failure::Failure;

arguments! {
    /// A Unix socket, perhaps one without a path.
    pub struct UnixAddress { path: String, r#abstract: Option<bool>, tight: Option<bool> }
}

/// A place to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket at this path.
    Socket(PathBuf),
    /// A Unix socket without a path: every user of this machine may connect.
    Abstract(AbstractName),
    /// A Unix socket of this name in a private directory.
    PrivateSocket(String),
    /// TCP.
    Tcp(SocketAddr),
    /// Sockets that systemd opened for us.
    Inherited,
}

impl Endpoint {
    /// Connects to the server there. Waits.
    ///
    /// # Errors
    /// When no process listens there; `Unsupported` when no name leads there.
    pub fn connect(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Socket(path) => UnixStream::connect(path).map(OwnedFd::from),
            Self::Abstract(name) => name.connect().map(OwnedFd::from),
            Self::Tcp(address) => TcpStream::connect(address).map(OwnedFd::from),
            Self::PrivateSocket(_) | Self::Inherited => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The unix socket that a command describes.
    ///
    /// # Errors
    /// When the path is too long for an abstract name.
    pub fn unix(UnixAddress { path, r#abstract, tight }: &UnixAddress) -> Result<Self, QmpError> {
        if *r#abstract != Some(true) {
            return Ok(Self::Socket(PathBuf::from(path)));
        }
        let name = AbstractName::new(path, tight.unwrap_or(true));
        name.map(Self::Abstract).map_err(|error| QmpError::generic(error.to_string()))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Abstract(name) => name.fmt(f),
            Self::PrivateSocket(name) => name.fmt(f),
            Self::Tcp(address) => address.fmt(f),
            Self::Inherited => f.write_str("a socket of systemd's"),
        }
    }
}

/// What the rule about plain TCP is decided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// Clients must use TLS.
    pub tls: bool,
    /// `--allow-plain-tcp`.
    pub plain_allowed: bool,
}

/// Refuses TCP that others could read, unless it was asked for by name.
pub fn check_tcp(address: SocketAddr, protection: Protection) -> Result<(), Failure> {
    if address.ip().is_loopback() || protection.tls || protection.plain_allowed {
        return Ok(());
    }
    Err(Failure::new(format!(
        "--listen {address} can be reached from other machines, and without TLS each machine on the way can read and \
         change the disk; give --tls-cert and --tls-key, or --allow-plain-tcp if the network is trusted"
    )))
}

/// `ADDR:PORT`, `[ADDR]:PORT`, `NAME:PORT`, or `PORT` alone for this machine only.
pub fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix(':').unwrap_or(text);
    if let Ok(port) = port.parse() {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let mut found = text.to_socket_addrs().map_err(|_| {
        "not an address: write ADDR:PORT (127.0.0.1:10809, [::1]:10809), or PORT for this machine only"
            .to_owned()
    })?;
    found.next().ok_or_else(|| "the name has no address".to_owned())
}

/// `path` from the root: a server in the background leaves its directory.
///
/// # Errors
/// When there is no current directory.
pub fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path)
        .map_err(|error| Failure::because(format!("cannot find {}", path.display()), &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_on_this_machine_only() {
        for text in ["10809", ":10809", "127.0.0.1:10809"] {
            assert_eq!(parse_listen(text), Ok("127.0.0.1:10809".parse().unwrap()), "{text}");
        }
        assert_eq!(parse_listen("[::1]:1"), Ok("[::1]:1".parse().unwrap()));
        for text in ["", "99999", "127.0.0.1", "1.2.3.4:x"] {
            assert!(parse_listen(text).is_err(), "{text}");
        }
    }

    #[test]
    fn tcp_leaves_the_machine_only_with_tls_or_by_name() {
        let none = Protection { tls: false, plain_allowed: false };
        for address in ["0.0.0.0:1", "192.168.0.1:1", "[::]:1"] {
            let address = address.parse().unwrap();
            assert!(check_tcp(address, none).is_err(), "{address}");
            assert!(check_tcp(address, Protection { tls: true, ..none }).is_ok());
            assert!(check_tcp(address, Protection { plain_allowed: true, ..none }).is_ok());
        }
        for address in ["127.0.0.1:1", "127.5.5.5:1", "[::1]:1"] {
            assert!(check_tcp(address.parse().unwrap(), none).is_ok(), "{address}");
        }
    }
}
