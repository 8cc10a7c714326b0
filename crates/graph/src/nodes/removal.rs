//! Taking nodes away.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::error::NodeError;
use super::node::{Node, NodeKind};
use super::user::User;
use super::{Change, DiskNode, Graph};
use crate::DiskEnd;

/// How long a closed disk's references are waited for. That of a client that has left is dropped when its
/// loop runs the next time.
const LET_GO_PATIENCE: Duration = Duration::from_secs(1);

/// What stays of a node when it goes: layers of its disk that were nodes by themselves, closed.
fn names_left(node: &Node) -> Vec<Arc<Node>> {
    let Ok(disk) = node.disk() else { return Vec::new() };
    let layers = disk.disk.layers();
    // The uppermost one has the node's own name.
    let below = layers.list.iter().filter(|layer| Some(*layer) != layers.first());
    let left = below.filter_map(|layer| layer.own.lock().clone()).filter(|own| own.by_user);
    left.map(|own| {
        let node = Node::new(own.name, NodeKind::TakenOut);
        *node.links.lock() = own.links;
        Arc::new(node)
    })
    .collect()
}

fn ends_of(nodes: &[Arc<Node>]) -> Ends {
    let end = |node: &Arc<Node>| Some((node.name(), node.disk().ok()?.disk.end()));
    Ends(nodes.iter().filter_map(end).collect())
}

/// A node that is gone.
#[derive(Debug)]
pub struct Removed {
    /// What was not flushed before could not be written when the disk was closed ([`NodeError::Close`]). Its files are closed and their locks
    /// released all the same.
    pub not_written: Option<NodeError>,
}

impl Graph {
    /// Takes a node away and closes what it opened: metadata is written, locks are released. A node whose disk cannot be closed in order is
    /// gone as well: a disk on a server that is lost could never be removed otherwise. Names of layers that were nodes by themselves stay, until
    /// they are removed. Waits up to a second for requests that have left and still have the disk; the caller must have no reference to it.
    ///
    /// # Errors
    /// When it is in use. Then nothing has changed.
    pub async fn remove(&self, _change: &Change<'_>, name: &str) -> Result<Removed, NodeError> {
        let node = self.node(name).map_err(|error| self.owner_of(name).unwrap_or(error))?;
        self.check_unused(&node)?;
        let ends = ends_of(&self.with_below(&node));
        let left = names_left(&node);
        let closed = self.close(&node).await;
        left.into_iter().for_each(|name| self.nodes.lock().push(name));
        drop(node);
        let gone = ends.0.into_iter().filter(|(name, _)| self.node(name).is_err());
        Ends(gone.collect()).reached().await;
        Ok(Removed { not_written: closed.err() })
    }

    /// The node that is called `name`, or has a part called so.
    ///
    /// # Errors
    /// When there is none.
    pub fn owner(&self, name: &str) -> Result<Arc<Node>, NodeError> {
        self.nodes.lock().owner(name).ok_or_else(|| NodeError::Unknown { name: name.to_owned() })
    }

    /// Why something called `name` that is a part of a node cannot go without it.
    fn owner_of(&self, name: &str) -> Option<NodeError> {
        let by = User { kind: "node", name: self.owner(name).ok()?.name() };
        Some(NodeError::InUse { name: name.to_owned(), by })
    }

    /// Takes a node from the list and closes what it opened; fails only with [`NodeError::Close`].
    pub(super) async fn close(&self, node: &Arc<Node>) -> Result<(), NodeError> {
        self.nodes.lock().remove(node);
        let links = node.links.lock().clone();
        let closed = self.close_itself(node).await;
        closed.and(self.close_made(links.uses.into_iter()).await).and(self.close_changing(node).await)
    }

