//! The new layer of a disk: found by its description and checked.

use std::sync::{Arc, OnceLock};

use block::Block;
use parking_lot::Mutex;
use qcow2::Qcow2;

use super::{Edge, Put, ReplaceError, check_own};
use crate::bitmaps_file::{bitmaps_of, raw_of};
use crate::drive::OptionTree;
use crate::layers::{Layer, Layers, OpenedLayers};
use crate::links::Links;
use crate::nodes::Graph;
use crate::nodes::disk_node::{DiskNode, RootOptions};
use crate::nodes::error::NodeError;
use crate::nodes::node::Node;

/// The backing layer of an image that is put into a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Under {
    /// The present layer.
    There,
    /// The layer below the present filter. The filter is removed.
    BelowFilter,
    /// The backing layer of the disk's uppermost image.
    BelowTop,
}

/// The layer to put in, open.
#[derive(Default)]
pub(in crate::nodes) struct Replacement {
    pub(super) block: Option<Arc<dyn Block>>,
    /// Layers that the disk may get.
    pub(super) list: Vec<Arc<Layer>>,
    /// If it is put over something: the image that gets that as its backing layer.
    pub(super) over: Option<(Qcow2, Under)>,
    /// The image whose bitmaps the disk gets.
    pub(super) bitmaps: Option<Qcow2>,
    pub(super) asked: Option<RootOptions>,
    pub(super) links: Links,
    /// A node that goes.
    pub(super) node: Option<Arc<Node>>,
    /// It is what is there already, opened in another way.
    pub(super) is_there: bool,
    /// It is another part of the file, whose size may be another one.
    pub(in crate::nodes) is_other_part: bool,
}

impl Graph {
    pub(super) async fn find(
        &self,
        node: &DiskNode,
        old: &Layers,
        edge: Edge,
        put: Put,
    ) -> Result<Replacement, ReplaceError> {
        let there = edge.block(old);
        if let Some(owner) = node.owner().filter(|_| !matches!(put, Put::Filter(_) | Put::WithoutFilter)) {
            return Err(NodeError::Layer { name: node.name(), of: owner.name() }.into());
        }
        match put {
            Put::Nothing => Ok(Replacement::default()),
            Put::Opened(opened) => opened_at(edge, opened),
            Put::Over(opened) => {
                let over = only_image(&opened.list, &opened.path.display().to_string())?;
                Ok(Replacement { over: Some((over, Under::There)), ..opened_at(edge, opened)? })
            }
            Put::Layer(at) => {
                let blocks: Vec<_> = block::layers(Arc::clone(&old.top)).take(at.saturating_add(1)).collect();
                check_own(&blocks)?;
                let block = blocks.get(at).cloned();
                let block = block.ok_or_else(|| node.no_layer(old, at))?;
                let bitmaps = bitmaps_of(&*block);
                let asked = Some(RootOptions { path: block.name().into(), tree: tree_of(&*block) });
                Ok(Replacement { block: Some(block), bitmaps, asked, ..Replacement::default() })
            }
            Put::Node(name) => self.find_node(node, edge, &name),
            Put::NodeOver(name, under) => {
                if under == Under::BelowFilter {
                    below_filter(node, old, edge)?;
                }
                let found = self.find_node(node, edge, &name)?;
                Ok(Replacement { over: Some((only_image(&found.list, &name)?, under)), ..found })
            }
            Put::WithoutFilter => {
                let block = below_filter(node, old, edge)?;
                let bitmaps = if edge == Edge::Root { old.bitmaps.clone() } else { None };
                Ok(Replacement { block: Some(block), bitmaps, ..Replacement::default() })
            }
            Put::Filter(filter) => {
                let block = filter(there.ok_or_else(|| node.no_layer(old, edge.at()))?);
                let tasks = old.list.first().map(|layer| layer.tasks.clone());
                let tasks = tasks.ok_or_else(|| ReplaceError::NoRoot { node: node.name() })?;
                let layer = Layer {
                    block: Arc::clone(&block),
                    identity: None,
                    tasks,
                    closes_below: true,
                    own: Mutex::default(),
                    by_name: Mutex::default(),
                    writers: Mutex::default(),
                    files: None,
                    compressing: OnceLock::new(),
                };
                let bitmaps = if edge == Edge::Root { old.bitmaps.clone() } else { None };
                Ok(Replacement {
                    block: Some(block),
                    list: vec![Arc::new(layer)],
                    bitmaps,
                    ..Replacement::default()
                })
            }
        }
    }

