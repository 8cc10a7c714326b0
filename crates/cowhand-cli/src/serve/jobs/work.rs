//! What a job does: crate `job` for a disk, otherwise files and keys.

use std::sync::Arc;

use checkpoints::{LayerMerge, Outcome, Publication};
use graph::{DiskNode, StepError};
use job::{Backup, Ended, Life, Task, Tracked};

use super::host::job_host;
use super::task::Failed;
use super::{Amendment, BitmapSync, Creation, Job};
use crate::failure::Failure;
use crate::serve::inventory::Inventory;

/// The work of a job.
pub enum Work {
    /// Layers of a disk are copied.
    Disk {
        /// The disk.
        disk: Arc<DiskNode>,
        /// The copying, the last step and its undo.
        task: Task,
        /// What it follows, or what follows it.
        bitmap: Option<BitmapSync>,
    },
    /// A file or an image is made.
    Create(Creation),
    /// Keys of an encrypted disk change.
    Amend(Amendment),
    /// Layers of a lineage that nothing needs by themselves become one.
    Merge(LayerMerge),
    /// A sealed layer is uploaded.
    Publish(Publication),
    /// Nothing: it fails at once.
    Refused {
        /// Of what.
        why: String,
    },
}

impl Work {
    /// Whether it is a job of a disk.
    pub fn is_of_disk(&self) -> bool {
        matches!(self, Self::Disk { .. } | Self::Merge(_) | Self::Publish(_) | Self::Refused { .. })
    }

    /// What guests write meanwhile, of a job that becomes ready and is completed then.
    pub fn tracked(&self) -> Option<&Arc<Tracked>> {
        match self {
            Self::Disk { task, .. } => task.tracked(),
            _ => None,
        }
    }

    /// The disk of a backup, and its copying.
    pub fn backup(&self) -> Option<(&Arc<DiskNode>, &Backup)> {
        match self {
            Self::Disk { disk, task: Task::Backup(backup), .. } => Some((disk, backup)),
            _ => None,
        }
    }

    /// The bitmap that it uses.
    pub fn bitmap(&self) -> Option<&BitmapSync> {
        match self {
            Self::Disk { bitmap, .. } => bitmap.as_ref(),
            _ => None,
        }
    }

    pub(super) async fn run(&self, inventory: &Inventory, life: &Life) -> Result<Ended, Failed> {
        match self {
            Self::Disk { task, .. } => return Ok(task.run(life).await?),
            Self::Create(creation) => creation.run(inventory, life).await?,
            Self::Amend(amendment) => amendment.run(inventory, life).await?,
            Self::Merge(merge) => merge.run(&inventory.graph, life).await?,
            Self::Publish(publication) => publish(publication, inventory, life).await?,
            Self::Refused { why } => return Err(Failed::Because(why.clone())),
        }
        Ok(Ended::Complete)
    }

    /// Takes the last step.
    pub(super) async fn finish(
        &self,
        inventory: &Inventory,
        job: &Job,
        ended: Ended,
    ) -> Result<(), StepError> {
        match self {
            Self::Disk { disk, task, bitmap } => {
                task.finish(&job_host(inventory, job, disk, bitmap.as_ref()), ended).await
            }
            _ => Ok(()),
        }
    }

    /// Puts back what was put in.
    pub(super) async fn abort(&self, inventory: &Inventory, job: &Job) {
        match self {
            Self::Disk { disk, task, bitmap } => {
                task.abort(&job_host(inventory, job, disk, bitmap.as_ref())).await;
            }
            Self::Create(creation) => {
                let _change = inventory.graph.change().await;
                creation.undo();
            }
            Self::Amend(_) | Self::Merge(_) | Self::Publish(_) | Self::Refused { .. } => {}
        }
    }
}

/// Publishes a checkpoint. Sealed layers are not written: guests wait for nothing.
async fn publish(publication: &Publication, inventory: &Inventory, life: &Life) -> Result<(), Failed> {
    match publication.run(inventory.graph.rules(), life).await {
        Ok(Outcome { image, parent, sent, .. }) => {
            tracing::info!(image, parent, ?sent, "a checkpoint is published");
            Ok(())
        }
        Err(_) if life.is_given_up() => Err(Failed::Cancelled),
        Err(error) => Err(Failed::Because(Failure::from(error).in_one_line())),
    }
}
