//! What jobs need of the program around them: the layers, headers and bitmaps of one disk.
//!
//! The jobs say what is done in which order ([`crate::Task`]); a [`Host`] does it, to the disks of a server or to those of a simulation.

use std::sync::Arc;

use block::Block;

use crate::dirty::Dirty;
use crate::error::Error;
use crate::mirror::What;

/// What a disk switches to when a mirror is completed.
#[derive(Debug)]
pub enum Pivot {
    /// One of its own layers: a commit.
    Layer(Arc<dyn Block>),
    /// The target of the copy.
    Target {
        /// What the host calls it.
        name: String,
        /// What it is put over.
        over: Over,
        /// The disk below the source in whose place it is put, where the source is a filter over several: what the host calls that. Otherwise it takes the
        /// place of the source itself.
        replaces: Option<String>,
    },
}

/// What the target of a mirror is put over when the disk switches to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// It keeps what it has: it is a copy of everything, or has a backing layer of its own.
    Own,
    /// The backing layer of the disk's uppermost image, of which it is a copy.
    Below,
    /// The disk's uppermost image: it has what guests wrote since the job began, and nothing else.
    Disk,
}

impl Over {
    /// For a target of which nothing but `what` is copied from the disk whose uppermost image is `source`.
    pub fn of(what: What, source: &dyn Block, target: &dyn Block) -> Self {
        match what {
            _ if target.below().is_some() => Self::Own,
            What::Layers(_) if source.below().is_some() => Self::Below,
            What::Nothing => Self::Disk,
            // Who gives a bitmap has an earlier copy of the disk in the target.
            What::Everything | What::Layers(_) | What::Marked => Self::Own,
        }
    }
}

/// What comes in the place of what in a disk.
#[derive(Clone, Copy, Debug)]
pub enum Exchange<'a> {
    /// A lower layer, or nothing, becomes the backing layer of the image. The layers between are taken out.
    Below(&'a Arc<dyn Block>, Option<&'a Arc<dyn Block>>),
    /// The job's filter is taken off.
    WithoutFilter,
    /// A copy of the disk, in which all that guests flushed is durable, becomes what the disk is backed by.
    Root(&'a Pivot),
}

/// The disk that a job works on. Each method is one step; a step that fails has changed nothing.
#[expect(async_fn_in_trait, reason = "jobs run on one loop: their futures need not be Send")]
pub trait Host {
    /// Held for a last step: nothing else changes the layers of a disk meanwhile.
    type Change;
    /// Layers that the disk is not backed by any more.
    type Removed;
    /// Why a step failed.
    type Error: From<Error>;

    /// Waits until other changes of layers have ended.
    async fn change(&self) -> Self::Change;

    /// Has the header of an image name `below` as its backing file, or none, durably: by `name` if a user gave one, otherwise by its file. What is open
    /// stays: the image must read the same with the old one and with the new one, since a crash leaves either name. A layer without such a header is
    /// left alone.
    async fn name_backing(
        &self,
        image: &Arc<dyn Block>,
        below: Option<&Arc<dyn Block>>,
        name: Option<&str>,
    ) -> Result<(), Self::Error>;

    /// As [`Host::name_backing`], in the images of other disks that are over the disk.
    async fn name_in_images_over(
        &self,
        _change: &Self::Change,
        _below: &Arc<dyn Block>,
        _name: Option<&str>,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    /// The image whose backing layer `layer` is now: other jobs may have taken out the one that was over it. `None` if it is no layer of the disk
    /// any more, or the uppermost one.
    fn image_over(&self, layer: &Arc<dyn Block>) -> Option<Arc<dyn Block>>;

    /// Opens a layer for writing; gives what is in its place then. A layer that can be written stays as it is. Each call needs one of
    /// [`Host::make_readable`].
    async fn make_writable(
        &self,
        change: &Self::Change,
        layer: &Arc<dyn Block>,
    ) -> Result<Arc<dyn Block>, Self::Error>;

    /// Makes an exchange while guests use the disk: flushes what they wrote, unless the new root is a copy that has it; keeps requests out
    /// and waits for those that run; calls `last_look`; exchanges. The first request afterwards finds the new layers.
    ///
    /// A crash leaves the disk as it was before or as it is afterwards; no header changes.
    async fn exchange(
        &self,
        change: &Self::Change,
        exchange: Exchange<'_>,
        last_look: impl AsyncFnOnce() -> Result<(), Error>,
    ) -> Result<Self::Removed, Self::Error>;

    /// Whether the job's filter is over the disk.
    fn has_filter(&self) -> bool;

    /// Reports that the job's filter could not be taken off. The disk works with it.
    fn filter_stays(&self, error: Self::Error);

    /// Opens a layer for reading again that the job had opened for writing. It is durable then. One that guests write to, or that another job has open
    /// for writing, stays so, and one that is gone is closed already. If that fails it stays open for writing, reported.
    async fn make_readable(&self, change: &Self::Change, layer: &Arc<dyn Block>);

    /// Closes layers that were taken out. A failure is reported.
    async fn close(&self, removed: Self::Removed);

    /// In the last look of a job that succeeds: its bitmap, if any, becomes dirty where guests wrote `since` the moment of the copy.
    async fn bitmap_succeeds(&self, since: Option<&Dirty>) -> Result<(), block::Error>;

    /// In the last look of a job that failed: its bitmap, if any, becomes dirty where the copy may lack something. A failure is reported.
    async fn bitmap_fails(&self, left: &Dirty, since: Option<&Dirty>);
}

/// Takes the filter of a job off, if it is there; `settle` runs while no request does. A filter that cannot be taken off is reported.
pub async fn take_filter_off<H: Host>(host: &H, change: &H::Change, settle: impl AsyncFnOnce()) {
    if !host.has_filter() {
        return;
    }
    let last_look = async || {
        settle().await;
        Ok(())
    };
    // A filter has nothing to close.
    if let Err(error) = host.exchange(change, Exchange::WithoutFilter, last_look).await {
        host.filter_stays(error);
    }
}
