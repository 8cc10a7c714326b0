//! The control socket and the figures for Prometheus, as far as they were asked for.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;

use control::{Form, Server, ServerOptions};
use export::Shutdown;
use serde_json::json;
use tool::failure::Failure;

use super::inventory::Inventory;
use super::metrics::MetricsSocket;
use super::owners_socket::OwnersSocket;
use super::pid_file::PidFile;
use super::qmp::{Steering, bitmaps, errors};
use super::take_over::sockets::Handed;

/// Sockets that are open, before anything happens on them.
#[derive(Debug)]
pub struct Sockets {
    control: Option<OwnersSocket>,
    metrics: Option<MetricsSocket>,
    take_over: Option<OwnersSocket>,
    pid_file: Option<PidFile>,
}

impl Sockets {
    /// Opens a socket for commands at `control`, one for figures at `metrics`, and one for a process that takes over at `take_over`. Call it before there are other threads.
    ///
    /// # Errors
    /// When a socket cannot be had.
    pub fn open(
        control: Option<&Path>,
        metrics: Option<SocketAddr>,
        take_over: Option<&Path>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            control: control.map(OwnersSocket::bind).transpose()?,
            metrics: metrics.map(MetricsSocket::bind).transpose()?,
            take_over: take_over.map(OwnersSocket::bind).transpose()?,
            pid_file: None,
        })
    }

    /// The control socket's name in the file system.
    pub fn control_path(&self) -> Option<&Path> {
        self.control.as_ref().map(OwnersSocket::path)
    }

    /// Where a process comes in that takes over.
    pub fn take_over(&self) -> Option<&OwnersSocket> {
        self.take_over.as_ref()
    }

    /// The pid file goes where they go.
    #[must_use]
    pub fn with_pid_file(self, pid_file: Option<PidFile>) -> Self {
        Self { pid_file, ..self }
    }

    /// The pid file, if there is one.
    pub fn pid_file(&self) -> Option<&PidFile> {
        self.pid_file.as_ref()
    }

    /// All of them, for the next process.
    ///
    /// # Errors
    /// When the process may not have more descriptors.
    pub fn handed(&self) -> io::Result<Vec<Handed>> {
        let control = self.control.as_ref().map(OwnersSocket::handed);
        let metrics = self.metrics.as_ref().map(MetricsSocket::handed);
        let take_over = self.take_over.as_ref().map(OwnersSocket::handed);
        let pid_file = self.pid_file.as_ref().map(PidFile::handed);
        [control, metrics, take_over, pid_file].into_iter().flatten().collect()
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
            tasks.push(reactor::spawn(Rc::clone(&control).accept(socket.listener.clone(), Form::Lines)));
        }
        inventory.monitors.serve(&control);
        if sockets.control.is_some() || !inventory.monitors.is_empty() {
            tasks.push(reactor::spawn(errors::tell(Rc::clone(&inventory.nodes))));
        }
        if let Some(socket) = &sockets.metrics {
            tasks.push(reactor::spawn(socket.serve(Rc::clone(inventory))));
        }
        Self { inventory: Rc::clone(inventory), control, _tasks: tasks }
    }

    /// Notifies all clients of the end and its reason, and disconnects.
    pub async fn end(&self, asked: bool) {
        self.inventory.graph.disks().iter().for_each(|node| bitmaps::tell(&self.inventory, node));
        let reason = if asked { "host-qmp-quit" } else { "host-signal" };
        match self.inventory.as_qemu {
            false => self.inventory.events.emit("SHUTDOWN", &json!({ "guest": false, "reason": reason })),
            true => self.inventory.report_end().await,
        }
        self.control.farewell().await;
    }

    /// Hangs up: clients find the next process at the same place.
    pub async fn hand_over(&self) {
        self.control.farewell().await;
    }
}
