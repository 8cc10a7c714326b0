//! The control socket and the figures for Prometheus, as far as they were asked for.

use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;

use control::{Server, ServerOptions};
use export::Shutdown;
use serde_json::json;

use super::inventory::Inventory;
use super::metrics::MetricsSocket;
use super::qmp::socket::ControlSocket;
use super::qmp::{Steering, bitmaps, errors};
use crate::failure::Failure;

/// Sockets that are open, before anything happens on them.
#[derive(Debug)]
pub struct Sockets {
    control: Option<ControlSocket>,
    metrics: Option<MetricsSocket>,
}

impl Sockets {
    /// Opens a socket for commands at `control` and one for figures at `metrics`. Call it before there are other threads.
    ///
    /// # Errors
    /// When a socket cannot be had.
    pub fn open(control: Option<&Path>, metrics: Option<SocketAddr>) -> Result<Self, Failure> {
        Ok(Self {
            control: control.map(ControlSocket::bind).transpose()?,
            metrics: metrics.map(MetricsSocket::bind).transpose()?,
        })
    }

    /// The control socket's name in the file system.
    pub fn control_path(&self) -> Option<&Path> {
        self.control.as_ref().map(ControlSocket::path)
    }

    /// Where figures are to be had.
    pub fn metrics(&self) -> Option<&MetricsSocket> {
        self.metrics.as_ref()
    }
}

/// What runs while the program serves. Its tasks belong to the loop that they were started on.
pub struct Running {
    inventory: Rc<Inventory>,
    control: Rc<Server>,
    _tasks: Vec<reactor::Task<()>>,
}

impl Running {
    /// Starts to answer. A command to quit triggers `quit`. Runs on a loop.
    pub fn start(sockets: &Sockets, inventory: &Rc<Inventory>, quit: &Shutdown) -> Self {
        let handler = Steering::new(Rc::clone(inventory), quit.clone());
        let control = Server::new(handler, Rc::clone(&inventory.events), ServerOptions::default());
        let mut tasks = Vec::new();
        if let Some(socket) = &sockets.control {
            tasks.push(reactor::spawn(Rc::clone(&control).accept(socket.listener.clone())));
            tasks.push(reactor::spawn(errors::tell(Rc::clone(inventory))));
        }
        if let Some(socket) = &sockets.metrics {
            tasks.push(reactor::spawn(socket.serve(Rc::clone(inventory))));
        }
        Self { inventory: Rc::clone(inventory), control, _tasks: tasks }
    }

    /// Tells all clients that the end is near, and why, and hangs up.
    pub async fn end(&self, asked: bool) {
        self.inventory.graph.disks().iter().for_each(|node| bitmaps::tell(&self.inventory, node));
        let reason = if asked { "host-qmp-quit" } else { "host-signal" };
        self.inventory.events.emit("SHUTDOWN", &json!({ "guest": false, "reason": reason }));
        self.control.farewell().await;
    }
}
