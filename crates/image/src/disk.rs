//! An open disk: the chain's top with the rules of its cache mode.

use std::sync::Arc;
use std::time::Duration;

use qcow2::bitmap::{Bitmap, Dirtiness};
use qcow2::snapshot::{NewSnapshot, SnapshotName};
use qcow2::{BlockStatus, Error, Layer, Qcow2, ResizeOptions, Status, ZeroOptions};
use qcow2_layout::SnapshotEntry;
use storage::{FileLock, IoBuf, IoVec, Zeroing};

use crate::house::House;
use crate::options::{DetectZeroes, Discard, DiskOptions};

/// How often metadata that nobody flushes is written all the same: bounds what a guest that never
/// flushes keeps in memory, and how long discarded space stays with the file.
const WRITE_BACK_INTERVAL: Duration = Duration::from_secs(5);

/// Bytes read at a time to bring a range closer.
const PREFETCH_BYTES: u64 = 1 << 20;

/// A disk that doors serve. All methods may be called from any loop, many at a time.
#[derive(Debug)]
pub struct Disk {
    layer: Layer,
    read_only: bool,
    writethrough: bool,
    discard: bool,
    detect_zeroes: DetectZeroes,
    cache_clean_interval: Option<Duration>,
    bitmaps: Vec<Bitmap>,
    house: House,
    /// Held until the disk goes.
    _locks: Vec<FileLock>,
}

/// What requests should look like, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Any multiple of this is possible.
    pub minimum: u32,
    /// Multiples of this cost least.
    pub preferred: u32,
}

impl Disk {
    pub(crate) fn new(
        layer: Layer,
        bitmaps: Vec<Bitmap>,
        options: &DiskOptions,
        locks: Vec<FileLock>,
        house: House,
    ) -> Self {
        let top = &options.layer;
        let interval = u64::from(top.qcow2.cache_clean_interval_s);
        Self {
            layer,
            read_only: top.read_only,
            writethrough: top.cache.writethrough,
            discard: top.discard == Discard::Unmap,
            detect_zeroes: top.detect_zeroes,
            cache_clean_interval: (interval > 0).then(|| Duration::from_secs(interval)),
            bitmaps,
            house,
            _locks: locks,
        }
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.layer.size()
    }

    /// Whether writes are refused.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// The chain's top.
    pub fn layer(&self) -> &Layer {
        &self.layer
    }

    /// What requests should look like.
    pub fn block_sizes(&self) -> BlockSizes {
        let alignment = match &self.layer {
            Layer::Qcow2(image) => image.file().limits().alignment,
            Layer::Raw(raw) => raw.storage.limits().alignment,
        };
        BlockSizes { minimum: 1, preferred: alignment.max(4096) }
    }

    /// Counters and cache sizes of a qcow2 image.
    pub fn status(&self) -> Option<Status> {
        match &self.layer {
            Layer::Qcow2(image) => Some(image.status()),
            Layer::Raw(_) => None,
        }
    }

    /// Fills `buf` from `offset` if that needs no waiting, and says whether it did.
    #[inline]
    pub fn try_read(&self, offset: u64, buf: &mut [u8]) -> bool {
        match &self.layer {
            Layer::Qcow2(image) => image.try_read(offset, buf),
            Layer::Raw(raw) => {
                raw.contains(offset, buf.len() as u64) && raw.storage.try_read(raw.offset + offset, buf)
            }
        }
    }

    /// Fills `buf` from `offset` and gives it back.
    pub async fn read(&self, offset: u64, buf: IoBuf) -> (Result<(), Error>, IoBuf) {
        match &self.layer {
            Layer::Qcow2(image) => image.read(offset, buf).await,
            Layer::Raw(raw) => raw.read(offset, buf).await,
        }
    }

    /// Writes `data`; with `fua`, or in a writethrough mode, durable when it ends.
    pub async fn write(&self, offset: u64, data: IoVec, fua: bool) -> Result<(), Error> {
        if self.detect_zeroes != DetectZeroes::Off && data.is_zero() {
            let unmap = self.detect_zeroes == DetectZeroes::Unmap;
            let options = ZeroOptions { unmap, fast_only: false };
            return self.zero(offset, data.len() as u64, options, fua).await;
        }
        match &self.layer {
            Layer::Qcow2(image) => image.write(offset, data).await?,
            Layer::Raw(raw) => raw.write(offset, data).await?,
        }
        self.settle(fua).await
    }

    /// Makes the range read as zeroes.
    pub async fn zero(&self, offset: u64, len: u64, options: ZeroOptions, fua: bool) -> Result<(), Error> {
        // Space goes back only where the disk was opened so that it may.
        let options = ZeroOptions { unmap: options.unmap && self.discard, ..options };
        match &self.layer {
            Layer::Qcow2(image) => image.zero(offset, len, options).await?,
            Layer::Raw(raw) => raw.zero(offset, len, zeroing(options)).await?,
        }
        self.settle(fua).await
    }

    /// The range is of no use any more.
    pub async fn discard(&self, offset: u64, len: u64, fua: bool) -> Result<(), Error> {
        match &self.layer {
            Layer::Qcow2(image) => image.discard(offset, len).await?,
            Layer::Raw(raw) if self.discard => raw.discard(offset, len).await?,
            Layer::Raw(_) => {}
        }
        self.settle(fua).await
    }

    /// Makes everything durable that completed before this call.
    pub async fn flush(&self) -> Result<(), Error> {
        match &self.layer {
            Layer::Qcow2(image) => image.flush().await,
            Layer::Raw(raw) => raw.flush().await,
        }
    }

