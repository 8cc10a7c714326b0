//! Sockets that another process listened at before us. Code that listens at the same place gets them instead
//! of making new ones.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

use net::dial::AbstractName;
use parking_lot::Mutex;

use super::message::Place;
use crate::systemd::Inherited;

/// A descriptor, and what it was made for.
#[derive(Debug)]
pub struct Handed {
    /// Its place.
    pub place: Place,
    /// The descriptor.
    pub fd: OwnedFd,
}

impl Handed {
    /// The same once more.
    ///
    /// # Errors
    /// When the process may not have more descriptors.
    pub fn again(&self) -> std::io::Result<Self> {
        Ok(Self { place: self.place.clone(), fd: self.fd.try_clone()? })
    }
}

/// Sockets that were handed over and not taken yet. One list for the process, as for LISTEN_FDS: sockets are
/// opened in many places.
static WAITING: Mutex<Vec<Handed>> = Mutex::new(Vec::new());

/// Replaces the list.
pub fn offer(sockets: Vec<Handed>) {
    *WAITING.lock() = sockets;
}

/// Closes the sockets that were not taken.
pub fn close_unwanted() {
    WAITING.lock().clear();
}

fn take(place: &Place) -> Option<OwnedFd> {
    let mut waiting = WAITING.lock();
    let at = waiting.iter().position(|handed| handed.place == *place)?;
    Some(waiting.swap_remove(at).fd)
}

/// The socket that listens at `path`, if it was handed over.
pub fn unix(path: &Path) -> Option<UnixListener> {
    let path = std::path::absolute(path).ok()?;
    take(&Place::Unix(path)).map(UnixListener::from)
}

/// The abstract socket of this name, if it was handed over.
pub fn abstract_one(name: &AbstractName) -> Option<UnixListener> {
    take(&Place::Abstract(name.to_string())).map(UnixListener::from)
}

/// The socket that listens at `address`, if it was handed over.
pub fn tcp(address: SocketAddr) -> Option<TcpListener> {
    take(&Place::Tcp(address)).map(TcpListener::from)
}

/// The locked pid file at `path`, if it was handed over.
pub fn pid_file(path: &Path) -> Option<OwnedFd> {
    let path = std::path::absolute(path).ok()?;
    take(&Place::PidFile(path))
}

/// Those that systemd made.
pub fn systemd() -> Vec<Inherited> {
    let mut found = Vec::new();
    let mut waiting = WAITING.lock();
    for Handed { place, fd } in std::mem::take(&mut *waiting) {
        match place {
            Place::SystemdUnix(_) => found.push(Inherited::Unix(fd.into())),
            Place::SystemdTcp(_) => found.push(Inherited::Tcp(fd.into())),
            place => waiting.push(Handed { place, fd }),
        }
    }
    found
}
