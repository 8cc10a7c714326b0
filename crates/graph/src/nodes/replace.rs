//! Another block is put in a place of a disk, while requests run.
//!
//! One function does all of it: requests are kept out and running ones end, the blocks are exchanged,
//! requests are admitted again. Up to the exchange itself, which is not interrupted, an error or a dropped
//! future leaves everything as it was.

mod error;
mod found;

use std::sync::Arc;
use std::time::Duration;

use block::{Block, Error};
use qcow2::{HeldStill, Qcow2};

pub use self::error::ReplaceError;
pub use self::found::Under;
pub(super) use self::found::{Replacement, found_of};
use super::disk_node::{DiskNode, RootOptions};
use super::error::NodeError;
use super::node::{Node, NodeKind};
use super::user::User;
use super::{Change, Graph};
use crate::Drained;
use crate::child::Child;
use crate::layers::{Layer, Layers, OpenedLayers, RemovedLayers};
use crate::options::DiskOptions;
use crate::runtime::RuntimeOptions;

/// Where in a disk something else can be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// The disk's root: its uppermost layer.
    Root,
    /// What lies below an image, which may be nothing.
    Backing {
        /// The image, counted down from the uppermost layer, which is 0.
        of: usize,
    },
}

/// What is put there.
pub enum Put {
    /// Nothing: the image has no backing layer any more.
    Nothing,
    /// Layers that were opened for it.
    Opened(OpenedLayers),
    /// Likewise, over the present layer, which becomes the backing layer of the new image.
    Over(OpenedLayers),
    /// A layer further down in the same disk, counted from the uppermost one, which is 0. Those between go.
    Layer(usize),
    /// The root of another node's disk. The node is gone afterwards.
    Node(String),
    /// Likewise, an image that gets a backing layer.
    NodeOver(String, Under),
    /// The block below the present filter.
    WithoutFilter,
    /// A filter over the present layer.
    Filter(PutOver),
}

/// Makes a filter over the block that it is given.
pub type PutOver = Box<dyn FnOnce(Arc<dyn Block>) -> Arc<dyn Block>>;

/// An exchange that has happened.
#[derive(Debug)]
pub struct Replaced {
    /// For how long requests were kept out, including the wait for running ones.
    pub pause: Duration,
    /// Layers that the disk no longer has.
    pub removed: RemovedLayers,
}

/// The disk's layers afterwards.
struct Plan {
    /// Images whose backing layer changes, the lower ones first, each with its new one.
    backings: Vec<(Qcow2, Option<Arc<dyn Block>>)>,
    top: Arc<dyn Block>,
    /// The image whose bitmaps the disk has.
    bitmaps: Option<Qcow2>,
    /// The image and the options that the disk counts as opened with.
    asked: RootOptions,
}

/// What becomes of what requests wrote to the uppermost layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// It is flushed first.
    Flush,
    /// What comes in its place has it, or is flushed with it.
    Copied,
}

impl Graph {
    /// Puts `put` at `edge` of the disk that `name` leads to, while requests run. Running requests finish on
    /// the old block; new ones wait and use the new block. Layers that are not needed any more are in the
    /// result.
    ///
    /// `last_look` runs when no request does, just before the exchange: what it sees still holds when
    /// requests resume. It may use the blocks of the disk ([`crate::Disk::root`]); a request to the disk
    /// itself would wait for ever. No request waits for a flush: the uppermost layer is flushed before
    /// requests are kept out, and what they wrote to it afterwards is durable with the next flush of the disk
    /// ([`crate::Disk::flush_below`]). A caller that keeps requests out ([`Graph::keep_at_rest`]) flushes
    /// before that.
    ///
    /// Costs that flush and the time in which running requests end, which is in the result. Nothing on disk
    /// changes: the caller writes the backing file's name to the image's header.
    ///
    /// # Crash
    /// As one before or after: nothing that a flush of the disk covered is lost.
    ///
    /// # Errors
    /// When it cannot be put there, when `last_look` or the flush fails. Then, and when the future is dropped, everything is as it was;
    /// layers that were opened for it are closed.
    pub async fn replace(
        &self,
        _change: &Change<'_>,
        name: &str,
        edge: Edge,
        put: Put,
        last_look: impl AsyncFnOnce() -> Result<(), Error>,
    ) -> Result<Replaced, ReplaceError> {
        let node = self.disk(name)?;
        let old = node.disk.layers();
        // A flush of the disk goes through a filter to what it is over, before and afterwards.
        let written = match (edge, &put) {
            (Edge::Root, Put::Filter(_) | Put::WithoutFilter) => Written::Copied,
            _ => Written::Flush,
        };
        let found = Box::pin(self.find(&node, &old, edge, put)).await?;
        self.exchange(&node, &old, edge, found, written, last_look).await
    }