    async fn settle(&self, fua: bool) -> Result<(), Error> {
        if fua || self.writethrough { self.flush().await } else { Ok(()) }
    }

    /// The state of the disk at `offset`, for at most `len` bytes.
    pub async fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Error> {
        self.layer.block_status(offset, len).await
    }

    /// Brings the range into the page cache, and its map into memory, where that means something.
    pub async fn prefetch(&self, offset: u64, len: u64) -> Result<(), Error> {
        let end = offset.saturating_add(len).min(self.size());
        let mut at = offset;
        while at < end {
            let part = (end - at).min(PREFETCH_BYTES);
            // Less than PREFETCH_BYTES, which fits any pointer width.
            self.read(at, IoBuf::uninit(part as usize)).await.0?;
            at += part;
        }
        Ok(())
    }

    /// Names of the bitmaps that [`Disk::bitmap_status`] knows.
    pub fn bitmap_names(&self) -> Vec<String> {
        self.bitmaps.iter().map(|bitmap| bitmap.name().to_owned()).collect()
    }

    /// What the bitmap called `name` says of `offset`, for at most `len` bytes; `None` if there is no
    /// such bitmap, or not any more: one that records changes is out of date once there are some.
    pub async fn bitmap_status(&self, name: &str, offset: u64, len: u64) -> Result<Option<Dirtiness>, Error> {
        let Some(bitmap) = self.bitmaps.iter().find(|bitmap| bitmap.name() == name) else { return Ok(None) };
        let changed = matches!(&self.layer, Layer::Qcow2(image) if image.was_changed());
        if changed && bitmap.is_recording() {
            return Ok(None);
        }
        bitmap.status(offset, len).await.map(Some)
    }

    /// Changes the size to `size` bytes while the disk is in use; see [`qcow2::Qcow2::resize`]. Only qcow2
    /// images can be resized.
    pub async fn resize(&self, size: u64, options: ResizeOptions) -> Result<(), Error> {
        match &self.layer {
            Layer::Qcow2(image) => image.resize(size, options).await,
            Layer::Raw(raw) => Err(raw.unsupported("the size of a raw disk is that of its file")),
        }
    }

    /// The internal snapshots; a raw disk has none.
    pub async fn snapshots(&self) -> Result<Vec<SnapshotEntry>, Error> {
        match &self.layer {
            Layer::Qcow2(image) => image.snapshots().await,
            Layer::Raw(_) => Ok(Vec::new()),
        }
    }

    /// Takes an internal snapshot while the disk is in use; see [`qcow2::Qcow2::create_snapshot`].
    pub async fn create_snapshot(&self, new: NewSnapshot) -> Result<SnapshotEntry, Error> {
        self.with_snapshots()?.create_snapshot(new).await
    }

    /// Goes back to an internal snapshot; see [`qcow2::Qcow2::apply_snapshot`].
    pub async fn apply_snapshot(&self, name: SnapshotName) -> Result<(), Error> {
        self.with_snapshots()?.apply_snapshot(name).await
    }

    /// Deletes an internal snapshot and gives its entry; see [`qcow2::Qcow2::delete_snapshot`].
    pub async fn delete_snapshot(&self, name: SnapshotName) -> Result<SnapshotEntry, Error> {
        self.with_snapshots()?.delete_snapshot(name).await
    }

    fn with_snapshots(&self) -> Result<&Qcow2, Error> {
        match &self.layer {
            Layer::Qcow2(image) => Ok(image),
            Layer::Raw(raw) => Err(raw.unsupported("a raw disk has no internal snapshots")),
        }
    }

    /// Waits until nothing that requests left behind is at work any more. A loop on which requests
    /// ran must go on running until then.
    pub async fn idle(&self) {
        self.house.idle().await;
    }

    /// Waits for the requests inside, writes what is in memory and makes it durable.
    pub async fn close(&self) -> Result<(), Error> {
        match &self.layer {
            Layer::Qcow2(image) => image.close().await,
            Layer::Raw(raw) => raw.flush().await,
        }
    }

    /// Starts what runs beside the requests on the loop of this thread, until the disk goes: unused
    /// map slices are dropped after `cache-clean-interval`, and metadata is written now and then.
    pub fn keep_house(self: &Arc<Self>) {
        let Layer::Qcow2(image) = &self.layer else { return };
        if let Some(interval) = self.cache_clean_interval {
            let disk = Arc::downgrade(self);
            reactor::spawn(async move {
                loop {
                    reactor::sleep(interval).await;
                    let Some(disk) = disk.upgrade() else { return };
                    disk.clean_caches();
                }
            })
            .detach();
        }
        if self.read_only {
            return;
        }
        let name = image.file().name().to_owned();
        let disk = Arc::downgrade(self);
        reactor::spawn(async move {
            loop {
                reactor::sleep(WRITE_BACK_INTERVAL).await;
                let Some(disk) = disk.upgrade() else { return };
                if let Layer::Qcow2(image) = &disk.layer
                    && let Err(error) = image.write_back().await
                {
                    tracing::warn!("{name}: writing metadata in the background: {error}");
                }
            }
        })
        .detach();
    }

    fn clean_caches(&self) {
        let mut layer = Some(&self.layer);
        while let Some(Layer::Qcow2(image)) = layer {
            image.clean_cache();
            layer = image.backing();
        }
    }
}

fn zeroing(options: ZeroOptions) -> Zeroing {
    match options {
        ZeroOptions { fast_only: true, .. } => Zeroing::FastOnly,
        ZeroOptions { unmap: true, .. } => Zeroing::Unmap,
        ZeroOptions { unmap: false, .. } => Zeroing::Keep,
    }
}
