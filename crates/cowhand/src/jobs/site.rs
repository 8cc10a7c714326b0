//! Where the jobs of a disk work: a graph that has the disk, and for as long as a job needs it, its target.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use graph::drive::OptionTree;
use graph::{DiskNode, Graph, OpenRules};
use job::End;
use parking_lot::Mutex;

use super::state::{Running, State};
use crate::error::{Error, ErrorKind};
use crate::pending::Pending;

/// What a job has to do with the layers of its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Uses {
    /// It reads, changes or counts them: a disk has one such job at a time.
    Layers,
    /// It reads sealed ones, which it has opened itself.
    #[cfg(all(feature = "checkpoints", feature = "s3"))]
    Sealed,
}

/// The graph of one disk.
pub(crate) struct Site {
    pub(crate) graph: Graph,
    path: PathBuf,
    tree: OptionTree,
    /// The disk in the graph, from its first job on.
    node: Mutex<Option<Arc<DiskNode>>>,
    /// The jobs that are at work or begin.
    jobs: Mutex<Vec<(Uses, Arc<State>)>>,
    names: AtomicU64,
}

impl Site {
    /// Of a disk that was opened with these options.
    pub(crate) fn new(path: PathBuf, tree: OptionTree, rules: OpenRules) -> Self {
        let (node, jobs, names) = Default::default();
        Self { graph: Graph::new(rules), path, tree, node, jobs, names }
    }

    /// The disk in the graph.
    pub(crate) async fn node(&self, disk: &Arc<graph::Disk>) -> Result<Arc<DiskNode>, Error> {
        if let Some(node) = &*self.node.lock() {
            return Ok(Arc::clone(node));
        }
        let change = self.graph.change().await;
        // Another task may have added it meanwhile.
        if let Some(node) = &*self.node.lock() {
            return Ok(Arc::clone(node));
        }
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

    /// Has `state` be a job of the disk, unless that has one that does not go with it.
    pub(super) fn claim(&self, state: &Arc<State>, uses: Uses) -> Result<(), Error> {
        let mut jobs = self.jobs.lock();
        if uses == Uses::Layers && jobs.iter().any(|(other, _)| *other == Uses::Layers) {
            return Err(Error::said(ErrorKind::InUse, "the disk has a job; it takes one at a time"));
        }
        jobs.push((uses, Arc::clone(state)));
        Ok(())
    }

    /// Refuses what a job of the disk would not expect.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn check_free(&self) -> Result<(), Error> {
        match self.jobs.lock().iter().any(|(uses, _)| *uses == Uses::Layers) {
            true => Err(Error::said(ErrorKind::InUse, format!("{} has a job", self.path.display()))),
            false => Ok(()),
        }
    }

    /// What is refused of the disk's checkpoints.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn refused(&self, error: &::checkpoints::Error) -> Error {
        Error::of_checkpoints(&self.path, error)
    }

    /// Why a checkpoint of the disk is not published.
    #[cfg(all(feature = "checkpoints", feature = "s3"))]
    pub(crate) fn not_published(&self, error: &::checkpoints::PublishError) -> Error {
        Error::of_publishing(&self.path, error)
    }

    /// A job has ended, or did not begin.
    pub(super) fn release(&self, state: &Arc<State>) {
        self.jobs.lock().retain(|(_, job)| !Arc::ptr_eq(job, state));
    }

    /// Ends the jobs of a disk that closes, by force, and waits until they have cleaned up. On the disk's loop.
    pub(crate) async fn end_jobs(&self) {
        let jobs: Vec<_> = self.jobs.lock().iter().map(|(_, job)| Arc::clone(job)).collect();
        for running in jobs.iter().filter_map(|state| Running::of(state)) {
            // One that has ended refuses.
            let _ = running.life.ask_to_end(End::Force);
        }
        for state in jobs {
            let (reply, ended) = Pending::new();
            state.when_ended(reply);
            // Whatever it ended with.
            let _ = ended.await;
        }
    }
}
