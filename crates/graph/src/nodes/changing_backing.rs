//! A disk that clients go on writing, below an image that is given what they overwrite before they do: a backup of one moment, kept in a small file.
//!
//! The copies are made by a backup of the disk into the image (`sync: none`), begun afterwards. Without it the image reads as the disk does.

use std::sync::Arc;

use block::{Block, Error, FindBlock, MovingBlock};
use serde_json::{Map, Value};

use super::Graph;
use super::disk_node::DiskNode;
use super::error::NodeError;
use super::filter_node::FilterNode;
use super::holders::Hold;
use super::layer_node::present_layer;
use super::node::{Node, NodeKind};
use super::user::User;
use crate::disk::Disk;

/// A disk as the changing backing layer of an image. Reads bypass the disk's limits and figures. The disk's
/// layers may be replaced meanwhile: a read that met the old ones is repeated on the new ones.
#[derive(Debug)]
pub(super) struct Changing(Arc<Disk>);

impl Graph {
    /// The node that `options` name as backing, if it is a disk that is open for writing, or one that cannot be opened once more for reading.
    pub(super) fn changing_backing(&self, options: &Map<String, Value>) -> Option<Arc<Node>> {
        let named = options.get("backing").and_then(Value::as_str)?;
        let node = self.node(named).ok().or_else(|| self.layer_node(named))?;
        let is_by_itself = match &node.kind {
            NodeKind::Disk(disk) => {
                let is_plain =
                    node.filter.is_none() && !disk.is_over_disks() && node.changing_below().is_none();
                !is_plain || !disk.disk.read_only() || disk.owner().is_some()
            }
            NodeKind::Throttle { .. } | NodeKind::JobFilter { .. } => true,
            NodeKind::File(_) | NodeKind::TakenOut => false,
        };
        is_by_itself.then_some(node)
    }

    /// Whether the disk `name` is an image over a disk that clients write, or a filter over such an image. As
    /// a layer of another disk it could end up below itself, and a copy of it would belong to no single
    /// moment.
    pub fn is_over_changing(&self, name: &str) -> bool {
        self.node(name).is_ok_and(|node| {
            let below = node.filter.as_ref().map(FilterNode::below).unwrap_or_default();
            node.changing_below().is_some() || below.iter().any(|(_, name)| self.is_over_changing(name))
        })
    }

    /// Closes the disk below a removed node if it was opened for that node only and has no other user.
    pub(super) async fn close_changing(&self, node: &Node) -> Result<(), NodeError> {
        let Some(below) = node.changing_below() else { return Ok(()) };
        match below.implicit && self.users(&below).is_empty() && below.holders.all().len() == 1 {
            true => Box::pin(self.close(&below)).await,
            false => Ok(()),
        }
    }

    /// Puts the image of `node`, which has no users yet, over `below`. The hold that is returned keeps
    /// `below` from being removed.
    ///
    /// # Errors
    /// When the disk is no image that has a backing layer.
    pub(super) async fn put_over_changing(&self, node: &DiskNode, below: &Node) -> Result<Hold, NodeError> {
        let name = node.name();
        let hold = self.hold_as_it_is(&below.name(), User { kind: "node", name: name.clone() })?;
        let disk = Arc::clone(&self.disk(&below.name())?.disk);
        let failed = |source| NodeError::Filtered { name: name.clone(), source };
        let image = node.disk.image().ok_or_else(|| {
            failed(block::Blame::new(&name).unsupported("only a qcow2 image has a backing layer"))
        })?;
        // What reads as zeroes below now may not later: zeroes that are copied to the image are said there.
        image.await_backing();
        let still = image.hold_still().await.map_err(failed)?;
        still.set_backing(Some(changing(disk))).map_err(failed)?;
        Ok(hold)
    }
}

impl Graph {
    /// Whether `block`, which the images of `disk` are over, is a disk in a throttle group into which they can be committed through it: it is open for
    /// writing, and nothing else uses it or the throttle nodes over it.
    ///
    /// # Errors
    /// Names another user.
    pub(super) fn is_committed_through(
        &self,
        disk: &DiskNode,
        block: &Arc<dyn Block>,
    ) -> Result<bool, NodeError> {
        match block.downcast_ref::<MovingBlock<Changing>>() {
            Some(changing) if !changing.find().0.read_only() => {}
            Some(_) | None => return Ok(false),
        }
        let mut over = disk.name();
        let mut next = self.node(&over)?.changing_below();
        while let Some(node) = next {
            let users = self.users(&node).into_iter().map(|user| User { kind: "node", name: user.name() });
            let mut all = users.chain(node.holders.all());
            if let Some(by) = all.find(|user| user.kind != "node" || user.name != over) {
                return Err(NodeError::InUse { name: node.name(), by });
            }
            next = match &node.kind {
                NodeKind::Throttle { child, .. } => Some(self.node(&child.get())?),
                _ => return Ok(node.filter.is_none()),
            };
            over = node.name();
        }
        Ok(false)
    }

    /// The disk of `below` as an image over it reads it.
    ///
    /// # Errors
    /// When it is no disk.
    pub(super) fn changing(&self, below: &Node) -> Result<Arc<dyn Block>, NodeError> {
        let disk = match below.disk() {
            Ok(disk) => Arc::clone(&disk.disk),
            Err(_) => Arc::clone(&self.disk(&below.name())?.disk),
        };
        Ok(changing(disk))
    }
}

/// `disk` as an image over it reads it.
fn changing(disk: Arc<Disk>) -> Arc<dyn Block> {
    let first = disk.root();
    Arc::new(MovingBlock::new(Changing(disk), Some(&*first)))
}

/// Whether it is a disk by itself as an image over it reads it.
pub(super) fn is_changing(block: &dyn Block) -> bool {
    block.downcast_ref::<MovingBlock<Changing>>().is_some()
}

/// The uppermost image of the disk that `block` is, or the layer of it, where an image is over that as it changes; otherwise `block`.
pub fn present_image(block: Arc<dyn Block>) -> Arc<dyn Block> {
    match block.downcast_ref::<MovingBlock<Changing>>() {
        Some(changing) => {
            let image = changing.find().0.top_image();
            present_layer(&*image).unwrap_or(image)
        }
        None => block,
    }
}

impl FindBlock for Changing {
    fn now(&self) -> Result<Arc<dyn Block>, Error> {
        Ok(self.0.root())
    }

    fn name(&self) -> &str {
        Block::name(&*self.0)
    }

    fn changes(&self) -> bool {
        true
    }

    /// Requests of a commit pass the disk's front, as those of other users.
    fn writer(&self) -> Option<Arc<dyn Block>> {
        (!self.0.read_only()).then(|| Arc::clone(&self.0) as _)
    }

    fn refusal(&self) -> &'static str {
        "it is read by the image over it, not written"
    }
}
