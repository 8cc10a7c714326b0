//! What a job does: crate `job` for a disk, otherwise files and keys.

use std::path::Path;
use std::sync::Arc;

use block::Block;
use graph::DiskNode;
use graph::drivers::elsewhere;
use job::{Ended, Life, Task, Tracked};

use super::host::{JobDisk, StepError};
use super::task::Failed;
use super::{Amendment, BitmapSync, Creation, Job};
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
}

impl Work {
    /// Whether it is a job of a disk.
    pub fn is_of_disk(&self) -> bool {
        matches!(self, Self::Disk { .. })
    }

    /// What guests write meanwhile, of a job that becomes ready and is completed then.
    pub fn tracked(&self) -> Option<&Arc<Tracked>> {
        match self {
            Self::Disk { task, .. } => task.tracked(),
            Self::Create(_) | Self::Amend(_) => None,
        }
    }

    /// The bitmap that it uses.
    pub fn bitmap(&self) -> Option<&BitmapSync> {
        match self {
            Self::Disk { bitmap, .. } => bitmap.as_ref(),
            Self::Create(_) | Self::Amend(_) => None,
        }
    }

    pub(super) async fn run(&self, inventory: &Inventory, life: &Life) -> Result<Ended, Failed> {
        match self {
            Self::Disk { task, .. } => return Ok(task.run(life).await?),
            Self::Create(creation) => creation.run(inventory, life).await?,
            Self::Amend(amendment) => amendment.run(inventory, life).await?,
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
                task.finish(&JobDisk { inventory, job, disk, bitmap: bitmap.as_ref() }, ended).await
            }
            Self::Create(_) | Self::Amend(_) => Ok(()),
        }
    }

    /// Puts back what was put in.
    pub(super) async fn abort(&self, inventory: &Inventory, job: &Job) {
        match self {
            Self::Disk { disk, task, bitmap } => {
                task.abort(&JobDisk { inventory, job, disk, bitmap: bitmap.as_ref() }).await;
            }
            Self::Create(creation) => {
                let _change = inventory.graph.change().await;
                creation.undo();
            }
            Self::Amend(_) => {}
        }
    }
}

/// The name of a layer's file, as headers have it. What is no file of this machine has one name everywhere.
pub fn file_name(block: &dyn Block) -> String {
    if elsewhere(Path::new(block.name())).is_some() {
        return block.name().to_owned();
    }
    let path = std::path::absolute(Path::new(block.name()));
    path.map_or_else(|_| block.name().to_owned(), |path| path.display().to_string())
}
