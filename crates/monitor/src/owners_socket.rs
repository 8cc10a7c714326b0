//! A socket for its owner alone: commands come in at one, a process that takes over at another.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use reactor::net::Listener;
use tool::failure::Failure;

use crate::socket_mode::SocketMode;
use crate::socket_path::NamedSocket;
use crate::take_over::message::Place;
use crate::take_over::sockets::Handed;

/// A listening socket with a name. Dropping it removes the name.
#[derive(Debug)]
pub struct OwnersSocket {
    /// Where connections come in.
    pub listener: Listener,
    named: NamedSocket,
}

impl OwnersSocket {
    /// Listens at `path`. Only our user can connect, from the first instant on.
    ///
    /// # Errors
    /// When a server listens there, or the name belongs to something that is no socket.
    pub fn bind(path: &Path) -> Result<Self, Failure> {
        let named = NamedSocket::bind(path, SocketMode::default())?;
        let failed = |error| Failure::because(format!("cannot listen on {}", named.path().display()), &error);
        let listener = named.listener().and_then(Listener::from_unix).map_err(failed)?;
        Ok(Self { listener, named })
    }

    /// The socket itself, for the next process.
    ///
    /// # Errors
    /// When the process may not have more descriptors.
    pub fn handed(&self) -> io::Result<Handed> {
        let place = Place::Unix(std::path::absolute(self.path())?);
        Ok(Handed { place, fd: self.listener.as_fd().try_clone_to_owned()? })
    }

    /// Its name in the file system.
    pub fn path(&self) -> &Path {
        self.named.path()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn only_its_owner_may_connect() {
        let directory = tempfile::tempdir().unwrap();
        let socket = OwnersSocket::bind(&directory.path().join("qmp")).unwrap();
        assert_eq!(std::fs::metadata(socket.path()).unwrap().mode() & 0o777, 0o600);
        let path = socket.path().to_owned();
        drop(socket);
        assert!(!path.exists());
    }
}
