//! What jobs and snapshots change of a running disk: its layers, with their names.
//!
//! A disk has the name of its uppermost image. An image that gets an overlay keeps its name, as a part of the
//! disk. An image that is taken out of a disk is closed; if it was a node by itself, its name stays until
//! `blockdev-del`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use block::{Block, Error};
use storage::Reach;

use super::disk_node::DiskNode;
use super::error::NodeError;
use super::move_files::names_of;
use super::name::check_node_name;
use super::node::{Node, NodeKind};
use super::replace::{Edge, Put, PutOver, ReplaceError, Replaced, Under};
use super::user::User;
use super::{Change, Graph};
use crate::bitmaps_file::raw_of;
use crate::child::Child;
use crate::layers::{Layer, LayerFiles, Layers, OpenedLayers};
use crate::links::{Links, Own};
use crate::options::LayerOptions;
use crate::runtime::OpenedAs;

/// An overlay to be put over a disk.
#[derive(Debug)]
pub enum Overlay {
    /// Opened for it; its name, or one that is made.
    Opened(OpenedLayers, Option<String>),
    /// The root of this node's disk. The disk has the node's name afterwards.
    Node(String),
}

/// A layer of a disk, as others see it.
#[derive(Clone, Debug)]
pub struct LayerView {
    /// Its node name, if it has one.
    pub name: Option<String>,
    /// What answers requests.
    pub block: Arc<dyn Block>,
    /// It is a filter over the layer below.
    pub is_filter: bool,
    /// What uses it by its own name.
    pub user: Option<User>,
    /// The files that it is made of: what they are to it, and their node names, or else their paths.
    pub files: Vec<(&'static str, String)>,
    /// How it is opened, if it is made of files.
    pub opened: Option<OpenedAs>,
}

impl Graph {
    /// The layers of a disk, from the upper to the lower.
    ///
    /// # Errors
    /// When there is no such disk.
    pub fn layers(&self, name: &str) -> Result<Vec<LayerView>, NodeError> {
        let node = self.disk(name)?;
        if let Some(owner) = node.owner() {
            let all = self.layers(&owner.name())?;
            return Ok(all.into_iter().skip_while(|layer| layer.name.as_deref() != Some(name)).collect());
        }
        let layers = node.disk.layers();
        let views = block::layers(Arc::clone(&layers.top)).map(|block| {
            let layer = layers.of(&block);
            let is_first = layer.is_some() && layers.first().is_some_and(|first| Some(first) == layer);
            let own = layer.and_then(|layer| layer.own_name());
            LayerView {
                name: if is_first { Some(node.name()) } else { own },
                is_filter: match layer {
                    Some(layer) => layer.files.is_none(),
                    None => block.downcast_ref::<Child>().is_some(),
                },
                user: layer
                    .and_then(|layer| layer.node_in_use()?.holders.first())
                    .filter(|user| !self.is_idle_filter(user)),
                files: layer.and_then(|layer| layer.files.as_ref()).map_or_else(Vec::new, LayerFiles::names),
                opened: layer
                    .and_then(|layer| layer.files.as_ref())
                    .map(|files| OpenedAs::of(&files.options)),
                block,
            }
        });
        Ok(views.collect())
    }

    /// How far writes have reached into the file called `name`: a node of its own, a part of a disk, or a
    /// disk that is the bytes of its file.
    ///
    /// # Errors
    /// When there is no such file, it is not open, or its reach is not recorded.
    pub fn reach_of(&self, name: &str) -> Result<Arc<Reach>, NodeError> {
        if let Some(reach) = self.write_reaches().remove(name) {
            return Ok(reach);
        }
        reach_of_raw(&self.disk(name)?.disk.top_image())
            .ok_or_else(|| NodeError::NoReach { name: name.to_owned() })
    }

