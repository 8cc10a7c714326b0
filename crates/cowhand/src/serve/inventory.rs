//! What the process has open: nodes, objects and exports, by name.
//!
//! Command line and control socket use the same operations. All of it lives on the loop of the main thread;
//! what changes it holds [`Inventory::change`], one at a time, so that nobody sees a name that is half there.

pub mod description;
pub mod disk_node;
pub mod doors;
pub mod export_view;
pub mod exports;
pub mod filter;
pub mod node_name;
pub mod nodes;
pub mod objects;
pub mod removal;
pub mod reopen;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use async_lock::{Mutex, MutexGuard};
use control::Events;
use door_nbd::Server;
use image::OpenRules;

use self::doors::Doors;
use self::exports::ExportRecord;
use self::nodes::Node;
use self::objects::Object;
use super::endpoint::Protection;
use super::sandbox::Sandbox;

/// Everything that has a name.
pub struct Inventory {
    /// How disks are opened.
    pub rules: OpenRules,
    /// The NBD server's loops.
    pub server: Arc<Server>,
    /// Where NBD clients come in.
    pub doors: Doors,
    /// Who wants to hear of changes.
    pub events: Rc<Events>,
    /// What an error about a missing right is to mention.
    pub sandbox: Sandbox,
    /// The rule about plain TCP.
    pub plain_tcp_allowed: bool,
    nodes: RefCell<Vec<Rc<Node>>>,
    exports: RefCell<Vec<Rc<ExportRecord>>>,
    objects: RefCell<Vec<Rc<Object>>>,
    changing: Mutex<()>,
    names_made: Cell<u64>,
}

/// The right to change the inventory.
#[derive(Debug)]
pub struct Change<'a> {
    _alone: MutexGuard<'a, ()>,
}

impl Inventory {
    /// An empty one.
    pub fn new(
        rules: OpenRules,
        server: Arc<Server>,
        events: Rc<Events>,
        sandbox: Sandbox,
        plain_tcp_allowed: bool,
    ) -> Rc<Self> {
        Rc::new(Self {
            doors: Doors::new(Arc::clone(&server)),
            rules,
            server,
            events,
            sandbox,
            plain_tcp_allowed,
            nodes: RefCell::default(),
            exports: RefCell::default(),
            objects: RefCell::default(),
            changing: Mutex::new(()),
            names_made: Cell::new(0),
        })
    }

    /// Waits until nobody else changes anything.
    pub async fn change(&self) -> Change<'_> {
        Change { _alone: self.changing.lock().await }
    }

    /// A name that nobody gave, for what has none. `#` begins no name that a user may give.
    pub fn make_name(&self) -> String {
        let number = self.names_made.get();
        self.names_made.set(number + 1);
        format!("#block{number:03}")
    }

    /// Under which conditions TCP is opened.
    pub fn protection(&self, tls: bool) -> Protection {
        Protection { tls, plain_allowed: self.plain_tcp_allowed }
    }
}
