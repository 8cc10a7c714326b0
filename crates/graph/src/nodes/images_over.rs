//! Images of other disks that are over a disk as that changes: a commit of the disk has their headers name another backing file.

use std::sync::Arc;

use block::Block;
use job::Host;

use super::access::LayerAccess;
use super::changing_backing::is_changing;
use super::disk_node::DiskNode;
use super::job_host::{JobHost, JobOwner, StepError};
use super::node::{Node, NodeKind};
use super::replace::{Edge, ReplaceError, Written, found_of};
use super::user::User;
use super::{Change, Graph};
use crate::layers::Layers;
use crate::links::Own;

impl Graph {
    /// The images of other disks that are over `disk` as it changes: their disks, and their places in these.
    fn images_over(&self, disk: &DiskNode) -> Vec<(Arc<DiskNode>, usize)> {
        let is_over = |node: &Arc<Node>| node.changing_below().is_some_and(|below| below.is_of(disk));
        let over = self.nodes().into_iter().filter(is_over);
        over.filter_map(|node| {
            let over = Arc::clone(node.disk().ok()?);
            let at = changing_at(&over.disk.layers())?.checked_sub(1)?;
            Some((over, at))
        })
        .collect()
    }
}

impl<'a, O: JobOwner> JobHost<'a, O> {
    /// Has the header of each name `below`; one that is only read is opened for writing meanwhile.
    pub(super) async fn name_in_each(
        &self,
        change: &Change<'a>,
        below: &Arc<dyn Block>,
        name: Option<&str>,
    ) -> Result<(), StepError> {
        for (disk, at) in self.graph.images_over(self.disk) {
            let is_read_only =
                block::layers(disk.disk.root()).nth(at).is_some_and(|image| image.capabilities().read_only);
            if is_read_only {
                self.graph.set_layer_access(change, &disk.name(), at, LayerAccess::Write).await?;
            }
            let named = match block::layers(disk.disk.root()).nth(at) {
                Some(image) => self.name_backing(&image, Some(below), name).await,
                None => Ok(()),
            };
            if is_read_only {
                self.graph.set_layer_access(change, &disk.name(), at, LayerAccess::Read).await?;
            }
            named?;
        }
        Ok(())
    }
}

impl Graph {
    /// Makes the disks that the images of the disk `name` are over, and that clients could go on writing, layers of it: as far down as only this
    /// disk uses them and they are plain disks. Each keeps its name, as a part of the disk. Nothing is opened or closed.
    ///
    /// # Errors
    /// As [`Graph::replace`]; then what is below stays as it was.
    pub async fn absorb_backing(&self, change: &Change<'_>, name: &str) -> Result<(), ReplaceError> {
        let disk = self.disk(name)?;
        let Some(node) = self.nodes().into_iter().find(|node| node.is_of(&disk)) else { return Ok(()) };
        // A job knows the layers that it began with.
        let has_job = self.job_on_layers(&node).is_some();
        let Some(below) = node.changing_below().filter(|below| !has_job && is_plain(below)) else {
            return Ok(());
        };
        Box::pin(self.absorb_backing(change, &below.name())).await?;
        let is_shared = !self.users(&below).is_empty() || below.holders.all().len() > 1;
        if is_shared || below.changing_below().is_some_and(|lower| is_plain(&lower)) {
            return Ok(());
        }
        let user = || User { kind: "node", name: node.name() };
        // A filter that it is over is what the disk is over then.
        let lower =
            below.changing_below().map(|lower| self.hold_as_it_is(&lower.name(), user())).transpose()?;
        let own_hold = node.stands_on.lock().take();
        drop(own_hold);
        let absorbed = self.absorb(&node, &below).await;
        *node.stands_on.lock() = match absorbed {
            Ok(()) => lower,
            Err(_) => Some(self.hold_as_it_is(&below.name(), user())?),
        };
        absorbed
    }

    /// The name of the disk that the images of the disk `name` are over, if it is one by itself.
    pub fn disk_below(&self, name: &str) -> Option<String> {
        let disk = self.disk(name).ok()?;
        Some(self.nodes().into_iter().find(|node| node.is_of(&disk))?.changing_below()?.name())
    }

    /// A disk below the layers of the disk `name` that has another user who may write it: its name, and one
    /// such user.
    pub fn writer_below(&self, name: &str) -> Option<(String, User)> {
        let disk = self.disk(name).ok()?;
        let mut left = self.nodes().into_iter().find(|node| node.is_of(&disk))?.changing_below();
        while let Some(node) = left {
            let is_written = node.disk().is_ok_and(|disk| !disk.disk.read_only());
            let mut others = node.holders.all().into_iter().filter(|holder| holder.kind != "node");
            if let Some(by) = others.next().filter(|_| is_written) {
                return Some((node.name(), by));
            }
            left = node.changing_below();
        }
        None
    }

    async fn absorb(&self, node: &Node, below: &Arc<Node>) -> Result<(), ReplaceError> {
        let (disk, absorbed) = (node.disk()?, below.disk()?);
        let before = disk.disk.layers();
        let Some(at) = changing_at(&before) else { return Ok(()) };
        // From here on no flush of the disk reaches it.
        absorbed.disk.flush_inside().await.map_err(ReplaceError::Before)?;
        self.check_unused(below)?;
        let found = found_of(below, absorbed);
        let own = Own { name: below.name(), by_user: !below.implicit, links: below.links.lock().clone() };
        if let Some(first) = absorbed.disk.layers().first() {
            *first.own.lock() = Some(own);
        }
        let replaced =
            self.exchange(disk, &before, Edge::of(at), found, Written::Flush, async || Ok(())).await?;
        self.rename(disk, &before, None);
        replaced.removed.close().await.map_err(ReplaceError::Before)
    }
}

/// The place of a disk that is read as it changes.
fn changing_at(layers: &Layers) -> Option<usize> {
    block::layers(Arc::clone(&layers.top)).position(|block| is_changing(&*block))
}

/// Whether it is a disk of images alone.
fn is_plain(node: &Node) -> bool {
    matches!(&node.kind, NodeKind::Disk(disk)
        if node.filter.is_none() && !disk.is_over_disks() && disk.owner().is_none())
}
