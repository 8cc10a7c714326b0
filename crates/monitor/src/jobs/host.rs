//! What a job of the server has beside its disk, for the steps of crate `job` on disks of the graph: its target and its bitmap.

use std::sync::Arc;

use graph::{DiskNode, JobHost, JobOwner};
use job::Dirty;

use super::BitmapSync;
use super::entry::Job;
use crate::inventory::nodes::Nodes;

/// A job while it ends.
pub struct Owner<'a> {
    job: &'a Job,
    as_qemu: bool,
    bitmap: Option<&'a BitmapSync>,
}

/// The disk of `job`.
pub fn job_host<'a>(
    nodes: &'a Nodes,
    job: &'a Job,
    disk: &'a Arc<DiskNode>,
    bitmap: Option<&'a BitmapSync>,
) -> JobHost<'a, Owner<'a>> {
    JobHost { graph: &nodes.graph, disk, owner: Owner { job, as_qemu: nodes.as_qemu, bitmap } }
}

impl JobOwner for Owner<'_> {
    fn release(&self) {
        self.job.let_go();
    }

    fn leave_target(&self) {
        self.job.leave_target();
    }

    fn keeps_source(&self) -> bool {
        self.as_qemu
    }

    async fn bitmap_succeeds(&self, since: Option<&Dirty>) -> Result<(), block::Error> {
        match self.bitmap {
            Some(bitmap) => bitmap.succeed(since).await,
            None => Ok(()),
        }
    }

    async fn bitmap_fails(&self, left: &Dirty, since: Option<&Dirty>) {
        if let Some(bitmap) = self.bitmap {
            bitmap.fail(left, since).await;
        }
    }
}
