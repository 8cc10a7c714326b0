//! What the process has open: the graph of nodes, and beside it exports, objects and sockets.
//!
//! Command line and control socket use the same operations. All but the graph lives on the loop of the main thread;
//! what changes any of it holds [`graph::Graph::change`].

pub mod authz;
pub mod carried;
pub mod chardevs;
pub mod doors;
pub mod export_view;
pub mod exports;
pub mod fuse;
pub mod monitors;
pub mod nodes;
pub mod objects;
pub mod threads;
pub mod ublk;
pub mod vhost_user;

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use control::QmpError;
use door_nbd::Server;
use door_vhost_user_blk::FilePolicy;
use export::Loops;
use graph::{DiskNode, NodeError};

use self::chardevs::Chardevs;
use self::doors::Doors;
use self::exports::ExportRecord;
use self::monitors::Monitors;
use self::nodes::Nodes;
use self::objects::Objects;
use self::vhost_user::VhostDoor;
use super::endpoint::Protection;
use super::jobs::Jobs;
use super::socket_mode::SocketMode;
use super::take_over::journal::Journal;
use super::take_over::sockets::Handed;

/// Everything that has a name.
pub struct Inventory {
    /// The nodes.
    pub nodes: Rc<Nodes>,
    /// Where clients of all doors live.
    pub loops: Arc<Loops>,
    /// The NBD server.
    pub server: Arc<Server>,
    /// The server of virtual machines.
    pub vhost: Arc<door_vhost_user_blk::Server>,
    /// The server of disks that are files.
    pub fuse: Arc<door_fuse::Server>,
    /// The server of disks that are block devices.
    pub ublk: Arc<door_ublk::Server>,
    /// Where NBD clients come in.
    pub doors: Doors,
    /// Jobs of disks.
    pub jobs: Jobs,
    /// What commands changed, for the next process.
    pub journal: Journal,
    /// The rule about plain TCP.
    pub plain_tcp_allowed: bool,
    /// The mode of Unix sockets for NBD.
    pub socket_mode: SocketMode,
    /// Objects that commands made.
    pub objects: Objects,
    /// Character devices.
    pub chardevs: Chardevs,
    /// The monitors that they have.
    pub monitors: Rc<Monitors>,
    exports: RefCell<Vec<Rc<ExportRecord>>>,
    end_reported: Cell<bool>,
}

impl Deref for Inventory {
    type Target = Nodes;

    fn deref(&self) -> &Nodes {
        &self.nodes
    }
}

impl Inventory {
    /// An empty one.
    pub fn new(
        nodes: Nodes,
        server: Arc<Server>,
        guest_memory: FilePolicy,
        plain_tcp_allowed: bool,
        socket_mode: SocketMode,
    ) -> Rc<Self> {
        let nodes = Rc::new(nodes);
        Rc::new(Self {
            doors: Doors::new(Arc::clone(&server)),
            loops: Arc::clone(server.loops()),
            vhost: door_vhost_user_blk::Server::new(server.loops(), guest_memory),
            ublk: door_ublk::Server::new(server.loops()),
            fuse: door_fuse::Server::new(server.loops()),
            server,
            jobs: Jobs::of(Rc::clone(&nodes)),
            nodes,
            journal: Journal::default(),
            plain_tcp_allowed,
            socket_mode,
            objects: Objects::default(),
            chardevs: Chardevs::default(),
            monitors: Rc::default(),
            exports: RefCell::default(),
            end_reported: Cell::new(false),
        })
    }

    /// The disk that `name` leads to: that of a node, or of an export of this id.
    ///
    /// # Errors
    /// When there is neither, or the node is a bare file.
    pub fn disk(&self, name: &str) -> Result<Arc<DiskNode>, QmpError> {
        match (self.graph.node(name), self.export(name)) {
            // After a snapshot the export has the disk, and a layer may have the name.
            (Err(NodeError::Unknown { .. }), Some(export)) => Ok(Arc::clone(&export.disk)),
            _ => self.graph.disk(name).map_err(|error| self.refused(&error)),
        }
    }

    /// Whether there is a device or node called `name`, for the few commands of which QEMU's clients know a missing one by the error's class.
    ///
    /// # Errors
    /// Of the class DeviceNotFound, when there is none.
    pub fn check_device(&self, name: &str) -> Result<(), QmpError> {
        match self.graph.disk(name) {
            Err(NodeError::Unknown { .. }) if self.export(name).is_none() => Err(QmpError::no_device(name)),
            _ => Ok(()),
        }
    }

    /// The sockets that clients of all protocols come in at, for the next process.
    ///
    /// # Errors
    /// When the process may not have more descriptors.
    pub fn handed_sockets(&self) -> io::Result<Vec<Handed>> {
        let mut handed = self.doors.handed()?;
        for export in self.exports() {
            handed.extend(export.vhost_door().map(VhostDoor::handed).transpose()?.into_iter().flatten());
        }
        Ok(handed)
    }

    /// Under which conditions TCP is opened.
    pub fn protection(&self, tls: bool) -> Protection {
        Protection { tls, plain_allowed: self.plain_tcp_allowed }
    }
}
