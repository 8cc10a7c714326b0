//! A disk of the graph as the jobs of crate `job` work on it: how they begin, and their last steps.

use std::error::Error as StdError;
use std::sync::Arc;

use block::{Blame, Block};
use job::{
    Dirty, Error, Exchange, Guarded, Host, Merge, Mirror, MirrorJob, Over, Pivot, Stream, StreamJob, Task,
    Tracked, What,
};
use qcow2::{Qcow2, ResizeOptions};
use thiserror::Error as ThisError;

use super::disk_node::DiskNode;
use super::replace::{Edge, Put, ReplaceError, Under};
use super::{Change, Graph};
use crate::header_name::file_name;
use crate::layers::RemovedLayers;
use crate::resize_raw::resize_raw;

/// The unit in which changes are tracked, unless the target has larger clusters or a user says otherwise.
const UNIT_BYTES: u64 = 64 << 10;

/// What a job has beside its disk: where it is known, its target, its bitmap. By default nothing.
#[expect(async_fn_in_trait, reason = "jobs run on one loop: their futures need not be Send")]
pub trait JobOwner {
    /// Releases what the job keeps from being removed: its target becomes the disk's next.
    fn release(&self) {}

    /// The target has become the disk's, and stays when the job ends.
    fn leave_target(&self) {}

    /// What a disk leaves when it switches to a target, or to a layer, stays open, as a node of its own. Otherwise it is closed, and its name stays until it is removed.
    fn keeps_source(&self) -> bool {
        false
    }

    /// As [`Host::bitmap_succeeds`].
    async fn bitmap_succeeds(&self, _since: Option<&Dirty>) -> Result<(), block::Error> {
        Ok(())
    }

    /// As [`Host::bitmap_fails`].
    async fn bitmap_fails(&self, _left: &Dirty, _since: Option<&Dirty>) {}
}

/// A disk while a job ends.
#[derive(Debug)]
pub struct JobHost<'a, O> {
    /// Where the disk is.
    pub graph: &'a Graph,
    /// The disk.
    pub disk: &'a Arc<DiskNode>,
    /// Whose job it is.
    pub owner: O,
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

/// Why a commit does not begin. The disk has the layers that it had.
#[derive(Debug, ThisError)]
pub enum CommitError {
    /// The disk would become longer.
    #[error(
        "the base {base} has {found} bytes and the disk {size}: clients would see another size; resize the disk first"
    )]
    LongerBase {
        /// What the base is called.
        base: String,
        /// Its size in bytes.
        found: u64,
        /// That of the disk.
        size: u64,
    },
    /// The layers are not there.
    #[error("there is nothing to commit")]
    Nothing,
    /// A layer could not be opened for writing, or the filter not be put over the disk.
    #[error(transparent)]
    Exchange(#[from] ReplaceError),
    /// The base could not be made as long as what goes into it.
    #[error(transparent)]
    Grow(block::Error),
}

impl<'a, O: JobOwner> Host for JobHost<'a, O> {
    type Change = Change<'a>;
    type Removed = RemovedLayers;
    type Error = StepError;