    /// As [`Graph::replace`] of the root by a copy of it, in which all that guests flushed is durable when `last_look` has ended. Nothing is
    /// flushed here but what lies below.
    pub(super) async fn switch(
        &self,
        node: &DiskNode,
        put: Put,
        last_look: impl AsyncFnOnce() -> Result<(), Error>,
    ) -> Result<Replaced, ReplaceError> {
        let old = node.disk.layers();
        let found = Box::pin(self.find(node, &old, Edge::Root, put)).await?;
        self.exchange(node, &old, Edge::Root, found, Written::Copied, last_look).await
    }

    /// Puts `found` at `edge` of the disk, whose layers are `old`: see [`Graph::replace`].
    pub(super) async fn exchange(
        &self,
        node: &DiskNode,
        old: &Layers,
        edge: Edge,
        found: Replacement,
        written: Written,
        last_look: impl AsyncFnOnce() -> Result<(), Error>,
    ) -> Result<Replaced, ReplaceError> {
        // Refused without disturbing requests. Most of what a flush writes is written while they are still
        // admitted.
        node.plan(old, edge, &found)?;
        let flushed = match written {
            // A transaction keeps requests out: it has flushed the disk before.
            Written::Flush if node.disk.front.is_shut() => Ok(()),
            Written::Flush => node.disk.flush_inside().await,
            Written::Copied => node.disk.flush_below().await,
        };
        flushed.map_err(ReplaceError::Before)?;
        let begun = node.disk.front.now();
        let drained = node.disk.drain().await;
        last_look().await.map_err(ReplaceError::Before)?;
        let removed = self.exchange_drained(node, old, edge, &found, &drained).await?;
        drop(drained);
        let pause = node.disk.front.now().since(begun);
        node.disk.front.note_pause(pause);
        tracing::debug!(node = node.name(), ?edge, ?pause, "the disk is backed by other layers");
        Ok(Replaced { pause, removed })
    }

    /// The exchange itself, of a drained disk. Nothing is awaited after the disk has got its new layers.
    pub(super) async fn exchange_drained(
        &self,
        node: &DiskNode,
        old: &Layers,
        edge: Edge,
        found: &Replacement,
        drained: &Drained<'_>,
    ) -> Result<RemovedLayers, ReplaceError> {
        // The size may have changed while requests ran.
        let Plan { backings, top, bitmaps, asked } = node.plan(old, edge, found)?;
        let mut still: Vec<HeldStill<'_>> = Vec::with_capacity(backings.len());
        for (image, _) in backings.iter().rev() {
            still.push(image.hold_still().await.map_err(ReplaceError::Before)?);
        }
        // From here on nothing waits. The first two may refuse, and then the others have not changed.
        for (still, (_, backing)) in still.iter().rev().zip(&backings) {
            still.set_backing(backing.clone()).map_err(ReplaceError::Before)?;
        }
        let layers = Layers::new(top, &[&old.list, &found.list], bitmaps);
        let removed = layers.missing(old);
        // What is put over the uppermost image, but for one whose place it takes.
        let layers = match (&found.over, backings.first()) {
            (Some((_, Under::There)), _) => layers.over(node.disk.layers()),
            (Some((_, Under::BelowFilter)), Some((_, Some(below)))) => {
                let below = Layers::new(Arc::clone(below), &[&old.list], None);
                layers.over(Arc::new(below))
            }
            _ => layers,
        };
        node.disk.set_root(Arc::new(layers), drained);
        node.put_in_force(asked);
        self.link(node, found);
        Ok(removed)
    }

    /// Gives the node the names of its new layers, too, and removes a node that gave its root.
    fn link(&self, disk: &DiskNode, found: &Replacement) {
        let mut nodes = self.nodes.lock();
        if let Some(gone) = &found.node {
            nodes.remove(gone);
        }
        if let Some(node) = nodes.iter().find(|node| node.is_of(disk)) {
            // A name that did not change is not looked for anew.
            if !found.links.is_empty() {
                node.links.lock().add(found.links.clone());
            }
        }
    }

    /// Refuses a node that has users or holders.
    pub(super) fn check_unused(&self, node: &Node) -> Result<(), NodeError> {
        if let NodeKind::JobFilter { job, .. } = &node.kind {
            return Err(NodeError::InUse { name: node.name(), by: job.clone() });
        }
        let above = self.users(node).first().map(|user| User { kind: "node", name: user.name() });
        match above.or_else(|| node.holders.first()) {
            Some(by) => Err(NodeError::InUse { name: node.name(), by }),
            None => self.check_layers_unused(node),
        }
    }
}

