//! The disk of a job, for the steps of crate `job`: a disk of the graph, with the job's bitmap.

use std::error::Error as StdError;
use std::sync::Arc;

use block::{Blame, Block};
use control::QmpError;
use graph::{Change, DiskNode, Edge, Put, RemovedLayers, ReplaceError, Under};
use job::{Dirty, Error, Exchange, Host, NewBacking, Over, Pivot};
use qcow2::Qcow2;
use thiserror::Error as ThisError;

use super::{BitmapSync, Job};
use crate::serve::inventory::Inventory;

/// A disk while a job ends.
pub struct JobDisk<'a> {
    pub inventory: &'a Inventory,
    pub job: &'a Job,
    pub disk: &'a Arc<DiskNode>,
    pub bitmap: Option<&'a BitmapSync>,
}

/// Why a last step failed.
#[derive(Debug, ThisError)]
pub enum StepError {
    /// The copy could not be made equal or durable.
    #[error("the last step failed")]
    Copy(#[from] Error),
    /// The disk has the layers that it had.
    #[error("the last step failed")]
    Exchange(#[from] ReplaceError),
    /// The header was not written.
    #[error("cannot name the backing file")]
    Header(#[source] block::Error),
}

impl<'a> Host for JobDisk<'a> {
    type Change = Change<'a>;
    type Removed = RemovedLayers;
    type Error = StepError;

    async fn change(&self) -> Change<'a> {
        self.inventory.graph.change().await
    }

    async fn name_backing(&self, image: &Arc<dyn Block>, backing: &NewBacking) -> Result<(), StepError> {
        let Some(image) = image.downcast_ref::<Qcow2>() else { return Ok(()) };
        let (name, format) = backing.clone().unzip();
        image.set_backing_name(name, format).await.map_err(StepError::Header)
    }

    async fn exchange(
        &self,
        change: &Change<'a>,
        exchange: Exchange<'_>,
        last_look: impl AsyncFnOnce() -> Result<(), Error>,
    ) -> Result<RemovedLayers, StepError> {
        let (graph, disk) = (&self.inventory.graph, self.disk);
        let last_look = async || last_look().await.map_err(failed_request);
        let replaced = match exchange {
            Exchange::Below(image, below) => graph.put_below(change, disk, image, below, last_look).await?,
            Exchange::WithoutFilter => {
                graph.replace(change, &disk.name(), Edge::Root, Put::WithoutFilter, last_look).await?
            }
            Exchange::Root(pivot) => {
                let replaced = match pivot {
                    Pivot::Layer(base) => graph.stand_on_layer(change, disk, base, last_look).await?,
                    Pivot::Target { name, over } => {
                        self.job.let_go();
                        let under = match over {
                            Over::Own => None,
                            Over::Below => Some(Under::BelowTop),
                            Over::Disk => Some(Under::BelowFilter),
                        };
                        let stood = graph.stand_on_node(change, disk, name, under, last_look).await?;
                        self.job.leave_target();
                        stood
                    }
                };
                tracing::info!(pause = ?replaced.pause, "the disk stands on the copy");
                replaced
            }
        };
        Ok(replaced.removed)
    }

    fn has_filter(&self) -> bool {
        let layers = self.inventory.graph.layers(&self.disk.name());
        layers.is_ok_and(|layers| layers.first().is_some_and(|layer| layer.is_filter))
    }

    fn filter_stays(&self, error: StepError) {
        let cause: &dyn StdError = error.source().unwrap_or(&error);
        let error = QmpError::because("the filter of the job stays", cause);
        tracing::error!(%error, "the filter of a job stays");
    }

    async fn make_readable(&self, change: &Change<'a>, layer: &Arc<dyn Block>) {
        if let Err(error) = self.inventory.graph.make_readable(change, self.disk, layer).await {
            tracing::warn!(%error, "a base stays open for writing");
        }
    }

    async fn close(&self, removed: RemovedLayers) {
        if let Err(error) = removed.close().await {
            tracing::warn!(%error, "a layer that was taken out could not be closed in order");
        }
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

/// What a last look reports of a failure.
fn failed_request(error: Error) -> block::Error {
    match error {
        Error::Request { source, .. } | Error::Bitmap(source) => source,
        error => Blame::new("the copy").refused(error.to_string()),
    }
}
