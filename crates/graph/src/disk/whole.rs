//! What concerns the disk as a whole: bitmaps, size, internal snapshots.

use std::sync::Arc;
use std::time::Duration;

use block::pace::Unpaced;
use block::{Blame, Error};
use qcow2::bitmap::{Bitmap, BitmapChange, Dirtiness};
use qcow2::snapshot::{NewSnapshot, SnapshotName};
use qcow2::{Qcow2, ResizeOptions};
use qcow2_layout::{BitmapEntry, SnapshotEntry};

use super::{Disk, DiskEnd};
use crate::drivers::remotes;
use crate::front::{Charge, Kind};
use crate::resize_raw::resize_raw;

const NO_BITMAPS: &str =
    "only a qcow2 image keeps bitmaps itself: another disk needs a file for them (option bitmaps)";
const NO_SNAPSHOTS: &str = "a raw disk has no internal snapshots";

/// The time between two checks whether a closed disk is still referenced.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl Disk {
    /// What can be waited for without having the disk: its end.
    pub fn end(&self) -> DiskEnd {
        DiskEnd(Arc::downgrade(&self.alive))
    }

    /// Waits until the work that requests left behind has ended. The loops on which requests ran must keep
    /// running meanwhile.
    pub async fn idle(&self) {
        self.layers.load_full().idle().await;
        (remotes().settle)().await;
    }

    /// Waits for running requests, writes what is in memory and makes it durable: of all layers that were
    /// opened for writing.
    pub async fn close(&self) -> Result<(), Error> {
        self.layers.load_full().close().await
    }

    /// Names of the bitmaps that [`Disk::bitmap_status`] knows.
    pub fn bitmap_names(&self) -> Vec<String> {
        self.bitmaps().iter().map(|bitmap| bitmap.name().to_owned()).collect()
    }

    /// The bitmaps whose content can be trusted, as they are now; see [`qcow2::Qcow2::bitmaps`].
    pub fn bitmaps(&self) -> Vec<Arc<Bitmap>> {
        self.layers.load().bitmaps.as_ref().map_or_else(Vec::new, Qcow2::bitmaps)
    }

    /// The image that keeps the disk's bitmaps: its own, or the one of its option `bitmaps`.
    pub fn bitmap_image(&self) -> Option<Qcow2> {
        self.layers.load().bitmaps.clone()
    }

    /// The persistent bitmaps that can only be removed.
    pub fn inconsistent_bitmaps(&self) -> Vec<BitmapEntry> {
        self.layers.load().bitmaps.as_ref().map_or_else(Vec::new, Qcow2::inconsistent_bitmaps)
    }

    /// Names of the persistent bitmaps that the first change put out of date; empty before it.
    pub fn bitmaps_out_of_date(&self) -> Vec<String> {
        self.layers.load().bitmaps.as_ref().map_or_else(Vec::new, Qcow2::bitmaps_out_of_date)
    }

    /// Makes, changes or removes the bitmap called `name`; see [`qcow2::Qcow2::change_bitmap`].
    ///
    /// # Errors
    /// Also when the disk is no qcow2 image.
    pub async fn change_bitmap(&self, name: &str, change: BitmapChange) -> Result<(), Error> {
        let image = self.layers.load().bitmaps.clone();
        let image = image.ok_or_else(|| Blame::new(self.root().name()).unsupported(NO_BITMAPS))?;
        image.change_bitmap(name, change).await
    }

    /// What the bitmap called `name` says of `offset`, for at most `len` bytes; `None` if there is no such bitmap, or not any more.
    pub async fn bitmap_status(&self, name: &str, offset: u64, len: u64) -> Result<Option<Dirtiness>, Error> {
        self.front.note(Kind::Status, offset, len);
        let inside = self.front.begin(Kind::Status, Charge::Free, &Unpaced).await;
        // The image that has the disk's bitmaps when the request begins.
        let image = self.layers.load().bitmaps.clone();
        let status = match image {
            Some(image) => image.bitmap_status(name, offset, len).await,
            None => Ok(None),
        };
        let bytes = status.as_ref().map_or(0, |status| status.map_or(0, |status| status.len));
        inside.end(status, bytes)
    }

    /// The end of the highest write to the disk since it was opened, in bytes: of clients, and where its bytes are a file's, of all others; 0 if there
    /// was none.
    pub fn highest_write(&self) -> u64 {
        let of_file = self.reach().filter(|_| self.image().is_none()).map_or(0, |reach| reach.highest());
        self.front.highest_write().max(of_file)
    }

    /// How far writes have reached into the file of the uppermost image, where that is known.
    pub fn reach(&self) -> Option<Arc<storage::Reach>> {
        self.layers().files()?.written.file.reach().cloned()
    }

    /// Bytes that the file of the uppermost image occupies on disk. `None` if unknown, or if the image has
    /// other files, which take the most.
    pub fn allocated_bytes(&self) -> Option<u64> {
        let layers = self.layers();
        let files = layers.files().filter(|files| files.data.is_none() && files.vmdk.is_none())?;
        files.written.file.allocated_bytes()
    }

    /// Changes the size to `size` bytes while the disk is in use; see [`qcow2::Qcow2::resize`] and [`block::Raw::resize`]. Bitmaps that a file of their own keeps are
    /// made to fit.
    pub async fn resize(&self, size: u64, options: ResizeOptions) -> Result<(), Error> {
        if let Some(image) = self.image() {
            return image.resize(size, options).await;
        }
        let top = self.root();
        if self.read_only() {
            return Err(Blame::new(top.name()).refused("the disk is open for reading"));
        }
        let _turn = self.resizing.lock().await;
        resize_raw(&*top, size, options, async || drop(self.drain().await)).await
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

impl DiskEnd {
    /// Waits until the disk is dropped and its files are closed and unlocked. Ended requests and background
    /// tasks drop their references when their event loop runs them.
    pub async fn reached(&self) {
        while self.0.strong_count() > 0 {
            reactor::sleep(LOOK_AGAIN).await;
        }
    }
}
