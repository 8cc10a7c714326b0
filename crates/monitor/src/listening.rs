//! From where clients may come in to sockets that are open.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use reactor::net::Listener;
use tool::failure::Failure;

use super::endpoint::Endpoint;
use super::socket_mode::SocketMode;
use super::socket_path::NamedSocket;
use super::systemd::Inherited;
use super::take_over::message::Place;
use super::take_over::sockets::{self, Handed};

/// Where the server really listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// TCP.
    Tcp(SocketAddr),
}

/// Open sockets, and what clients call them.
#[derive(Debug)]
pub struct Listening {
    /// The sockets.
    pub listeners: Vec<Listener>,
    /// The addresses of those that a line to paste can name.
    pub addresses: Vec<Address>,
    /// What each was made for.
    places: Vec<Place>,
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
            Endpoint::Abstract(name) => {
                let failed =
                    |error| Failure::of_system(format!("cannot listen on the socket {name}"), &error);
                let listener =
                    sockets::abstract_one(name).map_or_else(|| name.listen(), Ok).map_err(failed)?;
                let listener = Listener::from_unix(listener).map_err(failed)?;
                let places = vec![Place::Abstract(name.to_string())];
                Ok(Self { listeners: vec![listener], addresses: Vec::new(), places, named: None })
            }
            Endpoint::PrivateSocket(name) => Self::named(NamedSocket::bind_private(name)?),
            Endpoint::Tcp(address) => {
                let failed = |error| Failure::of_system(format!("cannot listen on {address}"), &error);
                let listener =
                    sockets::tcp(*address).map_or_else(|| TcpListener::bind(address), Ok).map_err(failed)?;
                let address = listener.local_addr().map_err(failed)?;
                let listener = Listener::from_tcp(listener).map_err(failed)?;
                Ok(Self {
                    listeners: vec![listener],
                    addresses: vec![Address::Tcp(address)],
                    places: vec![Place::Tcp(address)],
                    named: None,
                })
            }
            Endpoint::Inherited => Self::inherited(inherited),
        }
    }

    /// The socket's name in the file system, if it has one that goes with it.
    pub fn name(&self) -> Option<&Path> {
        self.named.as_ref().map(NamedSocket::path)
    }

    /// The name in the file system stays when the socket goes.
    pub fn leave_name(&mut self) {
        if let Some(named) = &mut self.named {
            named.leave_name();
        }
    }

    /// The sockets themselves, for the next process.
    ///
    /// # Errors
    /// When the process may not have more descriptors.
    pub fn handed(&self) -> io::Result<Vec<Handed>> {
        let both = self.places.iter().zip(&self.listeners);
        let handed = both.map(|(place, listener)| {
            Ok(Handed { place: place.clone(), fd: listener.as_fd().try_clone_to_owned()? })
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
            addresses: vec![Address::Unix(path.clone())],
            places: vec![Place::Unix(path)],
            named: Some(socket),
        })
    }

    fn inherited(inherited: Vec<Inherited>) -> Result<Self, Failure> {
        let failed = |error| Failure::because("cannot use a socket that systemd handed over", &error);
        let mut listening =
            Self { listeners: Vec::new(), addresses: Vec::new(), places: Vec::new(), named: None };
        for socket in inherited {
            let (place, listener) = match socket {
                Inherited::Unix(socket) => {
                    let path = socket.local_addr().map_err(failed)?.as_pathname().map(Path::to_owned);
                    listening.addresses.extend(path.clone().map(Address::Unix));
                    (Place::SystemdUnix(path.unwrap_or_default()), Listener::from_unix(socket))
                }
                Inherited::Tcp(socket) => {
                    let address = socket.local_addr().map_err(failed)?;
                    listening.addresses.push(Address::Tcp(address));
                    (Place::SystemdTcp(address), Listener::from_tcp(socket))
                }
            };
            listening.places.push(place);
            listening.listeners.push(listener.map_err(failed)?);
        }
        Ok(listening)
    }
}
