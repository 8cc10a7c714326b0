//! Layers below the uppermost image that jobs write to: open for writing as long as one of them does.

use std::sync::Arc;

use block::Block;

use super::access::LayerAccess;
use super::changing_backing::is_changing;
use super::disk_node::DiskNode;
use super::error::NodeError;
use super::live::place;
use super::node::{Node, NodeKind};
use super::replace::ReplaceError;
use super::user::User;
use super::{Change, Graph};
use crate::bitmaps_file::bitmaps_of;
use crate::layers::{ByName, Layer, Layers};
use crate::links::{Links, Own};
use crate::names::Identity;

impl Graph {
    /// Reopens the layer `block` for writing, in its place; returns the new block. A writable layer is
    /// returned as it is. A node that has the same file open for reading, and that only this disk uses, is
    /// closed: its name is the layer's. Each call needs one of [`Graph::make_readable`].
    ///
    /// # Errors
    /// When the file is in use elsewhere, or cannot be opened; then everything is as it was.
    pub async fn make_writable(
        &self,
        change: &Change<'_>,
        disk: &Arc<DiskNode>,
        block: &Arc<dyn Block>,
    ) -> Result<Arc<dyn Block>, ReplaceError> {
        let layers = disk.disk.layers();
        let at = place(&layers, block)?;
        if block.capabilities().read_only {
            if let Some(layer) = layers.of(block) {
                self.take_in(disk, layer).await?;
            }
            self.set_layer_access(change, &disk.name(), at, LayerAccess::Write).await?;
        }
        let opened = block::layers(disk.disk.root()).nth(at);
        let opened = opened.ok_or_else(|| disk.no_layer(&layers, at))?;
        let now = disk.disk.layers();
        if let Some(layer) = now.of(&opened).filter(|layer| now.first() != Some(layer)) {
            *layer.writers.lock() += 1;
        }
        Ok(opened)
    }

    /// Opens the layer that `block` is for reading again: the job has written for the last time. The uppermost image, which guests write to, and a
    /// layer that another job has open for writing stay so. One that the disk has no more is closed already.
    ///
    /// # Errors
    /// As [`Graph::set_layer_access`].
    pub async fn make_readable(
        &self,
        change: &Change<'_>,
        disk: &Arc<DiskNode>,
        block: &Arc<dyn Block>,
    ) -> Result<(), ReplaceError> {
        let layers = disk.disk.layers();
        let Ok(at) = place(&layers, block) else { return Ok(()) };
        let is_needed = layers.of(block).is_some_and(|layer| layer.loses_writer());
        // A disk by itself stays open as it is.
        if is_needed
            || is_changing(&**block)
            || layers.first().is_some_and(|first| Arc::ptr_eq(&first.block, block))
        {
            return Ok(());
        }
        self.set_layer_access(change, &disk.name(), at, LayerAccess::Read).await.map(drop)
    }
}

/// Whether all that uses the node are exports that show it for reading.
fn is_shown_alone(node: &Node) -> bool {
    let users = node.holders.all();
    let is_read =
        matches!(&node.kind, NodeKind::Disk(disk) if disk.disk.read_only() && !disk.is_over_disks());
    let is_plain = node.filter.is_none() && node.changing_below().is_none();
    is_read && is_plain && !users.is_empty() && users.iter().all(|user| user.kind == "export")
}

/// A node, and the layer of the disk that is the same file.
type Beside = (Arc<Node>, Arc<Layer>);