    /// The same of all files and raw layers that have names, in one look at all disks.
    pub fn write_reaches(&self) -> HashMap<String, Arc<Reach>> {
        let mut found = HashMap::new();
        for disk in self.disks() {
            let layers = disk.disk.layers();
            for layer in &layers.list {
                let files = layer.files.iter().flat_map(LayerFiles::written_by_name);
                found.extend(files.filter_map(|(name, file)| Some((name, Arc::clone(file.reach()?)))));
                let is_first = layers.first() == Some(layer);
                let name = if is_first { Some(disk.name()) } else { layer.own_name() };
                found.extend(name.zip(reach_of_raw(&layer.block)));
            }
        }
        found
    }

    /// Refuses a name that a node cannot have, or that is in use.
    ///
    /// # Errors
    /// Says which.
    pub fn check_new_name(&self, name: &str) -> Result<(), NodeError> {
        check_node_name(name)?;
        self.check_free(name)
    }

    /// The user of kind `job` that the disk `name` has, if any.
    ///
    /// # Errors
    /// When there is no such disk.
    pub fn job_on(&self, name: &str) -> Result<Option<User>, NodeError> {
        let disk = self.disk(name)?;
        let nodes = self.nodes.lock();
        let node = nodes.iter().find(|node| node.is_of(&disk));
        Ok(node.and_then(|node| node.holders.all().into_iter().find(|user| user.kind == "job")))
    }

    /// Puts an overlay over a disk while requests run: what was written before is below it, what comes goes into it.
    ///
    /// # Errors
    /// As [`Graph::replace`]; when the overlay's name is in use.
    pub async fn put_over(
        &self,
        change: &Change<'_>,
        name: &str,
        overlay: Overlay,
    ) -> Result<Replaced, ReplaceError> {
        let disk = self.disk(name)?;
        let before = disk.disk.layers();
        let (put, own) = match overlay {
            Overlay::Opened(opened, own) => {
                let own = own.unwrap_or_else(|| self.make_name());
                self.check_free(&own)?;
                (Put::Over(opened), Own { name: own, by_user: false, links: Links::default() })
            }
            Overlay::Node(node) => {
                let own = self.own_of(&node)?;
                (Put::NodeOver(node, Under::There), own)
            }
        };
        let replaced = self.replace(change, &disk.name(), Edge::Root, put, async || Ok(())).await?;
        self.rename(&disk, &before, Some(own));
        Ok(replaced)
    }

    /// Removes an overlay that [`Graph::put_over`] put there and that has no writes: the disk has been
    /// drained since. The overlay's node, if it was one, is restored.
    ///
    /// # Errors
    /// As [`Graph::replace`].
    pub async fn take_off(
        &self,
        change: &Change<'_>,
        disk: &Arc<DiskNode>,
        node: Option<Arc<Node>>,
    ) -> Result<Replaced, ReplaceError> {
        let before = disk.disk.layers();
        let overlay = disk.disk.image();
        let replaced = self.replace(change, &disk.name(), Edge::Root, Put::Layer(1), async || Ok(())).await?;
        let gone = disk.name();
        self.rename(disk, &before, None);
        self.forget(&gone);
        if let Some(node) = node {
            if let Some(image) = overlay {
                let still = image.hold_still().await.map_err(ReplaceError::Before)?;
                still.set_backing(None).map_err(ReplaceError::Before)?;
            }
            node.name.set(gone);
            self.nodes.lock().push(node);
        }
        Ok(replaced)
    }

    /// Puts a filter over a disk. `last_look` runs while no request does: the filter's first request sees
    /// what it sets.
    ///
    /// # Errors
    /// As [`Graph::replace`].
    pub async fn put_filter_over(
        &self,
        change: &Change<'_>,
        disk: &DiskNode,
        filter: PutOver,
        last_look: impl AsyncFnOnce() -> Result<(), Error>,
    ) -> Result<Replaced, ReplaceError> {
        self.replace(change, &disk.name(), Edge::Root, Put::Filter(filter), last_look).await
    }

