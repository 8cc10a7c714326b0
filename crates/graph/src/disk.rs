//! An open disk: the chain's top behind its front, with the rules of its cache mode.

mod as_block;
mod compressed;
mod foreign;
mod runtime;
mod stored;
mod whole;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use block::pace::{Pace, Unpaced, step_bytes};
use block::{Blame, Block, BlockStatus, Error, ReadKind, ZeroOptions};
use qcow2::{Prefetch, Qcow2, Status};
use storage::{Hints, IoBuf, IoVec};
use throttle::Request;

use crate::front::{Charge, Drained, Front, Kind};
use crate::layers::Layers;
use crate::open_rules::OpenRules;
use crate::options::{DetectZeroes, Discard, DiscardCharge, DiskOptions};
use crate::runtime::{Runtime, RuntimeOptions};
use crate::trace::{NAME_BYTES_MAX, TraceDisk};

/// Bytes read at a time to bring a range closer.
const PREFETCH_BYTES: u64 = 1 << 20;

/// Bytes that a discard is charged at most on a disk without clusters.
const RAW_DISCARD_BYTES_MAX: u64 = 64 << 10;

/// A disk that doors serve. All methods may be called from any loop, many at a time.
///
/// Every request passes the disk's *front*: it is counted, charged against the disk's limits, and held
/// back while the disk is drained ([`Disk::drain`]).
#[derive(Debug)]
pub struct Disk {
    /// What messages call it: the path of its first image, as the user gave it.
    name: String,
    /// A request loads them once, when it is admitted, and keeps them to its end. They are replaced only
    /// while the disk is drained.
    layers: ArcSwap<Layers>,
    /// [`Layers::cached`] of those; [`Disk::set_root`] keeps it true. Looked at outside: an old value costs a try, or a task.
    has_cached_data: AtomicBool,
    /// Another process may write the files: this disk does not ([`crate::Graph::set_active`]).
    inactive: AtomicBool,
    pub(crate) front: Front,
    pub(crate) runtime: Arc<Runtime>,
    /// What of the map is read before it is asked for.
    pub(crate) prefetch: Prefetch,
    /// What a discard is charged at most.
    discard_charge: DiscardCharge,
    /// Held while a raw disk gets another size.
    resizing: async_lock::Mutex<()>,
    /// The last to be dropped: what [`Disk::end`] gives waits for it.
    alive: Arc<()>,
}

/// The end of a disk, for tasks that wait for it.
#[derive(Debug)]
pub struct DiskEnd(Weak<()>);

impl Disk {
    pub(crate) fn new(layers: Layers, options: &DiskOptions, rules: &OpenRules) -> Self {
        let mut front = Front::new(rules.groups.clone(), &options.throttling);
        front.trace(
            rules.trace.as_ref().and_then(|trace| trace.join(traced(&options.filename, &*layers.top))),
        );
        Self {
            name: layers.top.name().to_owned(),
            has_cached_data: AtomicBool::new(layers.cached),
            inactive: AtomicBool::new(false),
            layers: ArcSwap::from_pointee(layers),
            front,
            runtime: Runtime::new(RuntimeOptions::of(&options.layer)),
            prefetch: options.layer.qcow2.prefetch,
            discard_charge: options.throttling.discard,
            resizing: async_lock::Mutex::new(()),
            alive: Arc::default(),
        }
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.layers.load().top.size()
    }

    /// Whether writes are refused.
    pub fn read_only(&self) -> bool {
        self.runtime.get().read_only
    }

    /// Whether the disk may be written, as far as its options say so. An inactive one is another process's.
    pub fn is_active(&self) -> bool {
        !self.inactive.load(Ordering::Relaxed)
    }

    /// Requests that begin from now on are refused, or not any more, if they write.
    pub(crate) fn set_active(&self, active: bool) {
        self.inactive.store(!active, Ordering::Relaxed);
    }

    /// The chain's top.
    pub fn root(&self) -> Arc<dyn Block> {
        Arc::clone(&self.layers.load().top)
    }

    /// The uppermost image: the chain's top without the filters of jobs.
    pub fn top_image(&self) -> Arc<dyn Block> {
        let layers = self.layers.load();
        Arc::clone(layers.first().map_or(&layers.top, |layer| &layer.block))
    }

    /// The chain's top, if it is a qcow2 image: a handle of it.
    pub fn image(&self) -> Option<Qcow2> {
        self.layers.load().image().cloned()
    }

