//! An open disk: the chain's top behind its front, with the rules of its cache mode.

use std::path::Path;
use std::sync::Arc;

use qcow2::bitmap::{Bitmap, Dirtiness};
use qcow2::snapshot::{NewSnapshot, SnapshotName};
use qcow2::{BlockStatus, Error, Layer, Prefetch, Qcow2, ReadKind, ResizeOptions, Status, ZeroOptions};
use qcow2_layout::SnapshotEntry;
use storage::{FileLock, IoBuf, IoVec, Zeroing};
use throttle::Request;

use crate::front::{Charge, Front, Kind};
use crate::house::House;
use crate::open::OpenRules;
use crate::options::{DetectZeroes, Discard, DiscardCharge, DiskOptions};
use crate::runtime::{Runtime, RuntimeOptions};
use crate::trace::{NAME_BYTES_MAX, TraceDisk};

/// Bytes read at a time to bring a range closer.
const PREFETCH_BYTES: u64 = 1 << 20;

/// What a discard costs under limits where there are no clusters.
const RAW_DISCARD_BYTES_MAX: u64 = 64 << 10;

/// A disk that doors serve. All methods may be called from any loop, many at a time.
///
/// Every request passes the disk's *front*: it is counted, charged against the disk's limits, and held
/// back while the disk is drained ([`Disk::drain`]).
#[derive(Debug)]
pub struct Disk {
    pub(crate) layer: Layer,
    pub(crate) front: Front,
    pub(crate) runtime: Arc<Runtime>,
    /// The image was opened for writing.
    pub(crate) writable: bool,
    /// Some layer's data may be in memory: reads are worth a try that does not wait. With O_DIRECT all the way
    /// down a try only repeats what the read that follows it does.
    has_cached_data: bool,
    /// What of the map is read before it is asked for.
    pub(crate) prefetch: Prefetch,
    /// What a discard is charged at most.
    discard_charge: DiscardCharge,
    bitmaps: Vec<Bitmap>,
    pub(crate) house: House,
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
        rules: &OpenRules,
        locks: Vec<FileLock>,
        house: House,
    ) -> Self {
        let runtime = RuntimeOptions::of(&options.layer);
        let mut front = Front::new(rules.groups.clone(), &options.throttling);
        front.trace(rules.trace.as_ref().and_then(|trace| trace.join(traced(&options.filename, &layer))));
        Self {
            has_cached_data: layer.has_cached_data(),
            layer,
            front,
            writable: !runtime.read_only,
            runtime: Runtime::new(runtime),
            prefetch: options.layer.qcow2.prefetch,
            discard_charge: options.throttling.discard,
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
        self.runtime.get().read_only
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

    /// Reads into `buf` from `offset` if that needs no waiting, neither for a file nor for a limit. Zeroes
    /// leave `buf` as it was; after `None` part of it may have changed.
    #[inline]
    pub fn try_read(&self, offset: u64, buf: &mut [u8]) -> Option<ReadKind> {
        if !self.has_cached_data {
            return None;
        }
        let inline = self.front.try_begin_read(buf.len() as u64)?;
        let read = match &self.layer {
            Layer::Qcow2(image) => image.try_read(offset, buf),
            Layer::Raw(raw) => raw.try_read(offset, buf),
        };
        if read.is_some() {
            self.front.note(Kind::Read, offset, buf.len() as u64);
        }
        self.front.end_inline(inline, read.map(|_| buf.len() as u64));
        read
    }

    /// Fills `buf` from `offset`, zeroes included, and gives it back.
    pub async fn read(&self, offset: u64, buf: IoBuf) -> (Result<ReadKind, Error>, IoBuf) {
        let bytes = buf.len() as u64;
        self.front.note(Kind::Read, offset, bytes);
        let inside = self.front.begin(Kind::Read, Charge::Whole(Request::read(bytes))).await;
        let (result, buf) = match &self.layer {
            Layer::Qcow2(image) => image.read(offset, buf).await,
            Layer::Raw(raw) => {
                let (result, buf) = raw.read(offset, buf).await;
                (result.map(|()| ReadKind::Data), buf)
            }
        };
        (inside.end(result, bytes), buf)
    }

    /// Writes `data`; with `fua`, or in a writethrough mode, durable when it ends.
    pub async fn write(&self, offset: u64, data: IoVec, fua: bool) -> Result<(), Error> {
        let bytes = data.len() as u64;
        self.front.note(Kind::Write, offset, bytes);
        let inside = self.front.begin(Kind::Write, Charge::Whole(Request::write(bytes))).await;
        inside.end(self.write_inside(offset, data, fua).await, bytes)
    }

    async fn write_inside(&self, offset: u64, data: IoVec, fua: bool) -> Result<(), Error> {
        let runtime = self.writable_now()?;
        if runtime.detect_zeroes != DetectZeroes::Off && data.is_zero() {
            let unmap = runtime.detect_zeroes == DetectZeroes::Unmap;
            let options = ZeroOptions { unmap, fast_only: false };
            return self.zero_inside(offset, data.len() as u64, options, fua).await;
        }
        match &self.layer {
            Layer::Qcow2(image) => image.write(offset, data).await?,
            Layer::Raw(raw) => raw.write(offset, data).await?,
        }
        self.settle(fua).await
    }

    /// Makes the range read as zeroes. Under limits it costs as much as writing them.
    pub async fn zero(&self, offset: u64, len: u64, options: ZeroOptions, fua: bool) -> Result<(), Error> {
        self.front.note(Kind::Zero, offset, len);
        let inside = self.front.begin(Kind::Zero, Charge::Pieces(Request::write(len))).await;
        inside.end(self.zero_inside(offset, len, options, fua).await, len)
    }

    async fn zero_inside(&self, offset: u64, len: u64, options: ZeroOptions, fua: bool) -> Result<(), Error> {
        // Space goes back only where the disk was opened so that it may.
        let unmap = options.unmap && self.writable_now()?.discard == Discard::Unmap;
        let options = ZeroOptions { unmap, ..options };
        match &self.layer {
            Layer::Qcow2(image) => image.zero(offset, len, options).await?,
            Layer::Raw(raw) => raw.zero(offset, len, zeroing(options)).await?,
        }
        self.settle(fua).await
    }

    /// The range is of no use any more. What it costs under limits is an option
    /// ([`DiscardCharge`]).
    pub async fn discard(&self, offset: u64, len: u64, fua: bool) -> Result<(), Error> {
        self.front.note(Kind::Discard, offset, len);
        let inside = self.front.begin(Kind::Discard, self.charge_of_discard(len)).await;
        inside.end(self.discard_inside(offset, len, fua).await, len)
    }

    async fn discard_inside(&self, offset: u64, len: u64, fua: bool) -> Result<(), Error> {
        let discard = self.writable_now()?.discard == Discard::Unmap;
        match &self.layer {
            Layer::Qcow2(image) => image.discard(offset, len).await?,
            Layer::Raw(raw) if discard => raw.discard(offset, len).await?,
            Layer::Raw(_) => {}
        }
        self.settle(fua).await
    }

    fn charge_of_discard(&self, len: u64) -> Charge {
        let cluster_bytes = match &self.layer {
            Layer::Qcow2(image) => image.geometry().cluster_size(),
            Layer::Raw(_) => RAW_DISCARD_BYTES_MAX,
        };
        match self.discard_charge {
            DiscardCharge::Cluster => Charge::Whole(Request::write(len.min(cluster_bytes))),
            DiscardCharge::Full => Charge::Pieces(Request::write(len)),
            DiscardCharge::Free => Charge::Free,
        }
    }

    /// The options in force, if they let anything be written.
    fn writable_now(&self) -> Result<RuntimeOptions, Error> {
        let runtime = self.runtime.get();
        if runtime.read_only {
            let name = match &self.layer {
                Layer::Qcow2(image) => image.file().name(),
                Layer::Raw(raw) => raw.storage.name(),
            };
            return Err(Error::Refused { image: name.into(), detail: "the disk is read-only".into() });
        }
        Ok(runtime)
    }

    /// Makes everything durable that completed before this call.
    pub async fn flush(&self) -> Result<(), Error> {
        self.front.note(Kind::Flush, 0, 0);
        let inside = self.front.begin(Kind::Flush, Charge::Free).await;
        inside.end(self.flush_inside().await, 0)
    }

    pub(crate) async fn flush_inside(&self) -> Result<(), Error> {
        match &self.layer {
            Layer::Qcow2(image) => image.flush().await,
            Layer::Raw(raw) => raw.flush().await,
        }
    }

    async fn settle(&self, fua: bool) -> Result<(), Error> {
        if fua || self.runtime.get().writethrough { self.flush_inside().await } else { Ok(()) }
    }

    /// The state of the disk at `offset`, for at most `len` bytes. Costs nothing under limits.
    pub async fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Error> {
        self.front.note(Kind::Status, offset, len);
        let inside = self.front.begin(Kind::Status, Charge::Free).await;
        let status = self.layer.block_status(offset, len).await;
        let bytes = status.as_ref().map_or(0, |status| status.len);
        inside.end(status, bytes)
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
        self.front.note(Kind::Status, offset, len);
        let inside = self.front.begin(Kind::Status, Charge::Free).await;
        let status = bitmap.status(offset, len).await;
        let bytes = status.as_ref().map_or(0, |status| status.len);
        inside.end(status, bytes).map(Some)
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
}

impl Drop for Disk {
    fn drop(&mut self) {
        // What runs beside the requests ends with the disk.
        self.runtime.tell();
    }
}

/// How a trace names the disk.
fn traced(path: &Path, layer: &Layer) -> TraceDisk {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = real.to_string_lossy().into_owned();
    name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
    let cluster_bytes = match layer {
        Layer::Qcow2(image) => image.geometry().cluster_size(),
        Layer::Raw(_) => 0,
    };
    TraceDisk { name, bytes: layer.size(), cluster_bytes }
}

fn zeroing(options: ZeroOptions) -> Zeroing {
    match options {
        ZeroOptions { fast_only: true, .. } => Zeroing::FastOnly,
        ZeroOptions { unmap: true, .. } => Zeroing::Unmap,
        ZeroOptions { unmap: false, .. } => Zeroing::Keep,
    }
}