    /// Puts the layer `below`, or nothing, below the image `of`; those between are taken out. `last_look` runs while no request does.
    ///
    /// # Errors
    /// As [`Graph::replace`].
    pub async fn put_below(
        &self,
        change: &Change<'_>,
        disk: &Arc<DiskNode>,
        of: &Arc<dyn Block>,
        below: Option<&Arc<dyn Block>>,
        last_look: impl AsyncFnOnce() -> Result<(), Error>,
    ) -> Result<Replaced, ReplaceError> {
        let before = disk.disk.layers();
        let put = match below {
            Some(below) => Put::Layer(place(&before, below)?),
            None => Put::Nothing,
        };
        let edge = Edge::Backing { of: place(&before, of)? };
        let replaced = self.replace(change, &disk.name(), edge, put, last_look).await?;
        self.rename(disk, &before, None);
        Ok(replaced)
    }

    /// Makes the layer `block`, which holds the same data by now, the disk's root. All layers above are
    /// removed, and the disk gets the layer's name. When `last_look` has ended, all that guests flushed is
    /// durable in the layer.
    ///
    /// # Errors
    /// As [`Graph::replace`].
    pub async fn set_root_layer(
        &self,
        _change: &Change<'_>,
        disk: &Arc<DiskNode>,
        block: &Arc<dyn Block>,
        last_look: impl AsyncFnOnce() -> Result<(), Error>,
    ) -> Result<Replaced, ReplaceError> {
        let before = disk.disk.layers();
        let at = place(&before, block)?;
        let replaced = self.switch(disk, Put::Layer(at), last_look).await?;
        // Guests write to it from now on.
        if let Some(layer) = before.of(block) {
            layer.loses_writer();
        }
        let own = before.of(block).and_then(|layer| layer.own.lock().clone());
        self.rename(disk, &before, Some(own.unwrap_or_else(|| self.made_own())));
        Ok(replaced)
    }

    /// Switches a disk to the layers of the node `target`, which is a copy of it and whose name the disk has afterwards. With `over` the target is an
    /// image without a backing layer, and gets that one. When `last_look` has ended, all that guests flushed is durable in the copy, or in its
    /// backing layer.
    ///
    /// # Errors
    /// As [`Graph::replace`].
    pub async fn set_root_node(
        &self,
        change: &Change<'_>,
        disk: &Arc<DiskNode>,
        target: &str,
        over: Option<Under>,
        last_look: impl AsyncFnOnce() -> Result<(), Error>,
    ) -> Result<Replaced, ReplaceError> {
        let (before, own) = (disk.disk.layers(), self.own_of(target)?);
        let target = target.to_owned();
        let replaced = match over {
            None => self.switch(disk, Put::Node(target), last_look).await?,
            Some(under @ Under::BelowTop) => {
                self.switch(disk, Put::NodeOver(target, under), last_look).await?
            }
            // What it does not have is in the disk, and is flushed there.
            Some(under) => {
                self.replace(change, &disk.name(), Edge::Root, Put::NodeOver(target, under), last_look)
                    .await?
            }
        };
        self.rename(disk, &before, Some(own));
        Ok(replaced)
    }

    pub(super) fn made_own(&self) -> Own {
        Own { name: self.make_name(), by_user: false, links: Links::default() }
    }

    /// What the disk of a node takes with it into another one.
    fn own_of(&self, name: &str) -> Result<Own, NodeError> {
        let node = self.node(name)?;
        let links = node.links.lock().clone();
        Ok(Own { name: node.name(), by_user: !node.implicit, links })
    }

