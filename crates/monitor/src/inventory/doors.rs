//! Where NBD clients come in: opened at the start, or by command.

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use door_nbd::{Admission, Server, TlsPolicy};
use reactor::Task;

use super::super::listening::{Address, Listening};
use super::super::take_over::sockets::Handed;

/// The NBD server's sockets. Accepting happens on the loop of the main thread; clients are served on the others.
pub struct Doors {
    server: Arc<Server>,
    open: RefCell<Option<Door>>,
}

struct Door {
    listening: Listening,
    admission: Admission,
    /// Dropped, they end.
    tasks: Vec<Task<()>>,
}

impl Doors {
    /// None is open.
    pub fn new(server: Arc<Server>) -> Self {
        Self { server, open: RefCell::default() }
    }

    /// Lets clients come in from the next [`Doors::accept`] on, as far as `admission` goes.
    pub fn open(&self, listening: Listening, admission: Admission) {
        *self.open.borrow_mut() = Some(Door { listening, admission, tasks: Vec::new() });
    }

    /// How clients with this `tls` are admitted: all of them, with the server's own limits.
    pub fn admission(&self, tls: TlsPolicy) -> Admission {
        Admission { tls, ..self.server.admission() }
    }

    /// Starts accepting, if it has not begun. Runs on a loop.
    pub fn accept(&self) {
        let mut open = self.open.borrow_mut();
        let Some(door) = open.as_mut().filter(|door| door.tasks.is_empty()) else { return };
        for listener in &door.listening.listeners {
            let server = Arc::clone(&self.server);
            door.tasks.push(reactor::spawn(server.accept(listener.clone(), door.admission.clone())));
        }
    }

    /// Stops accepting clients; connected ones stay. `false` if nothing was open.
    pub fn close(&self) -> bool {
        self.open.borrow_mut().take().is_some()
    }

    /// The program ends, and the socket's name stays.
    pub fn leave_name(&self) {
        if let Some(door) = self.open.borrow_mut().as_mut() {
            door.listening.leave_name();
        }
    }

    /// The sockets themselves, for the next process.
    ///
    /// # Errors
    /// When the process may not have more descriptors.
    pub fn handed(&self) -> io::Result<Vec<Handed>> {
        self.open.borrow().as_ref().map_or(Ok(Vec::new()), |door| door.listening.handed())
    }

    /// Whether clients can come in.
    pub fn is_open(&self) -> bool {
        self.open.borrow().is_some()
    }

    /// Whether clients must use TLS.
    pub fn has_tls(&self) -> bool {
        self.open.borrow().as_ref().is_some_and(|door| !matches!(door.admission.tls, TlsPolicy::Off))
    }

    /// What clients call the sockets.
    pub fn addresses(&self) -> Vec<Address> {
        self.open.borrow().as_ref().map_or_else(Vec::new, |door| door.listening.addresses.clone())
    }

    /// The socket's name in the file system, if it has one that goes with it.
    pub fn name(&self) -> Option<PathBuf> {
        self.open.borrow().as_ref().and_then(|door| door.listening.name().map(PathBuf::from))
    }
}
