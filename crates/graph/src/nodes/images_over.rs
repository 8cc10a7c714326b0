//! Images of other disks that are over a disk as that changes: a commit of the disk has their headers name another backing file.

use std::sync::Arc;

use block::Block;
use job::Host;

use super::absorb::changing_at;
use super::access::LayerAccess;
use super::disk_node::DiskNode;
use super::job_host::{JobHost, JobOwner, StepError};
use super::node::Node;
use super::{Change, Graph};

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