    /// Updates names after an exchange. The uppermost image of `before` keeps the disk's old name; `own` is
    /// the name of the new uppermost image, if that is another one. Names of removed layers go, or stay as
    /// [`NodeKind::TakenOut`].
    pub(super) fn rename(&self, disk: &DiskNode, before: &Layers, own: Option<Own>) {
        let now = disk.disk.layers();
        let mut nodes = self.nodes.lock();
        let Some(node) = nodes.iter().find(|node| node.is_of(disk)).cloned() else { return };
        let (old, new) = (before.first(), now.first());
        let removed = now.missing(before);
        let mut links = node.links.lock();
        if old != new {
            if let Some(old) = old {
                let mut slot = old.own.lock();
                // The new one has the name.
                let is_passed_on = own.as_ref().is_some_and(|own| own.name == node.name());
                if slot.is_none() || is_passed_on {
                    let others = now.list.iter().chain(removed.layers()).filter(|layer| *layer != old);
                    let others = |each: &mut dyn FnMut(&Own)| {
                        others.for_each(|layer| layer.own.lock().as_ref().into_iter().for_each(&mut *each));
                    };
                    let links = links.without(others, own.as_ref());
                    *slot = Some(match is_passed_on {
                        true => Own { links, ..self.made_own() },
                        false => Own { name: node.name(), by_user: !node.implicit, links },
                    });
                }
            }
            if let Some(new) = new {
                let own = own.or_else(|| new.own.lock().clone()).unwrap_or_else(|| self.made_own());
                let was = node.name();
                node.name.set(own.name.clone());
                // An image whose file is the disk follows the new name.
                for over in nodes.iter().filter(|over| !Arc::ptr_eq(over, &node)) {
                    over.links.lock().follow(&was, &own.name);
                }
                *new.own.lock() = Some(own);
            }
        }
        let mut taken_out = Vec::new();
        for layer in removed.layers() {
            let files = layer.files.as_ref().map(|files| {
                let LayerOptions { file, data_file, luks_header, bitmaps, .. } = &files.options;
                [file, &**data_file, &**luks_header, &**bitmaps]
            });
            let mut names = Vec::new();
            files.into_iter().flatten().for_each(|file| names_of(file, &mut names));
            links.remove(&Links { parts: names.clone(), uses: names.clone(), files: names });
            let Some(own) = layer.own.lock().take() else { continue };
            links.remove(&own.links);
            links.parts.retain(|part| *part != own.name);
            links.uses.retain(|used| *used != own.name);
            if own.by_user {
                taken_out.push(own);
            }
        }
        let name = node.name();
        links.parts.retain(|part| *part != name);
        let known: HashSet<&str> = links.parts.iter().chain(&links.uses).map(String::as_str).collect();
        let unknown = |layer: &Arc<Layer>| {
            let own = layer.own.lock();
            let name = &own.as_ref()?.name;
            (!known.contains(name.as_str())).then(|| name.clone())
        };
        let below = now.list.iter().filter(|layer| Some(*layer) != new);
        let unknown: Vec<String> = below.filter_map(unknown).collect();
        links.parts.extend(unknown);
        drop(links);
        for own in taken_out {
            let node = Node::new(own.name, NodeKind::TakenOut);
            *node.links.lock() = own.links;
            nodes.push(Arc::new(node));
        }
    }

    /// Takes away a name that was left by what was taken out.
    pub(super) fn forget(&self, name: &str) {
        let is_left = |node: &Arc<Node>| matches!(node.kind, NodeKind::TakenOut) && node.name.is(name);
        self.nodes.lock().retain(|node| !is_left(node));
    }
}

/// Layers above `block`.
pub(super) fn place(layers: &Layers, block: &Arc<dyn Block>) -> Result<usize, NodeError> {
    let found = block::layers(Arc::clone(&layers.top)).position(|layer| Arc::ptr_eq(&layer, block));
    found.ok_or_else(|| NodeError::Unknown { name: block.name().to_owned() })
}

/// How far writes have reached into a disk that is the bytes of its file.
fn reach_of_raw(block: &Arc<dyn Block>) -> Option<Arc<Reach>> {
    raw_of(&**block)?.storage.reach().cloned()
}
