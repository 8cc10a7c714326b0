//! What a job does: the copying, the last step, and what is put back if it ends early.

use std::path::Path;
use std::sync::Arc;

use block::{Blame, Block};
use control::QmpError;
use graph::drivers::elsewhere;
use graph::{Change, DiskNode, RemovedLayers, ReplaceError};
use job::{Backup, Ended, Error, Life, Merge, Mirror, Stream, Tracked};
use qcow2::Qcow2;

use super::task::Failed;
use super::{Amendment, BitmapSync, Creation, Job};
use crate::serve::inventory::Inventory;

/// Another backing file of an image, by name and format; none for an image that is to have none.
pub type NewBacking = Option<(String, String)>;

/// The work of a job.
pub enum Work {
    /// An image takes over what lies below it.
    Stream {
        /// The disk.
        disk: Arc<DiskNode>,
        /// The image.
        image: Arc<dyn Block>,
        /// Guests write to it, through a filter.
        is_uppermost: bool,
        /// What lies below it afterwards.
        base: Option<Arc<dyn Block>>,
        /// What its header says then.
        backing: NewBacking,
        /// The copying.
        stream: Stream,
    },
    /// Layers that nobody writes go into the one below them.
    Merge {
        /// The disk.
        disk: Arc<DiskNode>,
        /// The image above the layers, which stands on the base afterwards.
        over: Arc<dyn Block>,
        /// Guests write to that image.
        is_uppermost: bool,
        /// What its header says then.
        backing: NewBacking,
        /// The copying.
        merge: Merge,
    },
    /// A copy is kept in step with the disk, which may stand on it in the end.
    Mirror {
        /// The disk.
        disk: Arc<DiskNode>,
        /// What guests write meanwhile.
        tracked: Arc<Tracked>,
        /// The copying.
        mirror: Mirror,
        /// What the disk stands on in the end.
        pivot: Pivot,
        /// What it follows, or what follows it.
        bitmap: Option<BitmapSync>,
    },
    /// A copy of one moment.
    Backup {
        /// The disk.
        disk: Arc<DiskNode>,
        /// The copying.
        backup: Backup,
        /// What it follows, or what follows it.
        bitmap: Option<BitmapSync>,
    },
    /// A file or an image is made.
    Create(Creation),
    /// Keys of an encrypted disk change.
    Amend(Amendment),
}

/// What a disk stands on when a mirror is completed.
pub enum Pivot {
    /// One of its own layers: a commit.
    Layer(Arc<dyn Block>),
    /// What the disk of this node stands on.
    Node {
        /// The node.
        name: String,
        /// It gets what lies below the disk's uppermost image.
        keeps_backing: bool,
    },
}

impl Work {
    /// Whether it is a job of a disk.
    pub fn is_of_disk(&self) -> bool {
        !matches!(self, Self::Create(_) | Self::Amend(_))
    }

    /// What guests write meanwhile, of a mirror.
    pub fn tracked(&self) -> Option<&Arc<Tracked>> {
        match self {
            Self::Mirror { tracked, .. } => Some(tracked),
            Self::Stream { .. }
            | Self::Merge { .. }
            | Self::Backup { .. }
            | Self::Create(_)
            | Self::Amend(_) => None,
        }
    }

    /// The bitmap that it uses.
    pub fn bitmap(&self) -> Option<&BitmapSync> {
        match self {
            Self::Mirror { bitmap, .. } | Self::Backup { bitmap, .. } => bitmap.as_ref(),
            Self::Stream { .. } | Self::Merge { .. } | Self::Create(_) | Self::Amend(_) => None,
        }
    }

    /// Whether it becomes ready, and is completed then.
    pub fn is_completed_by_users(&self) -> bool {
        matches!(self, Self::Mirror { .. })
    }

