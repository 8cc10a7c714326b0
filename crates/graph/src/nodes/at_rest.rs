//! Several disks at rest at one moment, for what is done to all of them or to none.
//!
//! A disk may send requests to another: a filter to the disks below it, the source of a copy to its target. The sender comes to rest first: its last
//! requests need the other disk. While both are at rest, requests of the filter reach the disk below all the same: they can only come from the task
//! that keeps both at rest.

use std::sync::Arc;

use super::disk_node::DiskNode;
use super::node::Node;
use super::{Change, Graph};
use crate::child::Child;
use crate::front::Drained;

/// Disks that no request reaches as long as this is there.
#[derive(Debug)]
#[must_use = "requests are admitted again as soon as this is dropped"]
pub struct AtRest<'a> {
    // Dropped first: filters wait again before new requests are admitted.
    _asking: Vec<Asking>,
    _drained: Vec<Drained<'a>>,
}

/// Requests of a filter reach the disk below while that is at rest.
#[derive(Debug)]
struct Asking(Arc<Child>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.ask_at_rest(false);
    }
}

impl Graph {
    /// All of `disks`, each once, with those between a filter and a disk far below it, in the order in which they come to rest
    /// ([`Graph::keep_at_rest`]).
    pub fn in_order_of_rest(&self, _change: &Change<'_>, disks: &[Arc<DiskNode>]) -> Vec<Arc<DiskNode>> {
        let all = self.nodes();
        let is_named = |node: &Arc<Node>| disks.iter().any(|disk| node.is_of(disk));
        let named: Vec<_> = all.iter().filter(|node| is_named(node)).collect();
        let is_between = |node: &Arc<Node>| {
            named.iter().any(|upper| self.reaches(upper, node))
                && named.iter().any(|lower| self.reaches(node, lower))
        };
        let mut left: Vec<_> = all.iter().filter(|node| is_between(node)).collect();
        let mut order = Vec::with_capacity(left.len());
        // There are no circles; in one, any order would do.
        while !left.is_empty() {
            let is_fed = |node: &Arc<Node>| {
                left.iter().any(|other| !Arc::ptr_eq(other, node) && self.feeds(other, node))
            };
            let next = left.iter().position(|node| !is_fed(node)).unwrap_or_default();
            order.extend(left.remove(next).disk().ok().cloned());
        }
        order
    }

    /// Drains all of `disks`, which are in the order of [`Graph::in_order_of_rest`].
    ///
    /// Reads, block status and flushes of a filter among them reach the disks below it that are among them, too. Writes of the filter wait until this
    /// is dropped, and so does what jobs write.
    pub async fn keep_at_rest<'a>(&self, _change: &Change<'_>, disks: &'a [Arc<DiskNode>]) -> AtRest<'a> {
        let mut drained = Vec::with_capacity(disks.len());
        for disk in disks {
            drained.push(disk.disk.drain().await);
        }
        let all = self.nodes();
        let are_among = |node: &Arc<Node>| disks.iter().any(|disk| node.is_of(disk));
        let children = all.iter().filter(|node| are_among(node)).flat_map(|node| node.children());
        let asking = children.filter(|child| disks.iter().any(|disk| Arc::ptr_eq(&disk.disk, &child.disk())));
        let asking = asking.map(|child| {
            child.ask_at_rest(true);
            Asking(child)
        });
        AtRest { _asking: asking.collect(), _drained: drained }
    }
}
