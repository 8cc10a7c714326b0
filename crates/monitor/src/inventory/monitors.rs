//! Monitors of `qemu-storage-daemon`: each takes commands at a character device.

use std::cell::RefCell;
use std::fmt;
use std::rc::{Rc, Weak};

use control::{Form, QmpError, Server};
use reactor::Task;
use reactor::net::Stream;
use tool::failure::Failure;

use super::carried::Carried;
use super::chardevs::{Chardev, End};
use crate::listening::Listening;

/// A monitor. When it is removed it accepts no more clients; connected clients stay.
pub struct Monitor {
    device: Rc<Chardev>,
    form: Form,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    listening: Option<Listening>,
    /// A client that is connected, until it is served.
    connected: Option<Stream>,
    accepting: Vec<Task<()>>,
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a monitor at {:?}", self.device.id)
    }
}

impl Monitor {
    /// Its character device.
    pub fn device(&self) -> &str {
        &self.device.id
    }

    /// Whether it writes for people.
    pub fn is_pretty(&self) -> bool {
        self.form == Form::Indented
    }

    /// Lets clients come in. Runs on a loop.
    fn start(&self, server: &Rc<Server>) {
        let mut state = self.state.borrow_mut();
        if let Some(stream) = state.connected.take() {
            server.start(stream, self.form);
        }
        let listeners = state.listening.iter().flat_map(|listening| &listening.listeners);
        let accepting: Vec<_> = listeners
            .map(|listener| reactor::spawn(Rc::clone(server).accept(listener.clone(), self.form)))
            .collect();
        state.accepting = accepting;
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let state = self.state.take();
        drop(state.accepting);
        self.device.release(state.listening);
    }
}

/// All monitors that character devices have.
#[derive(Default)]
pub struct Monitors {
    /// Made by the command line; they are never removed.
    own: RefCell<Vec<Rc<Monitor>>>,
    /// Where they bring their clients, once it is there.
    server: RefCell<Weak<Server>>,
    carried: RefCell<Vec<Carried>>,
}

impl Monitors {
    /// Takes commands at `device`: at once, or as soon as there is a server.
    ///
    /// # Errors
    /// When another monitor does, or the system lets us have no thread.
    pub fn add(&self, device: Rc<Chardev>, form: Form) -> Result<Rc<Monitor>, QmpError> {
        let mut state = State::default();
        match device.take()? {
            End::Listening(listening) => state.listening = Some(listening),
            End::Connected(stream) => state.connected = Some(stream),
            End::Carried(name, input, output) => {
                let failed = |error| QmpError::because(format!("cannot talk on {name}"), &error);
                let (stream, carried) = Carried::begin(name, input, output).map_err(failed)?;
                state.connected = Some(stream);
                self.carried.borrow_mut().push(carried);
            }
            End::Nothing => {}
        }
        let monitor = Rc::new(Monitor { device, form, state: RefCell::new(state) });
        if let Some(server) = self.server.borrow().upgrade() {
            monitor.start(&server);
        }
        Ok(monitor)
    }

    /// The same, for as long as the program runs.
    ///
    /// # Errors
    /// As [`Monitors::add`].
    pub fn add_for_good(&self, device: Rc<Chardev>, form: Form) -> Result<(), QmpError> {
        let monitor = self.add(device, form)?;
        self.own.borrow_mut().push(monitor);
        Ok(())
    }

    /// Whether commands can come in.
    pub fn is_empty(&self) -> bool {
        self.own.borrow().is_empty()
    }

    /// From now on `server` serves their clients. Runs on a loop.
    pub fn serve(&self, server: &Rc<Server>) {
        *self.server.borrow_mut() = Rc::downgrade(server);
        self.own.borrow().iter().for_each(|monitor| monitor.start(server));
    }

    /// Waits until everything that the server wrote is written: it has hung up.
    ///
    /// # Errors
    /// When a thread that writes ended by a fault.
    pub fn finish(&self) -> Result<(), Failure> {
        self.carried.take().into_iter().try_for_each(Carried::finish)
    }
}