    /// The root of the node called `name`, if the node has no users.
    fn find_node(&self, disk: &DiskNode, edge: Edge, name: &str) -> Result<Replacement, ReplaceError> {
        let node = self.node(name)?;
        let found = node.disk()?;
        if Arc::ptr_eq(&found.disk, &disk.disk) || self.is_over_changing(name) {
            return Err(ReplaceError::Cycle { layer: name.to_owned() });
        }
        self.check_unused(&node)?;
        check_readable_below(edge, &*found.disk.root())?;
        Ok(found_of(&node, found))
    }
}

/// The layers of `disk`, which is that of `node`.
pub(in crate::nodes) fn found_of(node: &Arc<Node>, found: &DiskNode) -> Replacement {
    let layers = found.disk.layers();
    Replacement {
        block: Some(Arc::clone(&layers.top)),
        list: layers.list.clone(),
        bitmaps: layers.bitmaps.clone(),
        asked: Some(found.asked.lock().clone()),
        links: node.links.lock().clone(),
        node: Some(Arc::clone(node)),
        ..Replacement::default()
    }
}

/// The layer below the filter at `edge`.
fn below_filter(node: &DiskNode, old: &Layers, edge: Edge) -> Result<Arc<dyn Block>, ReplaceError> {
    let filter = edge.block(old).and_then(|block| old.of(&block).filter(|layer| layer.closes_below).cloned());
    filter.and_then(|layer| layer.block.below()).ok_or_else(|| node.no_layer(old, edge.at()))
}

fn opened_at(edge: Edge, opened: OpenedLayers) -> Result<Replacement, ReplaceError> {
    let OpenedLayers { list, bitmaps, path, tree, links } = opened;
    let block = list.first().map(|layer| Arc::clone(&layer.block));
    if let Some(block) = &block {
        check_readable_below(edge, &**block)?;
    }
    Ok(Replacement {
        block,
        list,
        bitmaps,
        asked: Some(RootOptions { path, tree }),
        links,
        ..Replacement::default()
    })
}

impl Replacement {
    /// A block that is none of the disk's own layers, as the backing of an image.
    pub(in crate::nodes) fn of_block(block: Arc<dyn Block>) -> Self {
        Self { block: Some(block), ..Self::default() }
    }

    /// `layers`, which the disk had before, as `asked` said.
    pub(in crate::nodes) fn before(layers: &Layers, asked: RootOptions) -> Self {
        Self {
            block: Some(Arc::clone(&layers.top)),
            list: layers.list.clone(),
            bitmaps: layers.bitmaps.clone(),
            asked: Some(asked),
            ..Self::default()
        }
    }

    /// `layer`, which is what is at `edge` already, opened in another way.
    pub(in crate::nodes) fn again(edge: Edge, layer: Layer) -> Self {
        let bitmaps = match edge {
            Edge::Root => bitmaps_of(&*layer.block),
            Edge::Backing { .. } => None,
        };
        let block = Some(Arc::clone(&layer.block));
        Self { block, list: vec![Arc::new(layer)], bitmaps, is_there: true, ..Self::default() }
    }
}

/// Refuses a writable block as a backing layer.
fn check_readable_below(edge: Edge, block: &dyn Block) -> Result<(), ReplaceError> {
    match edge != Edge::Root && !block.capabilities().read_only {
        true => Err(ReplaceError::Writable { layer: block.name().to_owned() }),
        false => Ok(()),
    }
}

/// The image that is all of `opened`, and gets a backing layer.
fn only_image(list: &[Arc<Layer>], name: &str) -> Result<Qcow2, ReplaceError> {
    let (layer, driver) = match list {
        [only] => match only.block.downcast_ref::<Qcow2>() {
            Some(image) => return Ok(image.clone()),
            None => (only.block.name().to_owned(), only.block.driver()),
        },
        _ => return Err(ReplaceError::HasBacking { layer: name.to_owned() }),
    };
    Err(ReplaceError::NotAnImage { layer, driver })
}

/// How a block would be asked for by itself.
fn tree_of(block: &dyn Block) -> OptionTree {
    let mut tree = OptionTree::of_path(block.name());
    let mut say = |name: &str, value: String| {
        // Neither name is malformed.
        let _ = tree.replace(name, value);
    };
    say("driver", block.driver().to_owned());
    if let Some(raw) = raw_of(block) {
        say("offset", raw.offset.to_string());
        if raw.fixed {
            say("size", raw.size().to_string());
        }
    }
    tree
}
