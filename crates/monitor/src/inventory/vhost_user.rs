//! Disks that virtual machines reach over vhost-user-blk: each export has a socket of its own.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use control::QmpError;
use door_vhost_user_blk::{DeviceOptions, HandedFrontEnd, NotResumed, Server, VhostExport};
use reactor::Task;
use tool::failure::Failure;

use super::Inventory;
use super::export_view::Shown;
use super::exports::{ExportDoor, NewExport};
use crate::endpoint::Endpoint;
use crate::exports::shown_serial;
use crate::listening::Listening;
use crate::take_over::sockets::Handed;

/// An export's socket, and the server that accepts there.
#[derive(Debug)]
pub struct VhostDoor {
    server: Arc<Server>,
    export: Arc<VhostExport>,
    open: RefCell<Option<(Listening, Vec<Task<()>>)>>,
    path: Option<PathBuf>,
}

/// A socket for virtual machines, and how they see the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewVhostDoor {
    /// Where front-ends connect.
    pub socket: Endpoint,
    /// Queues at most.
    pub queues: u16,
    /// Bytes of a logical block.
    pub logical_block_size: u32,
    /// The guest's serial number of the disk; the export's id if not said.
    pub serial: Option<String>,
    /// Contiguous requests go to the disk as one.
    pub merge: bool,
}

impl VhostDoor {
    /// Where front-ends connect; `None` for a socket without a path.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Starts accepting, if it has not begun. Runs on a loop.
    pub fn accept(&self) {
        let mut open = self.open.borrow_mut();
        let Some((listening, tasks)) = open.as_mut().filter(|(_, tasks)| tasks.is_empty()) else { return };
        for listener in &listening.listeners {
            let (server, export) = (Arc::clone(&self.server), Arc::clone(&self.export));
            tasks.push(reactor::spawn(server.accept(listener.clone(), export)));
        }
    }

    /// The sockets themselves, for the next process.
    ///
    /// # Errors
    /// When the process may not have more descriptors.
    pub fn handed(&self) -> io::Result<Vec<Handed>> {
        self.open.borrow().as_ref().map_or(Ok(Vec::new()), |(listening, _)| listening.handed())
    }

    /// Resumes a front-end of another process.
    ///
    /// # Errors
    /// When the disk is not what its guest knows.
    pub fn resume(&self, front: &HandedFrontEnd) -> Result<(), NotResumed> {
        self.server.resume(front, &self.export)
    }

    /// Stops accepting front-ends and removes the socket's name; a connected one stays.
    pub fn close(&self) {
        self.open.borrow_mut().take();
    }
}

impl Inventory {
    /// Lets virtual machines reach a disk at a socket, from [`Inventory::accept_front_ends`] on.
    ///
    /// # Errors
    /// When the id is in use, the options fit no device, or the socket cannot be had.
    pub fn add_vhost_export(
        &self,
        (id, node): (String, String),
        shown: Shown,
        door: NewVhostDoor,
    ) -> Result<(), QmpError> {
        let NewVhostDoor { socket, queues, logical_block_size, serial, merge } = door;
        let serial = serial.unwrap_or_else(|| shown_serial(&id).to_owned());
        let options = DeviceOptions { queues, logical_block_size, serial, merge };
        let new = NewExport::at_own_door(&id, node, shown);
        self.export_through(new, |disk, view| {
            options.check(disk.size()).map_err(|error| QmpError::generic(error.to_string()))?;
            let mode = self.socket_mode;
            let listening = Listening::start(&socket, mode, Vec::new());
            let listening = listening.map_err(|failure| self.no_socket(&failure))?;
            let path =
                listening.name().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
            let export = self.vhost.add(id, view, options);
            let export = export.map_err(|error| QmpError::generic(error.to_string()))?;
            let open = RefCell::new(Some((listening, Vec::new())));
            let entry = Arc::clone(export.entry());
            let door = VhostDoor { server: Arc::clone(&self.vhost), export, open, path };
            Ok((entry, ExportDoor::VhostUserBlk(door)))
        })
    }

    /// Front-ends of all exports may come in. Runs on a loop.
    pub fn accept_front_ends(&self) {
        self.exports().iter().filter_map(|export| export.vhost_door()).for_each(VhostDoor::accept);
    }

    /// Stops accepting clients over every protocol, and removes names of sockets, mounts and block devices.
    pub async fn close_doors(&self) {
        self.close_sockets();
        self.unmount_all().await;
        self.remove_devices().await;
    }

    /// Stops accepting clients over sockets, and removes the sockets' names.
    pub fn close_sockets(&self) {
        self.doors.close();
        self.exports().iter().filter_map(|export| export.vhost_door()).for_each(VhostDoor::close);
    }

    /// Names of sockets that are removed at the end.
    pub fn front_end_sockets(&self) -> Vec<PathBuf> {
        let exports = self.exports();
        exports.iter().filter_map(|export| Some(export.vhost_door()?.path()?.to_owned())).collect()
    }

    /// Why a socket cannot be had, and what to do about it.
    pub fn no_socket(&self, failure: &Failure) -> QmpError {
        let text = failure.to_string().replace("\n  because", "");
        self.hinted(QmpError { is_denied: failure.is_forbidden(), ..QmpError::generic(text) })
    }
}
