//! Character devices of `qemu-storage-daemon`: where the other ends of its monitors are.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use control::QmpError;
use reactor::net::Stream;
use rustix::io::ioctl_fionbio;
use tool::failure::Failure;

use super::carried::{self, Input, Output};
use crate::endpoint::Endpoint;
use crate::listening::{Address, Listening};
use crate::socket_mode::SocketMode;

/// Where the client of a monitor is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It connects to a socket, at which the daemon listens.
    Socket(Endpoint),
    /// It listens at a socket, to which the daemon connects once.
    Client(Endpoint),
    /// On standard input and output.
    Stdio,
    /// A file takes answers and events.
    File {
        path: PathBuf,
        append: bool,
        /// The file with the commands.
        commands: Option<PathBuf>,
    },
    /// At the FIFOs `PATH.in` and `PATH.out`, or at one for both directions.
    Pipe(PathBuf),
    /// Nowhere: no command comes, and no answer is read.
    Null,
}

/// What is open of a device.
pub enum End {
    /// A socket that clients connect to, one monitor after another.
    Listening(Listening),
    /// A client that is connected.
    Connected(Stream),
    /// Bytes come from the first and go to the second; messages call them so.
    Carried(&'static str, Input, Output),
    /// Nothing, or what a monitor took.
    Nothing,
}

impl Place {
    /// Opens it. A file is made, and a socket is there from now on.
    ///
    /// # Errors
    /// When it is not to be had.
    pub fn open(&self) -> Result<End, Failure> {
        let failed =
            |what: &Path, error| Failure::of_system(format!("cannot open {}", what.display()), &error);
        Ok(match self {
            Self::Socket(place) => {
                End::Listening(Listening::start(place, SocketMode::default(), Vec::new())?)
            }
            Self::Client(place) => {
                let connected = place.connect();
                let stream = connected.and_then(|socket| Ok(ioctl_fionbio(&socket, true).map(|()| socket)?));
                let refused = |error: io::Error| {
                    Failure::of_system(format!("cannot connect a monitor to {place}"), &error)
                };
                End::Connected(Stream::from_fd(stream.map_err(refused)?))
            }
            Self::Stdio => {
                let (input, output) =
                    carried::stdio().map_err(|error| Failure::because("standard output", &error))?;
                End::Carried("standard output", input, output)
            }
            Self::File { path, append, commands } => {
                let (input, output) = carried::files(path, *append, commands.as_deref())
                    .map_err(|error| failed(path, error))?;
                End::Carried("the file of a monitor", input, output)
            }
            Self::Pipe(path) => {
                let (input, output) = carried::pipes(path).map_err(|error| failed(path, error))?;
                End::Carried("the pipe of a monitor", input, output)
            }
            Self::Null => End::Nothing,
        })
    }

    /// As QEMU shows it; a socket at which no client is, as disconnected.
    fn shown(&self, is_used: bool) -> String {
        let state = if is_used { "" } else { "disconnected:" };
        match self {
            Self::Socket(place) => format!("{state}{},server=on", shown_endpoint(place)),
            Self::Client(place) => shown_endpoint(place),
            Self::Stdio => "stdio".to_owned(),
            Self::File { .. } => "file".to_owned(),
            Self::Pipe(_) => "pipe".to_owned(),
            Self::Null => "null".to_owned(),
        }
    }
}

fn shown_endpoint(place: &Endpoint) -> String {
    match place {
        Endpoint::Abstract(name) => {
            let (name, tight) = name.parts();
            format!("unix:{name},abstract=on{}", if tight { ",tight=on" } else { "" })
        }
        Endpoint::Tcp(address) => format!("tcp:{address}"),
        place => format!("unix:{place}"),
    }
}

/// A character device.
pub struct Chardev {
    /// Its name.
    pub id: String,
    place: RefCell<Place>,
    end: RefCell<End>,
    is_used: Cell<bool>,
}

impl Chardev {
    /// A monitor gets what is open, until [`Chardev::release`].
    ///
    /// # Errors
    /// When there is one already.
    pub fn take(&self) -> Result<End, QmpError> {
        if self.is_used.replace(true) {
            return Err(QmpError::generic(format!("character device \"{}\" has a monitor", self.id)));
        }
        Ok(std::mem::replace(&mut *self.end.borrow_mut(), End::Nothing))
    }

