//! Where the jobs of a disk work: a graph that has the disk, and for as long as a job needs it, its target.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use graph::drive::OptionTree;
use graph::{DiskNode, Graph, OpenRules};
use parking_lot::Mutex;

use super::run::State;
use crate::error::{Error, ErrorKind};

/// The graph of one disk.
pub(crate) struct Site {
    pub(crate) graph: Graph,
    path: PathBuf,
    tree: OptionTree,
    /// The disk in the graph, from its first job on.
    node: Mutex<Option<Arc<DiskNode>>>,
    /// The job that is at work or begins.
    current: Mutex<Option<Arc<State>>>,
    names: AtomicU64,
}

impl Site {
    /// Of a disk that was opened with these options.
    pub(crate) fn new(path: PathBuf, tree: OptionTree, rules: OpenRules) -> Self {
        let (node, current, names) = Default::default();
        Self { graph: Graph::new(rules), path, tree, node, current, names }
    }

    /// The disk in the graph.
    pub(crate) async fn node(&self, disk: &Arc<graph::Disk>) -> Result<Arc<DiskNode>, Error> {
        if let Some(node) = &*self.node.lock() {
            return Ok(Arc::clone(node));
        }
        let change = self.graph.change().await;
        let new = DiskNode::new(self.name(), self.path.clone(), self.tree.clone(), Arc::clone(disk));
        let added = self.graph.add_disk(&change, new);
        let refused = |error: graph::NodeError| Error::said(ErrorKind::Invalid, error.to_string());
        let node = added.and_then(|node| node.disk().cloned()).map_err(refused)?;
        *self.node.lock() = Some(Arc::clone(&node));
        Ok(node)
    }

    /// A name that no node has.
    pub(super) fn name(&self) -> String {
        format!("disk{}", self.names.fetch_add(1, Ordering::Relaxed))
    }

    /// Has `state` be the disk's job, unless it has one.
    pub(super) fn claim(&self, state: &Arc<State>) -> Result<(), Error> {
        let mut current = self.current.lock();
        if current.is_some() {
            return Err(Error::said(ErrorKind::InUse, "the disk has a job; it takes one at a time"));
        }
        *current = Some(Arc::clone(state));
        Ok(())
    }

    /// Refuses what a job of the disk would not expect.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn check_free(&self) -> Result<(), Error> {
        match self.current() {
            Some(_) => Err(Error::said(ErrorKind::InUse, format!("{} has a job", self.path.display()))),
            None => Ok(()),
        }
    }

    /// What is refused of the disk's checkpoints.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn refused(&self, error: &::checkpoints::Error) -> Error {
        Error::of_checkpoints(&self.path, error)
    }

    /// The disk has no job any more.
    pub(super) fn release(&self) {
        self.current.lock().take();
    }

    /// The job at work, if any.
    pub(super) fn current(&self) -> Option<Arc<State>> {
        self.current.lock().clone()
    }
}