    async fn close_itself(&self, node: &Arc<Node>) -> Result<(), NodeError> {
        match &node.kind {
            NodeKind::File(_) | NodeKind::JobFilter { .. } | NodeKind::TakenOut => Ok(()),
            NodeKind::Disk(disk) => {
                disk.disk.idle().await;
                let closed = disk.disk.close().await;
                let closed = closed.map_err(|source| NodeError::Close { path: disk.path(), source });
                match &node.filter {
                    Some(filter) => {
                        let below = filter.below().into_iter().map(|(_, name)| name);
                        closed.and(self.close_made(below).await)
                    }
                    None => closed,
                }
            }
            NodeKind::Throttle { child, .. } => {
                let Some(child) = node.changing_below().or_else(|| self.node(&child.get()).ok()) else {
                    return Ok(());
                };
                if let Ok(disk) = child.disk() {
                    disk.disk.set_throttle_group(None);
                }
                if child.implicit { Box::pin(self.close(&child)).await } else { Ok(()) }
            }
        }
    }

    /// The ends of all disks, for tasks that wait until their files are closed.
    pub fn ends(&self) -> Ends {
        ends_of(&self.nodes())
    }

    /// `node`, and all that may go with it: what is under it, and what is under that.
    fn with_below(&self, node: &Arc<Node>) -> Vec<Arc<Node>> {
        let mut found = vec![Arc::clone(node)];
        let mut seen = 0;
        while let Some(over) = found.get(seen).cloned() {
            let names = over.goes_with();
            let below = names.iter().filter_map(|name| self.node(name).ok()).chain(over.changing_below());
            for below in below.collect::<Vec<_>>() {
                if !found.iter().any(|node| Arc::ptr_eq(node, &below)) {
                    found.push(below);
                }
            }
            seen += 1;
        }
        found
    }

    /// The disks that may go when the node called `name` does: its own, and those under it.
    pub fn disks_under(&self, name: &str) -> Vec<Arc<DiskNode>> {
        let found = self.node(name).map(|node| self.with_below(&node)).unwrap_or_default();
        found.iter().filter_map(|node| node.disk().ok().cloned()).collect()
    }

    /// Closes every disk, also after one has failed and also those in use; returns the errors. The files of a
    /// disk stay open and locked while a reference to it is left: see [`Graph::ends`].
    pub async fn close_all(&self, _change: &Change<'_>) -> Vec<NodeError> {
        let mut failed = Vec::new();
        // A disk over another one is closed before it.
        while let Some(node) = self.disk_to_close() {
            failed.extend(self.close(&node).await.err());
        }
        failed
    }

    /// A disk that no filter and no image is over.
    fn disk_to_close(&self) -> Option<Arc<Node>> {
        let nodes = self.nodes();
        let is_over = |over: &Arc<Node>, node: &Arc<Node>| {
            over.sends_to().contains(&node.name())
                || over.changing_below().is_some_and(|below| Arc::ptr_eq(&below, node))
        };
        let is_below = |node: &Arc<Node>| nodes.iter().any(|over| is_over(over, node));
        nodes.iter().find(|node| node.disk().is_ok() && !is_below(node)).cloned()
    }

    /// Refuses to remove a throttle group that a filter names.
    ///
    /// # Errors
    /// Names the filter.
    pub fn check_group_unused(&self, name: &str) -> Result<(), NodeError> {
        let nodes = self.nodes.lock();
        match nodes.iter().find(|node| node.is_filter_of(name)) {
            Some(user) => {
                let by = User { kind: "node", name: user.name() };
                Err(NodeError::GroupInUse { name: name.to_owned(), by })
            }
            None => Ok(()),
        }
    }
}

/// Disks that are to be closed, without a reference to any.
#[derive(Debug)]
pub struct Ends(Vec<(String, DiskEnd)>);

impl Ends {
    /// Waits until no reference to these disks is left, so that their files are closed and unlocked. Waits a
    /// second at most; disks that are still referenced are logged. The loops that have references must run
    /// meanwhile.
    pub async fn reached(self) {
        join_all(self.0.iter().map(|(name, end)| let_go(name, end))).await;
    }
}

/// Waits until the last reference to the closed disk called `name` is gone, for [`LET_GO_PATIENCE`] at most.
async fn let_go(name: &str, end: &DiskEnd) {
    if reactor::within(LET_GO_PATIENCE, end.reached()).await.is_none() {
        tracing::warn!(
            node = name,
            "the closed disk is in use somewhere, and its files stay locked until that ends"
        );
    }
}
