//! A disk that switched to a copy, or to one of its layers, leaves what it was backed by before: as a node of its own, open as it was, where users added it by name.

use std::sync::Arc;

use block::MovingBlock;
use parking_lot::Mutex;

use super::Graph;
use super::changing_backing::Changing;
use super::disk_node::{DiskNode, RootOptions};
use super::error::NodeError;
use super::holders::Hold;
use super::job_host::{JobHost, JobOwner};
use super::node::{Node, NodeKind, NodeLinks};
use super::replace::Replaced;
use super::user::User;
use crate::bitmaps_file::bitmaps_of;
use crate::disk::Disk;
use crate::layers::{Layer, Layers, RemovedLayers};
use crate::links::{Links, Own};

/// A disk before it switches.
pub(super) struct Before {
    name: String,
    asked: RootOptions,
    /// Layers below the uppermost image that have names.
    named: Vec<(Arc<Layer>, Own)>,
}

impl<O: JobOwner> JobHost<'_, O> {
    /// The disk as it is, if what it is about to leave stays open.
    pub(super) fn before_switch(&self) -> Option<Before> {
        self.graph.before_switch(self.disk).filter(|_| self.owner.keeps_source())
    }

    pub(super) async fn keep(&self, before: Option<Before>, replaced: Replaced) -> Replaced {
        match before {
            Some(before) => self.graph.keep(self.disk, before, replaced).await,
            None => replaced,
        }
    }
}

impl Graph {
    /// What [`Graph::keep`] needs to know of a disk that is about to switch; `None` if no user added it.
    fn before_switch(&self, disk: &DiskNode) -> Option<Before> {
        let node = self.nodes().into_iter().find(|node| node.is_of(disk) && !node.implicit)?;
        let layers = disk.disk.layers();
        let below = layers.list.iter().filter(|layer| Some(*layer) != layers.first());
        let named = below.filter_map(|layer| Some((Arc::clone(layer), layer.own.lock().clone()?)));
        Some(Before { name: node.name(), asked: disk.asked.lock().clone(), named: named.collect() })
    }

    /// Makes a node of the images that the disk has left: under the name that it had, and as it was asked for. What lies below them and is the disk's
    /// still is read through that, and stays as long as the node does. Images that cannot be kept are in the result, to be closed.
    async fn keep(&self, disk: &Arc<DiskNode>, before: Before, replaced: Replaced) -> Replaced {
        let (images, filters): (Vec<_>, Vec<_>) =
            replaced.removed.layers().iter().cloned().partition(|layer| !layer.closes_below);
        let [first, ..] = images.as_slice() else { return replaced };
        let options = crate::options::DiskOptions::of_tree(before.asked.tree.clone());
        let Ok(options) = options else { return replaced };
        let held = match self.hold_below(disk, &images, &before.name).await {
            Ok(held) => held,
            Err(error) => {
                tracing::warn!(%error, node = before.name, "what the disk was backed by is closed");
                return replaced;
            }
        };
        let layers = Layers::new(Arc::clone(&first.block), &[&images], bitmaps_of(&*first.block));
        let opened = Arc::new(Disk::new(layers, &options, self.rules()));
        let RootOptions { path, tree } = before.asked;
        let kept = DiskNode::new(before.name.clone(), path, tree, Arc::clone(&opened));
        let kept = kept.over(disk.files.lock().clone());
        let mut links = Links::default();
        let mut nodes = self.nodes.lock();
        let mut take_back = |name: &str| {
            let is_left = |node: &&Arc<Node>| matches!(node.kind, NodeKind::TakenOut) && node.name.is(name);
            let left = nodes.iter().find(is_left).cloned()?;
            nodes.remove(&left);
            Some(left.links.lock().clone())
        };
        links.add(take_back(&before.name).unwrap_or_default());
        for (layer, own) in before.named.into_iter().filter(|(layer, _)| images.contains(layer)) {
            take_back(&own.name);
            links.add(own.links.clone());
            links.parts.push(own.name.clone());
            *layer.own.lock() = Some(own);
        }
        let node = Node::new(before.name, NodeKind::Disk(Arc::new(kept)));
        nodes.push(Arc::new(Node { links: NodeLinks::new(links), stands_on: Mutex::new(held), ..node }));
        drop(nodes);
        opened.start_upkeep();
        Replaced { pause: replaced.pause, removed: RemovedLayers::of(filters) }
    }

    /// Makes the lowest of `images`, which the disk has left, read its backing image through the disk, if that is still
    /// one of the disk's layers. The hold that is returned keeps it from being removed.
    async fn hold_below(
        &self,
        disk: &Arc<DiskNode>,
        images: &[Arc<Layer>],
        name: &str,
    ) -> Result<Option<Hold>, NodeError> {
        let Some(lowest) = images.last() else { return Ok(None) };
        let Some(below) = lowest.block.below() else { return Ok(None) };
        let user = || User { kind: "node", name: name.to_owned() };
        let node = self.nodes().into_iter().find(|node| node.is_of(disk));
        let node = node.ok_or_else(|| NodeError::Unknown { name: disk.name() })?;
        let layers = disk.disk.layers();
        let is_shared = block::layers(Arc::clone(&layers.top)).any(|block| Arc::ptr_eq(&block, &below));
        if !is_shared {
            // The image is over a disk that clients write, or over nothing in the graph.
            return Ok(node.stands_on.lock().take());
        }
        if below.downcast_ref::<MovingBlock<Changing>>().is_some() {
            return node.changing_below().map(|below| self.hold_as_it_is(&below.name(), user())).transpose();
        }
        let layer = layers.of(&below).ok_or_else(|| NodeError::Unknown { name: below.name().to_owned() })?;
        let layer_name = match layer.own_name() {
            Some(name) => name,
            None => {
                let own = self.made_own();
                node.links.lock().parts.push(own.name.clone());
                let name = own.name.clone();
                *layer.own.lock() = Some(own);
                name
            }
        };
        let hold = self.hold_as_it_is(&layer_name, user())?;
        let failed = |source| NodeError::Filtered { name: name.to_owned(), source };
        let Some(image) = lowest.block.downcast_ref::<qcow2::Qcow2>() else { return Ok(Some(hold)) };
        let through = self.changing(hold.node())?;
        let still = image.hold_still().await.map_err(failed)?;
        still.set_backing(Some(through)).map_err(failed)?;
        drop(still);
        Ok(Some(hold))
    }
}
