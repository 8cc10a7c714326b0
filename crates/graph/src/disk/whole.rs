//! What concerns the disk as a whole: bitmaps, size, internal snapshots.

use std::sync::Arc;

use block::{Blame, Error};
use qcow2::bitmap::{Bitmap, Dirtiness};
use qcow2::snapshot::{NewSnapshot, SnapshotName};
use qcow2::{Qcow2, ResizeOptions};
use qcow2_layout::SnapshotEntry;

use super::Disk;
use crate::front::{Charge, Kind};

const NO_SNAPSHOTS: &str = "a raw disk has no internal snapshots";

impl Disk {
    /// Names of the bitmaps that [`Disk::bitmap_status`] knows.
    pub fn bitmap_names(&self) -> Vec<String> {
        self.layers.load().bitmaps.iter().map(|bitmap| bitmap.name().to_owned()).collect()
    }

    /// The bitmaps that were consistent when the disk was opened, each with whether it is out of date now.
    pub fn bitmaps(&self) -> Vec<(Arc<Bitmap>, bool)> {
        let changed = self.was_changed();
        let with = |bitmap: &Arc<Bitmap>| (Arc::clone(bitmap), changed && bitmap.is_recording());
        self.layers.load().bitmaps.iter().map(with).collect()
    }

    /// Names of the persistent bitmaps that the first change put out of date; empty before it.
    pub fn bitmaps_out_of_date(&self) -> Vec<String> {
        self.image().map_or_else(Vec::new, |image| image.bitmaps_out_of_date())
    }

    fn was_changed(&self) -> bool {
        self.image().is_some_and(|image| image.was_changed())
    }

    /// What the bitmap called `name` says of `offset`, for at most `len` bytes; `None` if there is no
    /// such bitmap, or not any more: one that records changes is out of date once there are some.
    pub async fn bitmap_status(&self, name: &str, offset: u64, len: u64) -> Result<Option<Dirtiness>, Error> {
        if self.bitmap(name).is_none() {
            return Ok(None);
        }
        self.front.note(Kind::Status, offset, len);
        let inside = self.front.begin(Kind::Status, Charge::Free).await;
        // The disk may stand on something else since the request came.
        let status = match self.bitmap(name) {
            Some(bitmap) => bitmap.status(offset, len).await.map(Some),
            None => Ok(None),
        };
        let bytes = status.as_ref().map_or(0, |status| status.map_or(0, |status| status.len));
        inside.end(status, bytes)
    }

    /// The bitmap called `name`, unless it is out of date.
    fn bitmap(&self, name: &str) -> Option<Arc<Bitmap>> {
        let known = self.bitmaps().into_iter().find(|(bitmap, _)| bitmap.name() == name);
        known.filter(|(_, out_of_date)| !out_of_date).map(|(bitmap, _)| bitmap)
    }

    /// Changes the size to `size` bytes while the disk is in use; see [`qcow2::Qcow2::resize`]. Only qcow2
    /// images can be resized.
    pub async fn resize(&self, size: u64, options: ResizeOptions) -> Result<(), Error> {
        self.image_or("the size of a raw disk is that of its file")?.resize(size, options).await
    }

    /// The internal snapshots; a raw disk has none.
    pub async fn snapshots(&self) -> Result<Vec<SnapshotEntry>, Error> {
        match self.image() {
            Some(image) => image.snapshots().await,
            None => Ok(Vec::new()),
        }
    }

    /// Takes an internal snapshot while the disk is in use; see [`qcow2::Qcow2::create_snapshot`].
    pub async fn create_snapshot(&self, new: NewSnapshot) -> Result<SnapshotEntry, Error> {
        self.image_or(NO_SNAPSHOTS)?.create_snapshot(new).await
    }

    /// Goes back to an internal snapshot; see [`qcow2::Qcow2::apply_snapshot`].
    pub async fn apply_snapshot(&self, name: SnapshotName) -> Result<(), Error> {
        self.image_or(NO_SNAPSHOTS)?.apply_snapshot(name).await
    }

    /// Deletes an internal snapshot and gives its entry; see [`qcow2::Qcow2::delete_snapshot`].
    pub async fn delete_snapshot(&self, name: SnapshotName) -> Result<SnapshotEntry, Error> {
        self.image_or(NO_SNAPSHOTS)?.delete_snapshot(name).await
    }

    /// The qcow2 image; `otherwise` says why a disk that is none cannot do it.
    fn image_or(&self, otherwise: &'static str) -> Result<Qcow2, Error> {
        self.image().ok_or_else(|| Blame::new(self.root().name()).unsupported(otherwise))
    }
}