    pub(super) async fn run(&self, inventory: &Inventory, life: &Life) -> Result<Ended, Failed> {
        match self {
            Self::Stream { stream, .. } => stream.run(life).await?,
            Self::Merge { merge, .. } => merge.run(life).await?,
            Self::Mirror { mirror, .. } => return Ok(mirror.run(life).await?),
            Self::Backup { backup, .. } => backup.run(life).await?,
            Self::Create(creation) => creation.run(inventory, life).await?,
            Self::Amend(amendment) => amendment.run(inventory, life).await?,
        }
        Ok(Ended::Complete)
    }

    /// The last step.
    pub(super) async fn finish(
        &self,
        inventory: &Inventory,
        job: &Job,
        ended: Ended,
    ) -> Result<(), QmpError> {
        let failed = |error: ReplaceError| QmpError::because("the last step failed", &error);
        if let Self::Mirror { mirror, .. } = self {
            // What a flush writes is written while requests and other changes of the graph go on.
            let flushed = match ended {
                Ended::Complete => mirror.keep_durable().await,
                // The last one makes durable what guests have not flushed, too: nobody flushes the copy after it.
                Ended::Left => mirror.flush().await,
            };
            flushed.map_err(|error| QmpError::because("the last step failed", &error))?;
        }
        let graph = &inventory.graph;
        let change = graph.change().await;
        let removed = match self {
            Self::Stream { disk, image, base, backing, .. } => {
                name_backing(image, backing).await?;
                let below = graph.put_below(&change, disk, image, base.as_ref()).await.map_err(failed)?;
                self.put_back(inventory, &change).await;
                below.removed
            }
            Self::Merge { disk, over, backing, merge, .. } => {
                name_backing(over, backing).await?;
                let below = graph.put_below(&change, disk, over, Some(&merge.base)).await;
                let removed = below.map_err(failed)?.removed;
                self.put_back(inventory, &change).await;
                removed
            }
            Self::Mirror { disk, mirror, bitmap, .. } if ended == Ended::Left => {
                let last_look = async || catch_up(mirror, bitmap.as_ref()).await;
                let taken = graph.take_filter_off(&change, disk, last_look).await;
                let removed = taken.map_err(failed)?.removed;
                self.give_base_back(inventory, &change).await;
                removed
            }
            Self::Mirror { disk, mirror, pivot, bitmap, .. } => {
                let last_look = async || catch_up(mirror, bitmap.as_ref()).await;
                let replaced = match pivot {
                    Pivot::Layer(base) => graph.stand_on_layer(&change, disk, base, last_look).await,
                    Pivot::Node { name, keeps_backing } => {
                        job.let_go();
                        let stood = graph.stand_on_node(&change, disk, name, *keeps_backing, last_look).await;
                        if stood.is_ok() {
                            job.leave_target();
                        }
                        stood
                    }
                };
                let replaced = replaced.map_err(failed)?;
                tracing::info!(pause = ?replaced.pause, "the disk stands on the copy");
                replaced.removed
            }
            Self::Backup { disk, backup, bitmap } => {
                let last_look = async || match bitmap {
                    Some(bitmap) => bitmap.succeed(backup.filter.since()).await,
                    None => Ok(()),
                };
                graph.take_filter_off(&change, disk, last_look).await.map_err(failed)?.removed
            }
            Self::Create(_) | Self::Amend(_) => return Ok(()),
        };
        close(removed).await;
        Ok(())
    }

    /// Puts back what was put in.
    pub(super) async fn abort(&self, inventory: &Inventory) {
        self.put_back(inventory, &inventory.graph.change().await).await;
    }