    async fn change(&self) -> Change<'a> {
        self.graph.change().await
    }

    async fn name_backing(
        &self,
        image: &Arc<dyn Block>,
        below: Option<&Arc<dyn Block>>,
        name: Option<&str>,
    ) -> Result<(), StepError> {
        let Some(image) = image.downcast_ref::<Qcow2>() else { return Ok(()) };
        let named = |below: &Arc<dyn Block>| {
            (name.map_or_else(|| file_name(&**below), str::to_owned), below.driver().to_owned())
        };
        let (name, format) = below.map(named).unzip();
        image.set_backing_name(name, format).await.map_err(StepError::Header)
    }

    async fn name_in_images_over(
        &self,
        change: &Change<'a>,
        below: &Arc<dyn Block>,
        name: Option<&str>,
    ) -> Result<(), StepError> {
        self.name_in_each(change, below, name).await
    }

    fn image_over(&self, layer: &Arc<dyn Block>) -> Option<Arc<dyn Block>> {
        let is_over = |over: &Arc<dyn Block>| over.below().is_some_and(|below| Arc::ptr_eq(&below, layer));
        block::layers(self.disk.disk.root()).find(is_over)
    }

    async fn make_writable(
        &self,
        change: &Change<'a>,
        layer: &Arc<dyn Block>,
    ) -> Result<Arc<dyn Block>, StepError> {
        Ok(self.graph.make_writable(change, self.disk, layer).await?)
    }

    async fn exchange(
        &self,
        change: &Change<'a>,
        exchange: Exchange<'_>,
        last_look: impl AsyncFnOnce() -> Result<(), Error>,
    ) -> Result<RemovedLayers, StepError> {
        let (graph, disk) = (self.graph, self.disk);
        let last_look = async || last_look().await.map_err(failed_request);
        let replaced = match exchange {
            Exchange::Below(image, below) => graph.put_below(change, disk, image, below, last_look).await?,
            Exchange::WithoutFilter => {
                graph.replace(change, &disk.name(), Edge::Root, Put::WithoutFilter, last_look).await?
            }
            Exchange::Root(pivot) => {
                let replaced = match pivot {
                    Pivot::Layer(base) => {
                        let before = self.before_switch();
                        let replaced = graph.set_root_layer(change, disk, base, last_look).await?;
                        self.keep(before, replaced).await
                    }
                    Pivot::Target { name, replaces: Some(child), .. } => {
                        self.owner.release();
                        let replaced = graph.replace_child(change, disk, child, name, last_look).await?;
                        self.owner.leave_target();
                        replaced
                    }
                    Pivot::Target { name, over, replaces: None } => {
                        self.owner.release();
                        let target = graph.disk(name).map_err(ReplaceError::from)?.disk.top_image();
                        let under = match over {
                            // It has been put over something since the job began.
                            _ if target.below().is_some() => None,
                            Over::Own => None,
                            Over::Below => Some(Under::BelowTop),
                            Over::Disk => Some(Under::BelowFilter),
                        };
                        let (before, source) = (self.before_switch(), disk.name());
                        let replaced = graph.set_root_node(change, disk, name, under, last_look).await?;
                        let replaced = self.keep(before, replaced).await;
                        // What clients do not use goes with the job; the source is there under its name.
                        if graph.disk(&source).is_err() {
                            self.owner.leave_target();
                        }
                        replaced
                    }
                };
                tracing::info!(pause = ?replaced.pause, "the disk has switched to the copy");
                replaced
            }
        };
        Ok(replaced.removed)
    }

    fn has_filter(&self) -> bool {
        let layers = self.graph.layers(&self.disk.name());
        layers.is_ok_and(|layers| layers.first().is_some_and(|layer| layer.is_filter))
    }

    fn filter_stays(&self, error: StepError) {
        let cause: &(dyn StdError + 'static) = error.source().unwrap_or(&error);
        let causes = std::iter::successors(Some(cause), |&error| error.source());
        let error = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
        tracing::error!(error, "the filter of a job stays");
    }

    async fn make_readable(&self, change: &Change<'a>, layer: &Arc<dyn Block>) {
        if let Err(error) = self.graph.make_readable(change, self.disk, layer).await {
            tracing::warn!(%error, "a base stays open for writing");
        }
    }

    async fn close(&self, removed: RemovedLayers) {
        if let Err(error) = removed.close().await {
            tracing::warn!(%error, "a layer that was taken out could not be closed in order");
        }
    }

    async fn bitmap_succeeds(&self, since: Option<&Dirty>) -> Result<(), block::Error> {
        self.owner.bitmap_succeeds(since).await
    }

    async fn bitmap_fails(&self, left: &Dirty, since: Option<&Dirty>) {
        self.owner.bitmap_fails(left, since).await;
    }
}

/// What a last look reports of a failure.
fn failed_request(error: Error) -> block::Error {
    match error {
        Error::Request { source, .. } | Error::Bitmap(source) => source,
        error => Blame::new("the copy").refused(error.to_string()),
    }
}

impl Graph {
    /// Puts a tracking filter over a disk: the beginning of a mirror. What is to be copied first is marked in the same drained step, by `what`
    /// and then by `mark`.
    ///
    /// # Errors
    /// As [`Graph::replace`].
    pub async fn put_tracked_over(
        &self,
        change: &Change<'_>,
        disk: &DiskNode,
        tracked: &Arc<Tracked>,
        what: What,
        mark: impl AsyncFnOnce(&Dirty) -> Result<(), block::Error>,
    ) -> Result<Mirror, ReplaceError> {
        let mirror = Mirror::new(Arc::clone(tracked));
        let filter = Arc::clone(tracked);
        let last_look = async || {
            mirror.mark(what).await?;
            mark(tracked.dirty()).await
        };
        self.put_filter_over(change, disk, Box::new(|_| filter), last_look).await?;
        Ok(mirror)
    }

    /// The beginning of a stream: `image`, a layer of the disk that is open for writing, takes over what its `layers` uppermost layers have, itself
    /// included; without a number all that is below it. Its header calls what is below it in the end `backing`, or by its file.
    ///
    /// # Errors
    /// As [`Graph::replace`].
    pub async fn begin_stream(
        &self,
        change: &Change<'_>,
        disk: &Arc<DiskNode>,
        image: Arc<dyn Block>,
        layers: Option<u32>,
        backing: Option<String>,
    ) -> Result<Task, ReplaceError> {
        // Guests write to the uppermost image alone.
        let is_uppermost = Arc::ptr_eq(&image, &disk.disk.top_image());
        let guarded = Guarded::new(if is_uppermost { disk.disk.root() } else { Arc::clone(&image) });
        if is_uppermost {
            let filter = Arc::clone(&guarded);
            self.put_filter_over(change, disk, Box::new(|_| filter), async || Ok(())).await?;
        }
        let stream = match layers {
            Some(layers) => Stream::of_layers(guarded, &image, layers),
            None => Stream::of_everything(guarded),
        };
        Ok(Task::Stream(StreamJob { stream, image, is_uppermost, backing }))
    }

