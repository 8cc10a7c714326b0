//! The bitmap of a job: what it says when the job has ended.
//!
//! It records changes all the time, so whatever ends the program early, it has as dirty what the copy may lack. Only the last step
//! takes bits away.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;

use block::{Blame, Error};
use graph::DiskNode;
use job::Dirty;
use qcow2::bitmap::{Bitmap, BitmapChange};

control::choice! {
    /// When copied parts are cleared in the bitmap: when the job has succeeded, never, or when it has ended, whatever became of it: what was not copied
    /// stays dirty.
    pub enum BitmapMode { OnSuccess, Never, Always }
}

/// The bitmap of a job.
pub struct BitmapSync {
    /// The disk that has it.
    pub disk: Arc<DiskNode>,
    /// Its name.
    pub name: String,
    /// When copied parts are cleared in it.
    pub mode: BitmapMode,
    /// Bytes that one of its bits stands for.
    pub granularity_bytes: u64,
    /// Changes set its bits.
    pub is_recording: bool,
    /// Bytes that it had as dirty when the job began.
    at_begin: Cell<Option<u64>>,
    /// What it said before the last step.
    before: RefCell<Option<Arc<Bitmap>>>,
}

impl BitmapSync {
    /// The bitmap `bitmap` of `disk`.
    pub fn new(disk: Arc<DiskNode>, bitmap: &Bitmap, mode: BitmapMode) -> Self {
        Self {
            disk,
            name: bitmap.name().to_owned(),
            mode,
            granularity_bytes: bitmap.granularity_bytes(),
            is_recording: bitmap.is_recording(),
            at_begin: Cell::default(),
            before: RefCell::default(),
        }
    }

    /// Remembers how much it has as dirty. While the disk is drained.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn begin(&self) -> Result<(), Error> {
        self.at_begin.set(Some(self.now()?.dirty_bytes().await?));
        Ok(())
    }

    /// Bytes that it had as dirty when the job began, if the job is one that says so.
    pub fn count_at_begin(&self) -> Option<u64> {
        self.at_begin.get()
    }

    /// Marks what it has as dirty. While the disk is drained.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn mark(&self, dirty: &Dirty) -> Result<(), Error> {
        self.now()?.dirty_ranges().await?.into_iter().for_each(|range| dirty.mark(range));
        Ok(())
    }

    /// The job has succeeded: has the bitmap say what was written `since` the moment of which the copy is. While the disk is drained.
    ///
    /// # Errors
    /// When it cannot be changed; then it is as it was.
    pub async fn succeed(&self, since: Option<&Dirty>) -> Result<(), Error> {
        if self.mode == BitmapMode::Never {
            return Ok(());
        }
        let now = self.now()?;
        let before = Bitmap::of_ranges(now.size(), self.granularity_bytes, now.dirty_ranges().await?)?;
        self.become_ranges(self.written(since)).await?;
        *self.before.borrow_mut() = Some(before);
        Ok(())
    }

    /// Sets the bitmap after a failed job, which has not copied `left`. In mode `Always` the bitmap gets
    /// `left` and what was written `since`. In the other modes it gets what it would have without the job.
    /// The disk must be drained. An error leaves the bitmap with more dirty than needed.
    pub async fn fail(&self, left: &Dirty, since: Option<&Dirty>) {
        let before = self.before.borrow_mut().take();
        let changed = match (self.mode, before) {
            (BitmapMode::Always, _) => self.become_ranges(left.ranges().chain(self.written(since))).await,
            // Its last step was taken, and the job failed after it.
            (_, Some(before)) => self.disk.disk.change_bitmap(&self.name, BitmapChange::Merge(before)).await,
            (_, None) => Ok(()),
        };
        if let Err(error) = changed {
            tracing::error!(bitmap = self.name, %error, "a bitmap does not say what a job left");
        }
    }

    fn written(&self, since: Option<&Dirty>) -> Vec<Range<u64>> {
        since.filter(|_| self.is_recording).map_or_else(Vec::new, |since| since.ranges().collect())
    }

    async fn become_ranges(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> Result<(), Error> {
        let bits = Bitmap::of_ranges(self.now()?.size(), self.granularity_bytes, ranges)?;
        self.disk.disk.change_bitmap(&self.name, BitmapChange::Become(bits)).await
    }

    fn now(&self) -> Result<Arc<Bitmap>, Error> {
        let found = self.disk.disk.bitmaps().into_iter().find(|bitmap| bitmap.name() == self.name);
        found.ok_or_else(|| Blame::new(&self.disk.name()).invalid(format!("bitmap {:?} is gone", self.name)))
    }
}