    /// Takes its filter off; layers that only the job wrote to are for reading again.
    async fn put_back(&self, inventory: &Inventory, change: &Change<'_>) {
        let disk = match self {
            Self::Stream { disk, image, is_uppermost: false, .. } => {
                return make_readable(inventory, change, disk, image).await;
            }
            Self::Merge { disk, over, is_uppermost, merge, .. } => {
                make_readable(inventory, change, disk, &merge.base).await;
                if !is_uppermost {
                    make_readable(inventory, change, disk, over).await;
                }
                return;
            }
            Self::Stream { disk, .. } | Self::Mirror { disk, .. } | Self::Backup { disk, .. } => disk,
            Self::Create(creation) => return creation.undo(),
            Self::Amend(_) => return,
        };
        if let Err(error) = self.take_filter_off(inventory, change, disk).await {
            tracing::error!(%error, "the filter of a job stays");
        }
        self.give_base_back(inventory, change).await;
    }

    /// The job has failed: its bitmap says what follows of that. The disk is drained.
    async fn settle_bitmap(&self) {
        match self {
            Self::Mirror { tracked, bitmap: Some(bitmap), .. } => {
                // What guests wrote since is among what is left.
                bitmap.fail(tracked.dirty(), None).await;
            }
            Self::Backup { backup, bitmap: Some(bitmap), .. } => {
                bitmap.fail(backup.filter.left(), backup.filter.since()).await;
            }
            _ => {}
        }
    }

    /// The base of a commit that the disk does not stand on is not written any more.
    async fn give_base_back(&self, inventory: &Inventory, change: &Change<'_>) {
        if let Self::Mirror { disk, pivot: Pivot::Layer(base), .. } = self {
            make_readable(inventory, change, disk, base).await;
        }
    }

    async fn take_filter_off(
        &self,
        inventory: &Inventory,
        change: &Change<'_>,
        disk: &Arc<DiskNode>,
    ) -> Result<(), QmpError> {
        let has_filter = inventory
            .graph
            .layers(&disk.name())
            .is_ok_and(|layers| layers.first().is_some_and(|layer| layer.is_filter));
        if !has_filter {
            return Ok(());
        }
        let last_look = async || {
            self.settle_bitmap().await;
            Ok(())
        };
        let taken = inventory.graph.take_filter_off(change, disk, last_look).await;
        // A filter has nothing to close.
        taken.map(drop).map_err(|error| QmpError::because("the filter of the job stays", &error))
    }
}

async fn catch_up(mirror: &Mirror, bitmap: Option<&BitmapSync>) -> Result<(), block::Error> {
    mirror.catch_up().await.map_err(|error| match error {
        Error::Request { source, .. } => source,
        error => Blame::new("the copy").refused(error.to_string()),
    })?;
    match bitmap {
        // Nothing was written that the copy has not.
        Some(bitmap) => bitmap.succeed(None).await,
        None => Ok(()),
    }
}

/// Has the header of an image say what lies below it from now on. What it reads is the same with the old name and with the new one.
async fn name_backing(image: &Arc<dyn Block>, backing: &NewBacking) -> Result<(), QmpError> {
    let Some(image) = image.downcast_ref::<Qcow2>() else { return Ok(()) };
    let (name, format) = backing.clone().unzip();
    let named = image.set_backing_name(name, format).await;
    named.map_err(|error| QmpError::because("cannot name the backing file", &error))
}

/// The name of a layer's file, as headers have it. What is no file of this machine has one name everywhere.
pub fn file_name(block: &dyn Block) -> String {
    if elsewhere(Path::new(block.name())).is_some() {
        return block.name().to_owned();
    }
    let path = std::path::absolute(Path::new(block.name()));
    path.map_or_else(|_| block.name().to_owned(), |path| path.display().to_string())
}

/// Has a base open for reading again.
async fn make_readable(
    inventory: &Inventory,
    change: &Change<'_>,
    disk: &Arc<DiskNode>,
    base: &Arc<dyn Block>,
) {
    if let Err(error) = inventory.graph.make_readable(change, disk, base).await {
        tracing::warn!(%error, "a base stays open for writing");
    }
}

/// Closes what a disk does not stand on any more. The disk is whole without it.
async fn close(removed: RemovedLayers) {
    if let Err(error) = removed.close().await {
        tracing::warn!(%error, "a layer that was taken out could not be closed in order");
    }
}