    /// The disk's layers, as a value that may be kept across an await. A `load` occupies one of a thread's
    /// few borrow slots, and once all are taken every load costs several times as much.
    pub(crate) fn layers(&self) -> Arc<Layers> {
        self.layers.load_full()
    }

    /// Puts the disk on other layers. It is drained.
    pub(crate) fn set_root(&self, layers: Arc<Layers>, _drained: &Drained<'_>) {
        self.has_cached_data.store(layers.cached, Ordering::Relaxed);
        self.layers.store(layers);
    }

    /// Whether the image was opened for writing.
    pub(crate) fn is_writable(&self) -> bool {
        !self.layers.load().top.capabilities().read_only
    }

    /// Bytes of which requests that are multiples cost least; any are possible.
    pub fn preferred_bytes(&self) -> u32 {
        self.root().capabilities().alignment.max(4096)
    }

    /// Bytes of which a discard gives back aligned multiples: a cluster, or a subcluster where there are some, and at
    /// least what a file system gives back. Another image at the top may change it.
    pub fn discard_bytes(&self) -> u32 {
        let unit = self.root().subcluster_bytes().and_then(|bytes| u32::try_from(bytes).ok());
        unit.unwrap_or(0).max(self.preferred_bytes())
    }

    /// Every write is durable when it ends.
    pub fn writes_through(&self) -> bool {
        self.runtime.get().writethrough
    }

    /// Counters and cache sizes of a qcow2 image.
    pub fn status(&self) -> Option<Status> {
        self.image().map(|image| image.status())
    }

    /// Reads into `buf` from `offset` if that needs no waiting, neither for a file nor for a limit. Zeroes
    /// leave `buf` as it was; after `None` part of it may have changed.
    #[inline]
    pub fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> Option<ReadKind> {
        self.read_inline(offset, buf.len() as u64, |top| top.try_read(offset, buf, hints))
    }

    /// Runs `read` on the top block if the request of `bytes` bytes is admitted without waiting.
    #[inline]
    fn read_inline(
        &self,
        offset: u64,
        bytes: u64,
        read: impl FnOnce(&dyn Block) -> Option<ReadKind>,
    ) -> Option<ReadKind> {
        if !self.has_cached_data.load(Ordering::Relaxed) {
            return None;
        }
        let inline = self.front.try_begin_read(bytes)?;
        let read = read(&*self.layers.load().top);
        if read.is_some() {
            self.front.note(Kind::Read, offset, bytes);
        }
        self.front.end_inline(inline, read.map(|_| bytes));
        read
    }

    /// Fills `buf` from `offset`, zeroes included, and gives it back.
    pub async fn read(&self, offset: u64, buf: IoBuf, hints: Hints) -> (Result<ReadKind, Error>, IoBuf) {
        self.read_paced(offset, buf, hints, &Unpaced).await
    }

    /// As [`Disk::read`], in steps. To limits, figures and traces it is one request.
    pub async fn read_paced(
        &self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
        pace: &impl Pace,
    ) -> (Result<ReadKind, Error>, IoBuf) {
        let bytes = buf.len() as u64;
        self.front.note(Kind::Read, offset, bytes);
        let inside = self.front.begin(Kind::Read, Charge::Whole(Request::read(bytes)), pace).await;
        let (result, buf) = self.read_in_steps(offset, buf, hints, pace).await;
        (inside.end(result, bytes), buf)
    }

    /// Writes `data`; with `fua`, or in a writethrough mode, durable when it ends.
    pub async fn write(&self, offset: u64, data: IoVec, fua: bool, hints: Hints) -> Result<(), Error> {
        self.write_paced(offset, data, fua, hints, &Unpaced).await
    }

    /// As [`Disk::write`], in steps. To limits, figures and traces it is one request.
    pub async fn write_paced(
        &self,
        offset: u64,
        data: IoVec,
        fua: bool,
        hints: Hints,
        pace: &impl Pace,
    ) -> Result<(), Error> {
        let bytes = data.len() as u64;
        self.front.note(Kind::Write, offset, bytes);
        let inside = self.front.begin(Kind::Write, Charge::Whole(Request::write(bytes)), pace).await;
        inside.end(self.write_inside(offset, data, fua, hints, pace).await, bytes)
    }