    /// No monitor uses it any more; the next one gets the sockets that stay open.
    pub fn release(&self, listening: Option<Listening>) {
        if let Some(listening) = listening {
            *self.end.borrow_mut() = End::Listening(listening);
        }
        self.is_used.set(false);
    }
}

/// The character devices, the oldest first.
#[derive(Default)]
pub struct Chardevs(RefCell<Vec<Rc<Chardev>>>);

impl Chardevs {
    /// The one called `id`.
    pub fn find(&self, id: &str) -> Option<Rc<Chardev>> {
        self.0.borrow().iter().find(|device| device.id == id).cloned()
    }

    /// Opens one.
    ///
    /// # Errors
    /// When there is one of that name, or the place is not to be had.
    pub fn add(&self, id: &str, place: Place) -> Result<(), Failure> {
        if self.find(id).is_some() {
            return Err(Failure::new(format!("there is a character device \"{id}\" already")));
        }
        let is_stdio = |device: &Rc<Chardev>| *device.place.borrow() == Place::Stdio;
        if place == Place::Stdio && self.0.borrow().iter().any(is_stdio) {
            return Err(Failure::new("another character device is at standard input and output"));
        }
        let end = place.open()?;
        // The system chose the port 0.
        let place = match &end {
            End::Listening(Listening { addresses, .. }) => match addresses.as_slice() {
                [Address::Tcp(address)] => Place::Socket(Endpoint::Tcp(*address)),
                _ => place,
            },
            _ => place,
        };
        let (place, end) = (RefCell::new(place), RefCell::new(end));
        self.0.borrow_mut().push(Rc::new(Chardev {
            id: id.to_owned(),
            place,
            end,
            is_used: Cell::new(false),
        }));
        Ok(())
    }

    /// Closes one.
    ///
    /// # Errors
    /// When there is none, or a monitor uses it.
    pub fn remove(&self, id: &str) -> Result<(), QmpError> {
        let device = self.find(id).ok_or_else(|| not_found(id))?;
        if device.is_used.get() {
            return Err(QmpError::generic(format!("a monitor uses character device \"{id}\"")));
        }
        self.0.borrow_mut().retain(|other| !Rc::ptr_eq(other, &device));
        Ok(())
    }

    /// Puts another place behind a name.
    ///
    /// # Errors
    /// When there is none of that name, a monitor uses it, or the place is not to be had.
    pub fn change(&self, id: &str, place: Place) -> Result<(), QmpError> {
        let device = self.find(id).ok_or_else(|| not_found(id))?;
        if device.is_used.get() {
            return Err(QmpError::generic(format!(
                "a monitor uses character device \"{id}\": it stays where it is"
            )));
        }
        // The old one may listen at the same path.
        let old = std::mem::replace(&mut *device.end.borrow_mut(), End::Nothing);
        match place.open() {
            Ok(end) => {
                drop(old);
                *device.end.borrow_mut() = end;
                *device.place.borrow_mut() = place;
                Ok(())
            }
            Err(failure) => {
                *device.end.borrow_mut() = old;
                Err(QmpError::generic(failure.to_string()))
            }
        }
    }

    /// The name, how it is shown, and whether a monitor uses it, of each.
    pub fn shown(&self) -> Vec<(String, String, bool)> {
        let shown = |device: &Rc<Chardev>| {
            let is_used = device.is_used.get();
            (device.id.clone(), device.place.borrow().shown(is_used), is_used)
        };
        self.0.borrow().iter().map(shown).collect()
    }
}

/// An answer to a command about one that is not there.
pub fn not_found(id: &str) -> QmpError {
    QmpError::generic(format!("there is no character device \"{id}\""))
}
