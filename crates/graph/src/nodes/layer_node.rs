//! A layer below a disk, for commands that name it: a node that reads it, made when it is named first and gone with its last user.

use std::sync::Arc;

use block::{Blame, Block, Error, FindBlock, MovingBlock};

use super::Graph;
use super::disk_node::DiskNode;
use super::error::NodeError;
use super::node::{Node, NodeKind};
use crate::bitmaps_file::bitmaps_of;
use crate::disk::Disk;
use crate::drive::OptionTree;
use crate::layers::{ByName, Layer, LayerFiles, Layers};
use crate::open::disk_over;
use crate::options::DiskOptions;

/// The layer of a disk that is called so, whatever the disk is backed by now.
#[derive(Debug)]
struct NamedLayer {
    disk: Arc<Disk>,
    node_name: String,
    /// What messages call it.
    path: String,
}

/// A layer of `layers` below the uppermost image that is called `name`.
fn named<'a>(layers: &'a Layers, name: &str) -> Option<&'a Arc<Layer>> {
    let first = layers.first();
    layers.list.iter().filter(|layer| Some(*layer) != first).find(|layer| layer.is_named(name))
}

/// Whether a file of one of `layers` is called `name`.
fn has_file(layers: &Layers, name: &str) -> bool {
    let mut files = layers.list.iter().flat_map(|layer| layer.files.iter()).flat_map(LayerFiles::names);
    files.any(|(_, file)| file == name)
}

impl Layer {
    /// Whether `name` is its own.
    fn is_named(&self, name: &str) -> bool {
        self.own.lock().as_ref().is_some_and(|own| own.name == name)
    }

    /// The node that reads this layer alone, if something uses it.
    pub(super) fn node_in_use(&self) -> Option<Arc<Node>> {
        self.by_name.lock().node::<Node>().filter(|node| node.holders.first().is_some())
    }
}

impl Graph {
    /// The node of the layer called `name` below a disk. It is in no list, and reads what the layer is at each moment.
    pub(super) fn layer_node(&self, name: &str) -> Option<Arc<Node>> {
        let of = |disk: Arc<DiskNode>| {
            let layer = Arc::clone(named(&disk.disk.layers(), name)?);
            Some((disk, layer))
        };
        // The disk of which it is a part comes first: there may be thousands.
        let owner = self.nodes.lock().owner(name).and_then(|node| node.disk().ok().cloned());
        if owner.as_ref().is_some_and(|disk| has_file(&disk.disk.layers(), name)) {
            return None;
        }
        let (owner, layer) = owner.and_then(of).or_else(|| self.disks().into_iter().find_map(of))?;
        let mut slot = layer.by_name.lock();
        if let Some(node) = slot.node() {
            return Some(node);
        }
        let disk = slot.disk().unwrap_or_else(|| Arc::new(self.layer_disk(&owner, &layer, name)));
        let node = Arc::new(Node::new(name.to_owned(), NodeKind::Disk(Arc::clone(&disk))));
        *slot = ByName::new(&node, &disk);
        Some(node)
    }

    fn layer_disk(&self, owner: &Arc<DiskNode>, layer: &Layer, name: &str) -> DiskNode {
        let (path, driver) = (layer.block.name().to_owned(), layer.block.driver());
        let options = DiskOptions::of_path(&path);
        let tree = OptionTree::of_path(&path);
        let disk =
            disk_over(self.block_of(owner, layer, name), bitmaps_of(&*layer.block), &options, &self.rules);
        let disk = DiskNode::new(name.to_owned(), path.into(), tree, disk).shown_as(driver);
        disk.is_layer_of(owner);
        disk
    }

    /// What `layer` of `owner`, which is called `name`, reads as at each moment.
    pub(super) fn block_of(&self, owner: &DiskNode, layer: &Layer, name: &str) -> Arc<dyn Block> {
        let path = layer.block.name().to_owned();
        let (disk, node_name) = (Arc::clone(&owner.disk), name.to_owned());
        Arc::new(MovingBlock::new(NamedLayer { disk, node_name, path }, Some(&*layer.block)))
    }

    /// Refuses a node of whose layers one is in use by its own name.
    pub(super) fn check_layers_unused(&self, node: &Node) -> Result<(), NodeError> {
        let Ok(disk) = node.disk() else { return Ok(()) };
        let layers = disk.disk.layers();
        let used = layers.list.iter().find_map(|layer| layer.node_in_use());
        match used.and_then(|node| Some((node.name(), node.holders.first()?))) {
            Some((name, by)) => Err(NodeError::InUse { name, by }),
            None => Ok(()),
        }
    }
}

/// The layer that `block` is, where a layer below a disk is read by its name.
pub(super) fn present_layer(block: &dyn Block) -> Option<Arc<dyn Block>> {
    block.downcast_ref::<MovingBlock<NamedLayer>>()?.find().now().ok()
}

impl FindBlock for NamedLayer {
    /// A job may open the layer in another way, and close what was there.
    fn now(&self) -> Result<Arc<dyn Block>, Error> {
        let layers = self.disk.layers();
        let found = layers.list.iter().find(|layer| layer.is_named(&self.node_name));
        let gone = || Blame::new(&self.path).refused("it is no layer of the disk any more");
        found.map(|layer| Arc::clone(&layer.block)).ok_or_else(gone)
    }

    fn name(&self) -> &str {
        &self.path
    }

    fn changes(&self) -> bool {
        true
    }

    fn refusal(&self) -> &'static str {
        "it is a layer below a disk, which is read alone"
    }
}
