//! From where clients may come in to sockets that are open.

use std::net::TcpListener;
use std::path::Path;

use reactor::net::Listener;

use super::endpoint::Endpoint;
use super::paste::Address;
use super::socket_mode::SocketMode;
use super::socket_path::NamedSocket;
use super::systemd::Inherited;
use crate::failure::Failure;

/// Open sockets, and what clients call them.
#[derive(Debug)]
pub struct Listening {
    /// The sockets.
    pub listeners: Vec<Listener>,
    /// Their addresses.
    pub addresses: Vec<Address>,
    /// Removes its name from the file system when it goes.
    named: Option<NamedSocket>,
}

impl Listening {
    /// Opens what `endpoint` says. `mode` is who may connect to a Unix socket with a path.
    ///
    /// # Errors
    /// When an address is in use or not to be had.
    pub fn start(endpoint: &Endpoint, mode: SocketMode, inherited: Vec<Inherited>) -> Result<Self, Failure> {
        match endpoint {
            Endpoint::Socket(path) => Self::named(NamedSocket::bind(path, mode)?),
            Endpoint::PrivateSocket(name) => Self::named(NamedSocket::bind_private(name)?),
            Endpoint::Tcp(address) => {
                let failed = |error| Failure::of_system(format!("cannot listen on {address}"), &error);
                let listener = TcpListener::bind(address).map_err(failed)?;
                let address = Address::Tcp(listener.local_addr().map_err(failed)?);
                let listener = Listener::from_tcp(listener).map_err(failed)?;
                Ok(Self { listeners: vec![listener], addresses: vec![address], named: None })
            }
            Endpoint::Inherited => Self::inherited(inherited),
        }
    }

    /// The socket's name in the file system, if it has one that goes with it.
    pub fn name(&self) -> Option<&Path> {
        self.named.as_ref().map(NamedSocket::path)
    }

    fn named(socket: NamedSocket) -> Result<Self, Failure> {
        let failed =
            |error| Failure::of_system(format!("cannot listen on {}", socket.path().display()), &error);
        let listener = socket.listener().and_then(Listener::from_unix).map_err(failed)?;
        let path = std::path::absolute(socket.path()).map_err(failed)?;
        Ok(Self { listeners: vec![listener], addresses: vec![Address::Unix(path)], named: Some(socket) })
    }

    fn inherited(inherited: Vec<Inherited>) -> Result<Self, Failure> {
        let failed = |error| Failure::because("cannot use a socket that systemd handed over", &error);
        let mut listening = Self { listeners: Vec::new(), addresses: Vec::new(), named: None };
        for socket in inherited {
            let (address, listener) = match socket {
                Inherited::Unix(socket) => {
                    let address = socket.local_addr().map_err(failed)?;
                    let path = address.as_pathname().unwrap_or(Path::new("")).to_owned();
                    (Address::Unix(path), Listener::from_unix(socket))
                }
                Inherited::Tcp(socket) => {
                    (Address::Tcp(socket.local_addr().map_err(failed)?), Listener::from_tcp(socket))
                }
            };
            listening.addresses.push(address);
            listening.listeners.push(listener.map_err(failed)?);
        }
        Ok(listening)
    }
}