impl Graph {
    /// If another node has `layer`'s file open and only `disk` uses that node, closes it and the nodes above
    /// it, which must be layers of the disk, too. A node that only read-only exports use stays: it reads
    /// `disk`'s layer from then on. For a job that writes to the layer, and needs the file alone.
    async fn take_in(&self, disk: &Arc<DiskNode>, layer: &Arc<Layer>) -> Result<(), ReplaceError> {
        let layers = disk.disk.layers();
        let mut taken = self.to_take_in(disk, &layers, layer)?;
        // Upper nodes first: a node that is closed must have no users.
        taken.sort_by_key(|(_, layer)| layers.list.iter().position(|other| other == layer));
        let names: Vec<String> = taken.iter().map(|(node, _)| node.name()).collect();
        for ((node, layer), name) in taken.iter().zip(&names) {
            let mut links = node.links.lock().clone();
            links.uses.retain(|used| !names.contains(used));
            match is_shown_alone(node) {
                true => self.become_layer_node(node, disk, layer).await?,
                false => self.close(node).await?,
            }
            *layer.own.lock() = Some(Own { name: name.clone(), by_user: true, links: links.clone() });
            let nodes = self.nodes.lock();
            if let Some(node) = nodes.iter().find(|node| node.is_of(disk)) {
                let mut own = node.links.lock();
                own.uses.retain(|used| used != name);
                own.add(links);
                own.parts.push(name.clone());
            }
        }
        Ok(())
    }

    /// The nodes that have the same file as a layer of `disk` open beside it and have to go for `layer` to be its alone, each with its layer.
    fn to_take_in(
        &self,
        disk: &DiskNode,
        layers: &Layers,
        layer: &Arc<Layer>,
    ) -> Result<Vec<Beside>, NodeError> {
        let beside =
            |layer: &Layer| layer.identity.as_ref().and_then(|identity| self.node_of(identity, disk));
        let mut taken: Vec<_> = beside(layer).map(|node| (node, Arc::clone(layer))).into_iter().collect();
        let mut seen = 0;
        while let Some((node, _)) = taken.get(seen).cloned() {
            for user in self.users(&node).into_iter().filter(|user| !user.is_of(disk)) {
                if taken.iter().any(|(taken, _)| Arc::ptr_eq(taken, &user)) {
                    continue;
                }
                let is_it = |layer: &&Arc<Layer>| beside(layer).is_some_and(|node| Arc::ptr_eq(&node, &user));
                let Some(layer) = layers.list.iter().find(is_it) else {
                    let by = User { kind: "node", name: user.name() };
                    return Err(NodeError::InUse { name: node.name(), by });
                };
                taken.push((user, Arc::clone(layer)));
            }
            if let Some(by) = node.holders.first().filter(|_| !is_shown_alone(&node)) {
                return Err(NodeError::InUse { name: node.name(), by });
            }
            seen += 1;
        }
        Ok(taken)
    }

    /// Makes the disk of `node`, whose file is that of `layer` of `owner`, read that layer, and releases its
    /// own lock on the file. Its clients are not affected.
    async fn become_layer_node(
        &self,
        node: &Arc<Node>,
        owner: &Arc<DiskNode>,
        layer: &Arc<Layer>,
    ) -> Result<(), ReplaceError> {
        let shown = node.disk()?;
        let drained = shown.disk.drain().await;
        let old = shown.disk.layers();
        let name = node.name();
        *layer.own.lock() = Some(Own { name: name.clone(), by_user: true, links: Links::default() });
        let block = self.block_of(owner, layer, &name);
        shown.disk.set_root(Arc::new(Layers::new(block, &[], bitmaps_of(&*layer.block))), &drained);
        shown.is_layer_of(owner);
        *layer.by_name.lock() = ByName::new(node, shown);
        self.nodes.lock().remove(node);
        drop(drained);
        let closed = old.close().await;
        closed.map_err(|source| ReplaceError::Close { layer: name, source })
    }

    /// The node of another disk whose uppermost image is the file `identity`.
    fn node_of(&self, identity: &Identity, disk: &DiskNode) -> Option<Arc<Node>> {
        let nodes = self.nodes.lock();
        let found = nodes.iter().find(|node| match &node.kind {
            NodeKind::Disk(other) if !std::ptr::eq(&**other, disk) => {
                other.disk.layers().first().is_some_and(|layer| layer.identity.as_ref() == Some(identity))
            }
            _ => false,
        });
        found.cloned()
    }
}