    async fn write_inside(
        &self,
        offset: u64,
        data: IoVec,
        fua: bool,
        hints: Hints,
        pace: &impl Pace,
    ) -> Result<(), Error> {
        let runtime = self.writable_now()?;
        if runtime.detect_zeroes != DetectZeroes::Off && data.is_zero() {
            let unmap = runtime.detect_zeroes == DetectZeroes::Unmap;
            let options = ZeroOptions { unmap, fast_only: false };
            return self.zero_inside(offset, data.len() as u64, options, fua).await;
        }
        self.write_in_steps(offset, data, hints, pace).await?;
        self.settle(fua).await
    }

    /// Makes the range read as zeroes. Under limits it costs as much as writing them.
    pub async fn zero(
        &self,
        offset: u64,
        len: u64,
        options: ZeroOptions,
        fua: bool,
        pace: &impl Pace,
    ) -> Result<(), Error> {
        self.front.note(Kind::Zero, offset, len);
        let inside = self.front.begin(Kind::Zero, Charge::Pieces(Request::write(len)), pace).await;
        inside.end(self.zero_inside(offset, len, options, fua).await, len)
    }

    async fn zero_inside(&self, offset: u64, len: u64, options: ZeroOptions, fua: bool) -> Result<(), Error> {
        // Space goes back only where the disk was opened so that it may.
        let unmap = options.unmap && self.writable_now()?.discard == Discard::Unmap;
        let options = ZeroOptions { unmap, ..options };
        self.layers().top.zero(offset, len, options).await?;
        self.settle(fua).await
    }

    /// The range is of no use any more. What it costs under limits is an option
    /// ([`DiscardCharge`]).
    pub async fn discard(&self, offset: u64, len: u64, fua: bool, pace: &impl Pace) -> Result<(), Error> {
        self.front.note(Kind::Discard, offset, len);
        let inside = self.front.begin(Kind::Discard, self.charge_of_discard(len), pace).await;
        inside.end(self.discard_inside(offset, len, fua).await, len)
    }

    async fn discard_inside(&self, offset: u64, len: u64, fua: bool) -> Result<(), Error> {
        match self.writable_now()?.discard {
            Discard::Unmap => self.layers().top.discard(offset, len).await?,
            Discard::Ignore => self.check_inside(offset, len)?,
        }
        self.settle(fua).await
    }

    fn charge_of_discard(&self, len: u64) -> Charge {
        let cluster_bytes = self.root().capabilities().cluster_bytes.unwrap_or(RAW_DISCARD_BYTES_MAX);
        match self.discard_charge {
            DiscardCharge::Cluster => Charge::Whole(Request::write(len.min(cluster_bytes))),
            DiscardCharge::Full => Charge::Pieces(Request::write(len)),
            DiscardCharge::Free => Charge::Free,
        }
    }

    /// What the block below would say of the whole range.
    fn check_inside(&self, offset: u64, len: u64) -> Result<(), Error> {
        let size = self.size();
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(Blame::new(self.root().name()).past_end(offset, len, size)),
        }
    }

    /// The options in force, if they permit writes.
    fn writable_now(&self) -> Result<RuntimeOptions, Error> {
        let runtime = self.runtime.get();
        let refused =
            |detail: &str| Error::Refused { image: self.root().name().into(), detail: detail.into() };
        if runtime.read_only {
            return Err(refused("the disk is read-only"));
        }
        if !self.is_active() {
            return Err(refused("the disk is inactive: another process may write it (blockdev-set-active)"));
        }
        Ok(runtime)
    }

    /// Makes everything durable that completed before this call.
    pub async fn flush(&self) -> Result<(), Error> {
        self.front.note(Kind::Flush, 0, 0);
        let inside = self.front.begin(Kind::Flush, Charge::Free, &Unpaced).await;
        inside.end(self.flush_inside().await, 0)
    }

    /// The next program that opens the disk finds all that completed before this call, also if this process is killed
    /// ([`qcow2::Qcow2::hand_to_kernel`]). A raw disk keeps nothing in memory.
    pub async fn hand_to_kernel(&self) -> Result<(), Error> {
        match self.image() {
            Some(image) => image.hand_to_kernel().await,
            None => Ok(()),
        }
    }

    /// Makes durable what was written before an overlay was put over the disk: its backing file is then
    /// complete for every reader. Costs nothing if there was a flush since. It is no request.
    pub async fn flush_below(&self) -> Result<(), Error> {
        self.layers().flush_below().await
    }

    /// As [`Disk::flush`], but no request: it waits for none that is kept out, and no figure knows of it.
    pub async fn flush_inside(&self) -> Result<(), Error> {
        self.layers().flush().await
    }

    async fn settle(&self, fua: bool) -> Result<(), Error> {
        if fua || self.runtime.get().writethrough { self.flush_inside().await } else { Ok(()) }
    }

    /// The state of the disk at `offset`, for at most `len` bytes. Costs nothing under limits.
    pub async fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Error> {
        self.front.note(Kind::Status, offset, len);
        let inside = self.front.begin(Kind::Status, Charge::Free, &Unpaced).await;
        let status = self.layers().top.block_status(offset, len).await;
        let bytes = status.as_ref().map_or(0, |status| status.len);
        inside.end(status, bytes)
    }

    /// Brings the range into the page cache, and its map into memory, where that means something.
    pub async fn prefetch(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.prefetch_paced(offset, len, &Unpaced).await
    }

    /// As [`Disk::prefetch`], in steps.
    pub async fn prefetch_paced(&self, offset: u64, len: u64, pace: &impl Pace) -> Result<(), Error> {
        let end = offset.saturating_add(len).min(self.size());
        let mut at = offset;
        while at < end {
            let part = (end - at).min(PREFETCH_BYTES);
            // Less than PREFETCH_BYTES, which fits any pointer width.
            self.read_paced(at, IoBuf::uninit(part as usize), Hints::NONE, pace).await.0?;
            at += part;
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // What runs beside the requests ends with the disk.
        self.runtime.tell();
    }
}

