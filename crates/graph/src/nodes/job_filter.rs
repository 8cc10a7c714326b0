//! Names that users give to the filters of jobs.

use std::sync::Arc;

use super::disk_node::DiskNode;
use super::error::NodeError;
use super::name::check_node_name;
use super::node::{Node, NodeKind};
use super::user::User;
use super::{Change, Graph, Nodes};

/// A job's filter has its node name as long as this is there.
#[derive(Debug)]
#[must_use = "the name is free again as soon as this is dropped"]
pub struct JobFilter {
    nodes: Nodes,
    node: Arc<Node>,
}

impl Graph {
    /// Gives what `job` puts over `disk` a node name, which leads to the disk. `driver` is what queries call it, `image` the image of the disk that it is over,
    /// where that has a name and is not the uppermost one.
    ///
    /// # Errors
    /// When a node cannot have that name, or it is in use.
    pub fn name_job_filter(
        &self,
        _change: &Change<'_>,
        name: &str,
        driver: &'static str,
        (disk, image): (&DiskNode, Option<String>),
        job: User,
    ) -> Result<JobFilter, NodeError> {
        check_node_name(name)?;
        let kind = NodeKind::JobFilter { driver, disk: disk.name.clone(), image, job };
        let node = self.insert(Node::new(name.to_owned(), kind))?;
        Ok(JobFilter { nodes: Arc::clone(&self.nodes), node })
    }

    /// The node itself, or that of the disk a job's filter is over: the filter goes before what uses it.
    pub(super) fn below_job_filter(&self, node: Arc<Node>) -> Result<Arc<Node>, NodeError> {
        match &node.kind {
            NodeKind::JobFilter { disk, .. } => self.node(&disk.get()),
            _ => Ok(node),
        }
    }
}

impl JobFilter {
    /// Whether it has this name.
    pub fn is_called(&self, name: &str) -> bool {
        self.node.name.is(name)
    }
}

impl Drop for JobFilter {
    fn drop(&mut self) {
        self.nodes.lock().remove(&self.node);
    }
}
