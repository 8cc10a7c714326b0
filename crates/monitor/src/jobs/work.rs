//! What a job does: crate `job` for a disk, otherwise files and keys.

use std::cell::RefCell;
use std::sync::Arc;

use checkpoints::{LayerMerge, LivePush, Outcome, Publication, PublishError, Sent};
use graph::{DiskNode, StepError};
use job::{Backup, Ended, Life, Task, Tracked};
use serde_json::{Value, json};
use tool::failure::Failure;

use super::entry::Job;
use super::failed::Failed;
use super::host::job_host;
use super::{Amendment, BitmapSync, Creation};
use crate::inventory::nodes::Nodes;

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
    /// A disk is uploaded as it was when the job began.
    Push {
        /// The disk.
        disk: Arc<DiskNode>,
        /// The upload, and the filter.
        push: LivePush,
        /// What came of it: what was sent, and whether the image is another one now.
        outcome: RefCell<Option<(Sent, bool)>>,
    },
    /// Nothing: it fails at once.
    Refused {
        /// Of what.
        why: String,
    },
}

impl Work {
    /// Whether it is a job of a disk.
    pub fn is_of_disk(&self) -> bool {
        matches!(
            self,
            Self::Disk { .. } | Self::Merge(_) | Self::Publish(_) | Self::Push { .. } | Self::Refused { .. }
        )
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

    /// What the job has to say of what it did, besides that it is done.
    pub(super) fn outcome(&self) -> Option<Value> {
        let Self::Push { outcome, .. } = self else { return None };
        let (sent, changed) = outcome.take()?;
        let mut value = json!(sent);
        value["changed"] = json!(changed);
        Some(value)
    }

    pub(super) async fn run(&self, nodes: &Nodes, life: &Life) -> Result<Ended, Failed> {
        match self {
            Self::Disk { task, .. } => return Ok(task.run(life).await?),
            Self::Create(creation) => creation.run(nodes, life).await?,
            Self::Amend(amendment) => amendment.run(nodes, life).await?,
            Self::Merge(merge) => merge.run(&nodes.graph, life).await?,
            Self::Publish(publication) => publish(publication, nodes, life).await?,
            Self::Push { push, outcome, .. } => {
                let pushed = push.run(life).await.map_err(|error| of_upload(error, life))?;
                tracing::info!(sent = ?pushed.0, "a disk is pushed");
                *outcome.borrow_mut() = Some(pushed);
            }
            Self::Refused { why } => return Err(Failed::Because(why.clone())),
        }
        Ok(Ended::Complete)
    }

    /// Takes the last step.
    pub(super) async fn finish(&self, nodes: &Nodes, job: &Job, ended: Ended) -> Result<(), StepError> {
        match self {
            Self::Disk { disk, task, bitmap } => {
                task.finish(&job_host(nodes, job, disk, bitmap.as_ref()), ended).await
            }
            Self::Push { disk, push, .. } => {
                push.end(&job_host(nodes, job, disk, None)).await;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Puts back what was put in.
    pub(super) async fn abort(&self, nodes: &Nodes, job: &Job) {
        match self {
            Self::Disk { disk, task, bitmap } => {
                task.abort(&job_host(nodes, job, disk, bitmap.as_ref())).await;
            }
            Self::Push { disk, push, .. } => push.end(&job_host(nodes, job, disk, None)).await,
            Self::Create(creation) => {
                let _change = nodes.graph.change().await;
                creation.undo();
            }
            Self::Amend(_) | Self::Merge(_) | Self::Publish(_) | Self::Refused { .. } => {}
        }
    }
}

/// Publishes a checkpoint. Sealed layers are not written: guests wait for nothing.
async fn publish(publication: &Publication, nodes: &Nodes, life: &Life) -> Result<(), Failed> {
    match publication.run(nodes.graph.rules(), life).await {
        Ok(Outcome { image, parent, sent, .. }) => {
            tracing::info!(image, parent, ?sent, "a checkpoint is published");
            Ok(())
        }
        Err(error) => Err(of_upload(error, life)),
    }
}

fn of_upload(error: PublishError, life: &Life) -> Failed {
    match life.is_given_up() {
        true => Failed::Cancelled,
        false => Failed::Because(Failure::from(error).in_one_line()),
    }
}
