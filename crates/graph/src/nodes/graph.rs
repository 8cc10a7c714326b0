//! The nodes of a process.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_lock::{Mutex as AsyncMutex, MutexGuard};
use parking_lot::Mutex;

use super::disk_node::DiskNode;
use super::error::NodeError;
use super::list::NodeList;
use super::node::{Node, NodeKind};
use crate::front::ThrottleGroup;
use crate::open_rules::OpenRules;

/// All nodes. What takes one away when it is dropped has them, too.
pub(super) type Nodes = Arc<Mutex<NodeList>>;

/// The nodes of a process, by name.
#[derive(Debug)]
pub struct Graph {
    pub(super) rules: OpenRules,
    pub(super) nodes: Nodes,
    pub(super) changing: AsyncMutex<()>,
}

/// The right to change the graph: every operation that changes it needs this. One change runs at a time.
#[derive(Debug)]
#[must_use = "others may change the graph as soon as this is dropped"]
pub struct Change<'a> {
    pub(super) _alone: MutexGuard<'a, ()>,
}

impl Graph {
    /// An empty one. `rules` say how its disks are opened.
    pub fn new(rules: OpenRules) -> Self {
        Self { rules, nodes: Nodes::default(), changing: AsyncMutex::new(()) }
    }

    /// How disks are opened.
    pub fn rules(&self) -> &OpenRules {
        &self.rules
    }

    /// Waits until no other change of the graph runs.
    pub async fn change(&self) -> Change<'_> {
        Change { _alone: self.changing.lock().await }
    }

    /// All nodes, in the order of their making.
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        self.nodes.lock().to_vec()
    }

    /// The open disks, in the order of their making.
    pub fn disks(&self) -> Vec<Arc<DiskNode>> {
        self.nodes.lock().iter().filter_map(|node| node.disk().ok().cloned()).collect()
    }

    /// The node called `name`; names of parts do not count.
    ///
    /// # Errors
    /// When there is none.
    pub fn node(&self, name: &str) -> Result<Arc<Node>, NodeError> {
        self.nodes.lock().find(name).ok_or_else(|| NodeError::Unknown { name: name.to_owned() })
    }

    /// The disk that `name` leads to: the node's own, that under a filter, or a layer below a disk, which is read alone.
    ///
    /// # Errors
    /// When there is no such node, or it is a bare file.
    pub fn disk(&self, name: &str) -> Result<Arc<DiskNode>, NodeError> {
        let node = match self.node(name) {
            Ok(node) => node,
            Err(unknown) => return self.layer_node(name).ok_or(unknown)?.disk().cloned(),
        };
        match &node.kind {
            NodeKind::Throttle { child, .. } => self.disk(&child.get()),
            NodeKind::JobFilter { disk, .. } => self.disk(&disk.get()),
            NodeKind::Disk(_) | NodeKind::File(_) | NodeKind::TakenOut => node.disk().cloned(),
        }
    }

    /// The throttle group called `name`: one that an object holds, or that a drive named.
    ///
    /// # Errors
    /// When there is none.
    pub fn throttle_group(&self, name: &str) -> Result<Arc<ThrottleGroup>, NodeError> {
        let found = self.rules.groups.find(name);
        found.ok_or_else(|| NodeError::NoGroup { name: name.to_owned() })
    }

    /// The nodes that use `node`.
    pub(crate) fn users(&self, node: &Node) -> Vec<Arc<Node>> {
        let name = node.name();
        self.nodes.lock().iter().filter(|user| user.uses(&name)).cloned().collect()
    }

    /// Whether an export, a job or another node uses it.
    pub(super) fn is_used(&self, node: &Node) -> bool {
        node.holders.first().is_some() || !self.users(node).is_empty()
    }

    /// A generated name, for a node without one.
    pub fn make_name(&self) -> String {
        self.rules.names.next()
    }

    pub(super) fn check_free(&self, name: &str) -> Result<(), NodeError> {
        match self.nodes.lock().owner(name) {
            Some(_) => Err(NodeError::NameTaken { name: name.to_owned() }),
            None => Ok(()),
        }
    }

    /// Puts a node in, if none of its names is in use.
    pub(super) fn insert(&self, node: Node) -> Result<Arc<Node>, NodeError> {
        let mut names = BTreeSet::new();
        for name in node.parts().into_iter().chain([node.name()]) {
            self.check_free(&name)?;
            if let Some(name) = names.replace(name) {
                return Err(NodeError::NameTaken { name });
            }
        }
        let node = Arc::new(node);
        self.nodes.lock().push(Arc::clone(&node));
        Ok(node)
    }
}