/// How a trace names the disk.
fn traced(path: &Path, root: &dyn Block) -> TraceDisk {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = real.to_string_lossy().into_owned();
    let end = (0..=NAME_BYTES_MAX.min(name.len())).rev().find(|&end| name.is_char_boundary(end));
    name.truncate(end.unwrap_or(0));
    let cluster_bytes = root.capabilities().cluster_bytes.unwrap_or(0);
    TraceDisk { name, bytes: root.size(), cluster_bytes }
}

impl Disk {
    async fn read_in_steps(
        &self,
        offset: u64,
        mut buf: IoBuf,
        hints: Hints,
        pace: &impl Pace,
    ) -> (Result<ReadKind, Error>, IoBuf) {
        let len = buf.len() as u64;
        let first = step_bytes(pace, offset, len);
        pace.step(first).await;
        let layers = self.layers();
        if first == len {
            return layers.top.read(offset, buf, hints).await;
        }
        let (mut done, mut step, mut kind) = (0, first, ReadKind::Zeroes);
        loop {
            // Both fit a length in memory, `len`.
            let mut part = buf.split_off(done as usize);
            let rest = part.split_off(step as usize);
            let (result, part) = layers.top.read(offset + done, part, hints).await;
            buf.rejoin(part);
            buf.rejoin(rest);
            match result {
                Ok(ReadKind::Data) => kind = ReadKind::Data,
                Ok(ReadKind::Zeroes) => {}
                Err(error) => return (Err(error), buf),
            }
            done += step;
            if done == len {
                return (Ok(kind), buf);
            }
            step = step_bytes(pace, offset + done, len - done);
            pace.step(step).await;
        }
    }

    async fn write_in_steps(
        &self,
        offset: u64,
        data: IoVec,
        hints: Hints,
        pace: &impl Pace,
    ) -> Result<(), Error> {
        let len = data.len() as u64;
        // The block below looks at one step at a time.
        self.check_inside(offset, len)?;
        let layers = self.layers();
        let mut done = 0;
        while done < len {
            let step = step_bytes(pace, offset + done, len - done);
            pace.step(step).await;
            // Both fit a length in memory, `len`.
            let part =
                if step == len { data.clone() } else { data.slice(done as usize, (done + step) as usize) };
            layers.top.write(offset + done, part, hints).await?;
            done += step;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write of several steps that reaches past the end failed at its last step: the first ones had changed the disk.
    #[test]
    fn a_write_that_reaches_past_the_end_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        std::fs::write(&path, vec![7; 4 << 20]).unwrap();
        let mut options = DiskOptions::of_path(&path);
        options.layer.format = Some(crate::probe::Format::Raw);
        let reactor = reactor::Reactor::new(reactor::Backend::Ring).unwrap();
        reactor.run(async {
            let disk = crate::open(&options, &OpenRules::default()).await.unwrap();
            let data = IoVec::from(storage::IoBytes::zeroed(3 << 20));
            let failed = disk.write(2 << 20, data, false, Hints::NONE).await.unwrap_err();
            assert_eq!(failed.kind(), block::ErrorKind::PastEnd);
            disk.close().await.unwrap();
        });
        assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 7));
    }
}
