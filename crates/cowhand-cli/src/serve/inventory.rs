//! What the process has open: the graph of nodes, and beside it exports, objects and sockets.
//!
//! Command line and control socket use the same operations. All but the graph lives on the loop of the main thread;
//! what changes any of it holds [`Graph::change`].

pub mod authz;
pub mod carried;
pub mod chardevs;
pub mod doors;
pub mod export_view;
pub mod exports;
pub mod fuse;
pub mod monitors;
mod nodes;
pub mod objects;
pub mod threads;
pub mod ublk;
pub mod vhost_user;

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use control::Events;
use door_nbd::Server;
use door_vhost_user_blk::FilePolicy;
use export::Loops;
use graph::{Graph, OpenRules};

use self::authz::Authorizations;
use self::chardevs::Chardevs;
use self::doors::Doors;
use self::exports::ExportRecord;
use self::monitors::Monitors;
use self::objects::Object;
use self::vhost_user::VhostDoor;
use super::endpoint::Protection;
use super::jobs::Jobs;
use super::sandbox::Sandbox;
use super::socket_mode::SocketMode;
use super::take_over::journal::Journal;
use super::take_over::sockets::Handed;

/// Everything that has a name.
pub struct Inventory {
    /// The nodes.
    pub graph: Graph,
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
    /// Clients that get events.
    pub events: Rc<Events>,
    /// What an error about a missing right is to mention.
    pub sandbox: Sandbox,
    /// The rule about plain TCP.
    pub plain_tcp_allowed: bool,
    /// The mode of Unix sockets for NBD.
    pub socket_mode: SocketMode,
    /// Rules of objects by which clients with certificates are admitted.
    pub authorizations: Authorizations,
    /// Under a name of QEMU's: its callers are answered as by QEMU's daemon where ours would be answered otherwise (docs/reference/compat.md).
    pub as_qemu: bool,
    /// Character devices.
    pub chardevs: Chardevs,
    /// The monitors that they have.
    pub monitors: Rc<Monitors>,
    exports: RefCell<Vec<Rc<ExportRecord>>>,
    end_reported: Cell<bool>,
    objects: RefCell<Vec<Rc<Object>>>,
}

impl Inventory {
    /// An empty one.
    pub fn new(
        rules: OpenRules,
        server: Arc<Server>,
        events: Rc<Events>,
        sandbox: Sandbox,
        plain_tcp_allowed: bool,
        socket_mode: SocketMode,
        (guest_memory, as_qemu): (FilePolicy, bool),
    ) -> Rc<Self> {
        Rc::new(Self {
            doors: Doors::new(Arc::clone(&server)),
            loops: Arc::clone(server.loops()),
            vhost: door_vhost_user_blk::Server::new(server.loops(), guest_memory),
            ublk: door_ublk::Server::new(server.loops()),
            fuse: door_fuse::Server::new(server.loops()),
            graph: Graph::new(rules),
            server,
            jobs: Jobs::default(),
            journal: Journal::default(),
            events,
            sandbox,
            plain_tcp_allowed,
            socket_mode,
            as_qemu,
            authorizations: Authorizations::default(),
            chardevs: Chardevs::default(),
            monitors: Rc::default(),
            exports: RefCell::default(),
            end_reported: Cell::new(false),
            objects: RefCell::default(),
        })
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