impl DiskNode {
    /// What comes of putting `found` at `edge`, if it may be put there. Changes nothing.
    fn plan(&self, old: &Layers, edge: Edge, found: &Replacement) -> Result<Plan, ReplaceError> {
        // What lies deeper does not matter.
        let seen = edge.at().saturating_add(2);
        let blocks: Vec<Arc<dyn Block>> = block::layers(Arc::clone(&old.top)).take(seen).collect();
        if edge.at() > blocks.len() {
            return Err(self.no_layer(old, edge.at() - 1));
        }
        let mut backings = Vec::new();
        if let Some((over, under)) = &found.over {
            let under = match under {
                Under::There => blocks.get(edge.at()).cloned(),
                Under::BelowFilter => blocks.get(edge.at() + 1).cloned(),
                Under::BelowTop => self.disk.top_image().below(),
            };
            backings.push((over.clone(), under));
        }
        let (above, _) = blocks.split_at(edge.at());
        check_own(above)?;
        check_cycle(above, old, found)?;
        let mut below = found.block.clone();
        for (up, block) in above.iter().rev().enumerate() {
            match block.downcast_ref::<Qcow2>() {
                Some(image) => backings.push((image.clone(), below)),
                None if up == 0 => {
                    let (layer, driver) = (block.name().to_owned(), block.driver());
                    return Err(ReplaceError::NotAnImage { layer, driver });
                }
                // A filter keeps the block that it is over.
                None => {}
            }
            below = Some(Arc::clone(block));
        }
        let top = below.ok_or_else(|| ReplaceError::NoRoot { node: self.name() })?;
        let bitmaps = if edge == Edge::Root { found.bitmaps.clone() } else { old.bitmaps.clone() };
        if edge == Edge::Root && !found.is_other_part {
            self.check_root(&*top)?;
        }
        Ok(Plan { backings, top, bitmaps, asked: self.asked_after(edge, found) })
    }

    /// Refuses what clients of the disk would notice.
    fn check_root(&self, top: &dyn Block) -> Result<(), ReplaceError> {
        let (layer, found, needed) = (|| top.name().to_owned(), top.size(), self.disk.size());
        // What another process did to an inactive disk is what it is now.
        if !self.disk.is_active() {
            return Ok(());
        }
        if found != needed {
            return Err(ReplaceError::OtherSize { layer: layer(), found, needed });
        }
        if !self.disk.read_only() && top.capabilities().read_only {
            return Err(ReplaceError::ReadOnly { layer: layer() });
        }
        Ok(())
    }

    pub(super) fn no_layer(&self, layers: &Layers, at: usize) -> ReplaceError {
        let layers = block::layers(Arc::clone(&layers.top)).count();
        ReplaceError::NoLayer { node: self.name(), at, layers }
    }

    /// The image and the options that the disk counts as opened with once `found` is at `edge`. Options of a
    /// replaced backing layer are dropped.
    fn asked_after(&self, edge: Edge, found: &Replacement) -> RootOptions {
        let mut asked = match (&found.asked, edge) {
            (Some(asked), Edge::Root) => asked.clone(),
            (None, _) | (_, Edge::Backing { .. }) => self.asked.lock().clone(),
        };
        if !found.is_there && (edge != Edge::Root || found.over.is_some()) {
            asked.tree.take("backing");
        }
        asked
    }

    /// Options that change while a disk is open stay the disk's own; those of its image are the new image's.
    fn put_in_force(&self, asked: RootOptions) {
        let RootOptions { path, mut tree } = asked;
        let options = self.disk.runtime_options();
        tree.say(&options);
        if let Ok(new) = DiskOptions::of_tree(tree.clone()) {
            self.disk.note_options(RuntimeOptions { qcow2: new.layer.qcow2, ..options });
        }
        *self.asked.lock() = RootOptions { path, tree };
    }
}

impl Edge {
    /// The edge above layer `at`, counted down from the uppermost one, which is 0.
    pub(super) fn of(at: usize) -> Self {
        at.checked_sub(1).map_or(Self::Root, |of| Self::Backing { of })
    }

    /// How many layers are above what is there.
    fn at(self) -> usize {
        match self {
            Self::Root => 0,
            Self::Backing { of } => of.saturating_add(1),
        }
    }

    /// What is there.
    fn block(self, layers: &Layers) -> Option<Arc<dyn Block>> {
        block::layers(Arc::clone(&layers.top)).nth(self.at())
    }
}

/// Refuses to change what is below a disk that a filter is over: that is the other disk's.
pub(super) fn check_own(above: &[Arc<dyn Block>]) -> Result<(), ReplaceError> {
    match above.iter().find(|block| block.downcast_ref::<Child>().is_some()) {
        Some(child) => Err(ReplaceError::BelowFilter { layer: child.name().to_owned() }),
        None => Ok(()),
    }
}

/// Refuses to put below the blocks `above` what is one of them, or is made of the same file as what stays.
fn check_cycle(above: &[Arc<dyn Block>], old: &Layers, found: &Replacement) -> Result<(), ReplaceError> {
    let cycle = |block: &Arc<dyn Block>| Err(ReplaceError::Cycle { layer: block.name().to_owned() });
    let Some(block) = &found.block else { return Ok(()) };
    if above.iter().any(|above| Arc::ptr_eq(above, block)) {
        return cycle(block);
    }
    let stays = |layer: &&Arc<Layer>| {
        found.over.is_some() || above.iter().any(|above| Arc::ptr_eq(above, &layer.block))
    };
    for layer in old.list.iter().filter(stays) {
        let is_same = |new: &&Arc<Layer>| new.identity.is_some() && new.identity == layer.identity;
        if let Some(new) = found.list.iter().find(is_same) {
            return cycle(&new.block);
        }
    }
    Ok(())
}
