//! A job on a disk at work: its copying, its last step and what is put back if it ends early. Each kind has all three in its own file.

use std::sync::Arc;

use crate::backup::Backup;
use crate::error::Error;
use crate::host::Host;
use crate::life::Life;
use crate::merge::Merge;
use crate::mirror::Ended;
use crate::mirror_job::MirrorJob;
use crate::stream::StreamJob;
use crate::tracked::Tracked;

/// A job on a disk.
#[derive(Debug)]
pub enum Task {
    /// An image takes over what the layers below it hold.
    Stream(StreamJob),
    /// Layers that no guest writes to go into the one below them.
    Commit(Merge),
    /// A copy is kept in step with the disk, which may switch to it in the end.
    Mirror(MirrorJob),
    /// A copy of one moment.
    Backup(Backup),
}

impl Task {
    /// Copies to the end.
    ///
    /// # Errors
    /// When a request fails and the job's terms say that it fails of it; when it is cancelled.
    pub async fn run(&self, life: &Life) -> Result<Ended, Error> {
        match self {
            Self::Stream(job) => job.stream.run(life).await?,
            Self::Commit(job) => job.run(life).await?,
            Self::Mirror(job) => return job.mirror.run(life).await,
            Self::Backup(job) => job.run(life).await?,
        }
        Ok(Ended::Complete)
    }

    /// Takes the last step of a job that [`Task::run`] brought to this end.
    ///
    /// # Errors
    /// Then the disk has the layers that it had, and [`Task::abort`] puts back what the job put in.
    ///
    /// # Crash
    /// The old chain or the new one, whole.
    pub async fn finish<H: Host>(&self, host: &H, ended: Ended) -> Result<(), H::Error> {
        match self {
            Self::Stream(job) => job.finish(host).await,
            Self::Commit(job) => job.finish(host).await,
            Self::Mirror(job) => job.finish(host, ended).await,
            Self::Backup(job) => job.finish(host).await,
        }
    }

    /// Puts back what the job put in: it has ended early.
    pub async fn abort<H: Host>(&self, host: &H) {
        let change = host.change().await;
        match self {
            Self::Stream(job) => job.put_back(host, &change).await,
            Self::Commit(job) => job.put_back(host, &change).await,
            Self::Mirror(job) => job.put_back(host, &change).await,
            Self::Backup(job) => job.put_back(host, &change).await,
        }
    }

    /// What guests write meanwhile, of a job that becomes ready and is completed by its users.
    pub fn tracked(&self) -> Option<&Arc<Tracked>> {
        match self {
            Self::Mirror(job) => Some(job.mirror.tracked()),
            Self::Stream(_) | Self::Commit(_) | Self::Backup(_) => None,
        }
    }
}
