//! From where clients may come in to sockets that are open.

use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::path::Path;

use reactor::net::Listener;

use super::endpoint::Endpoint;
use super::paste::Address;
use super::socket_mode::SocketMode;
use super::socket_path::NamedSocket;
use super::systemd::Inherited;
use super::take_over::message::Place;
use super::take_over::sockets::{self, Handed};
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
    /// systemd made them.
    inherited: bool,
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
                let listener =
                    sockets::tcp(*address).map_or_else(|| TcpListener::bind(address), Ok).map_err(failed)?;
                let address = Address::Tcp(listener.local_addr().map_err(failed)?);
                let listener = Listener::from_tcp(listener).map_err(failed)?;
                Ok(Self {
                    listeners: vec![listener],
                    addresses: vec![address],
                    named: None,
                    inherited: false,
                })
            }
            Endpoint::Inherited => Self::inherited(inherited),
        }
    }

    /// The socket's name in the file system, if it has one that goes with it.
    pub fn name(&self) -> Option<&Path> {
        self.named.as_ref().map(NamedSocket::path)
    }

    /// The sockets themselves, for the next process.
    ///
    /// # Errors
    /// When the process may not have more descriptors.
    pub fn handed(&self) -> io::Result<Vec<Handed>> {
        let both = self.addresses.iter().zip(&self.listeners);
        let handed = both.map(|(address, listener)| {
            let place = match (address, self.inherited) {
                (Address::Unix(path), false) => Place::Unix(path.clone()),
                (Address::Unix(path), true) => Place::SystemdUnix(path.clone()),
                (Address::Tcp(address), false) => Place::Tcp(*address),
                (Address::Tcp(address), true) => Place::SystemdTcp(*address),
            };
            Ok(Handed { place, fd: listener.as_fd().try_clone_to_owned()? })
        });
        handed.collect()
    }

    fn named(socket: NamedSocket) -> Result<Self, Failure> {
        let failed =
            |error| Failure::of_system(format!("cannot listen on {}", socket.path().display()), &error);
        let listener = socket.listener().and_then(Listener::from_unix).map_err(failed)?;
        let path = std::path::absolute(socket.path()).map_err(failed)?;
        Ok(Self {
            listeners: vec![listener],
            addresses: vec![Address::Unix(path)],
            named: Some(socket),
            inherited: false,
        })
    }

    fn inherited(inherited: Vec<Inherited>) -> Result<Self, Failure> {
        let failed = |error| Failure::because("cannot use a socket that systemd handed over", &error);
        let mut listening =
            Self { listeners: Vec::new(), addresses: Vec::new(), named: None, inherited: true };
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