    /// The beginning of a commit: what the layers `top` to the one above `base` have goes into `base`, places counted from the uppermost image, which
    /// is 0. Opens what is written. With `top` 0 guests write meanwhile and the disk switches to the base in the end; `converging` says how they are
    /// made to. Otherwise the header of the image above names `backing`, or the base by its file.
    ///
    /// # Errors
    /// When a layer cannot be opened for writing or the base not be made as long as the disk; the disk has the layers that it had.
    pub async fn begin_commit(
        &self,
        change: &Change<'_>,
        disk: &Arc<DiskNode>,
        (top, base): (usize, usize),
        backing: Option<String>,
        converging: impl FnOnce(Mirror) -> Mirror,
    ) -> Result<Task, CommitError> {
        let mut opened = Vec::new();
        let begun = self.commit_task(change, disk, (top, base), &mut opened, backing, converging).await;
        if begun.is_err() {
            for image in &opened {
                self.make_readable_again(change, disk, image).await;
            }
        }
        begun
    }

    async fn commit_task(
        &self,
        change: &Change<'_>,
        disk: &Arc<DiskNode>,
        (top, base): (usize, usize),
        opened: &mut Vec<Arc<dyn Block>>,
        backing: Option<String>,
        converging: impl FnOnce(Mirror) -> Mirror,
    ) -> Result<Task, CommitError> {
        let target = self.image(disk, base).ok_or(CommitError::Nothing)?;
        let is_through = top > 0 && self.is_committed_through(disk, &target).map_err(ReplaceError::from)?;
        let target = if is_through { target } else { self.writable(change, disk, base).await? };
        opened.push(Arc::clone(&target));
        let size = self.image(disk, top).map_or(0, |block| block.size());
        grow(&target, size, top == 0).await?;
        let layers = u32::try_from(base.saturating_sub(top)).unwrap_or(u32::MAX);
        if top == 0 {
            let unit = tracking_unit(&*target);
            let tracked = Tracked::new("commit_top", disk.disk.root(), Arc::clone(&target), unit, false);
            let what = What::Layers(layers);
            let mirror = self.put_tracked_over(change, disk, &tracked, what, async |_| Ok(())).await?;
            return Ok(Task::Mirror(MirrorJob { mirror: converging(mirror), pivot: Pivot::Layer(target) }));
        }
        let over = self.writable(change, disk, top - 1).await?;
        opened.push(Arc::clone(&over));
        let top_block = over.below().ok_or(CommitError::Nothing)?;
        let above = (0..top).filter_map(|at| self.image(disk, at));
        let size_above = above.map(|image| image.size()).max().unwrap_or(0);
        Ok(Task::Commit(Merge { top: top_block, layers, base: target, over, size_above, backing }))
    }

    /// The image at a place, counted from the uppermost one. Filters of jobs are none.
    fn image(&self, disk: &DiskNode, at: usize) -> Option<Arc<dyn Block>> {
        let layers = self.layers(&disk.name()).unwrap_or_default();
        layers.into_iter().filter(|layer| !layer.is_filter).nth(at).map(|layer| layer.block)
    }

    /// Opens the image at a place for writing, and gives it.
    async fn writable(
        &self,
        change: &Change<'_>,
        disk: &Arc<DiskNode>,
        at: usize,
    ) -> Result<Arc<dyn Block>, CommitError> {
        let image = self.image(disk, at).ok_or(CommitError::Nothing)?;
        Ok(self.make_writable(change, disk, &image).await?)
    }

    /// Makes layers below the uppermost one read-only again. A job that failed to start had opened them for
    /// writing.
    pub async fn give_back(&self, change: &Change<'_>, disk: &Arc<DiskNode>, places: &[usize]) {
        for at in places.iter().filter(|at| **at > 0) {
            let Some(image) = self.image(disk, *at) else { continue };
            self.make_readable_again(change, disk, &image).await;
        }
    }

    async fn make_readable_again(&self, change: &Change<'_>, disk: &Arc<DiskNode>, image: &Arc<dyn Block>) {
        if let Err(error) = self.make_readable(change, disk, image).await {
            tracing::warn!(%error, "a layer stays open for writing");
        }
    }
}

/// Makes a base as long as what is committed to it. One that is longer stays so below an overlay; a disk cannot become longer.
async fn grow(base: &Arc<dyn Block>, size: u64, is_pivot: bool) -> Result<(), CommitError> {
    let found = base.size();
    if found > size && is_pivot {
        return Err(CommitError::LongerBase { base: base.name().to_owned(), found, size });
    }
    if found >= size {
        return Ok(());
    }
    let resized = match base.downcast_ref::<Qcow2>() {
        Some(image) => image.resize(size, ResizeOptions { bitmaps: true, ..ResizeOptions::default() }).await,
        // It becomes longer: no request is in the way.
        None => resize_raw(&**base, size, ResizeOptions::default(), async || ()).await,
    };
    resized.map_err(CommitError::Grow)
}

/// The unit in which changes of a copy in `target` are tracked.
pub fn tracking_unit(target: &dyn Block) -> u64 {
    target.capabilities().cluster_bytes.unwrap_or(UNIT_BYTES).max(UNIT_BYTES)
}
