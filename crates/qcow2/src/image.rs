//! An open image: what all requests share.

use std::collections::BTreeSet;
use std::sync::Arc;

use block::Blame;
use block::ReadKind;
use map_cache::{Budget, Charge, MapCache};
use qcow2_layout::{BitmapFlags, Compression, Geometry, Header, Version};
use storage::{IoBuf, IoVec, Storage};
use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::{ArcSwapOption, AsyncMutex, Mutex, RwLock};

use crate::allocator::Allocator;
use crate::below::Lower;
use crate::bitmap::Bitmap;
use crate::cache_sizes::CacheSizes;
use crate::chain::Chain;
use crate::commit::Committer;
use crate::compressed::Decompressed;
use crate::free::Frees;
use crate::gate::{Gate, Pass};
use crate::growth::Growth;
use crate::host::Host;
use crate::in_flight::InFlight;
use crate::l1::L1Table;
use crate::options::{DiscardOptions, Options};
use crate::overlap::MetadataMap;
use crate::refcount::Refcounts;
use crate::reserve::Reserve;
use crate::room::Room;
use crate::shape::SliceShape;
use crate::waiting::Waiting;
use crate::{Error, ZeroOptions};

/// An open qcow2 image. Clones are handles of the same image; every method may be called from any
/// thread, many at a time. Futures are bound to the thread that made them.
///
/// Requests may be of any alignment and must lie inside [`Qcow2::size`]. A request that is dropped
/// before its end may or may not have happened.
#[derive(Clone, Debug)]
pub struct Qcow2 {
    pub(crate) inner: Arc<Inner>,
}

/// A version 2 image cannot say "zeroes here, and the place is kept".
pub(crate) const NO_UNREF_NEEDS_V3: &str = "discard-no-unref=on needs a version 3 image (compat=1.1)";

/// The state of an open image.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) blame: Blame,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) file: Arc<dyn Storage>,
    /// Where guest data lies: the image file itself or the external data file.
    pub(crate) data: Arc<dyn Storage>,
    /// All that lies below; another list is put there only by [`crate::HeldStill`].
    pub(crate) below: ArcSwapOption<Lower>,
    pub(crate) options: Options,
    /// Those of the options that can change.
    pub(crate) discards: RwLock<DiscardOptions>,
    pub(crate) cache_sizes: RwLock<CacheSizes>,
    pub(crate) geometry: Geometry,
    pub(crate) compression: Compression,
    /// The external data file can be read on its own: what reads as zeroes must be zeroes there.
    pub(crate) raw_data: bool,
    /// Refcounts are written at the close only. Changes in a pause.
    pub(crate) lazy_refcounts: AtomicBool,
    pub(crate) size: AtomicU64,
    /// The header as it is in the file; held while the file's is changed.
    pub(crate) header: AsyncMutex<Header>,
    pub(crate) l1: L1Table,
    pub(crate) cache: MapCache<Error>,
    /// What this image's caches share with those of others.
    pub(crate) budget: Arc<Budget>,
    /// What is in memory as a whole as long as the image is open, in that budget: [`Inner::count_tables`] keeps it true.
    pub(crate) tables_charge: Charge,
    pub(crate) shape: SliceShape,
    pub(crate) refcounts: Refcounts,
    pub(crate) allocator: Mutex<Allocator>,
    /// What the allocator takes of the memory for all caches, in bytes.
    pub(crate) allocator_charge: Mutex<Option<(u64, Charge)>>,
    pub(crate) reserve: Reserve,
    pub(crate) growth: Growth,
    pub(crate) room: Room,
    /// Held while a refcount block is made.
    pub(crate) making_blocks: AsyncMutex<()>,
    pub(crate) overlap: MetadataMap,
    pub(crate) gate: Gate,
    /// Guest subclusters (clusters, where there are none) whose mapping is being changed: all of a cluster while
    /// its place changes, those of one write while it stays.
    pub(crate) subclusters: InFlight,
    /// L2 tables that are being made, by L1 index.
    pub(crate) tables: InFlight,
    /// Bytes of a raw data file that are being zeroed, or written in place.
    pub(crate) raw_ranges: InFlight,
    pub(crate) frees: Frees,
    pub(crate) waiting: Waiting,
    pub(crate) committer: Committer,
    pub(crate) decompressed: Decompressed,
    /// Nobody needs what is read ahead any more.
    pub(crate) closing: AtomicBool,
    /// What must be in the header before the first change of the image is there.
    pub(crate) announced: AtomicBool,
    /// Bitmaps that our first change put out of date, by name. Only `announce` adds to them, under the header's lock.
    pub(crate) bitmaps_out_of_date: Mutex<BTreeSet<String>>,
    /// Metadata was caught lying: no more writes.
    pub(crate) corrupt: AtomicBool,
    /// The header says so, or should.
    pub(crate) corrupt_marked: AtomicBool,
    /// The medium may have another header than memory: no more writes.
    pub(crate) stopped: AtomicBool,
    /// Held by whoever changes the disk as a whole: size, snapshots, its end.
    pub(crate) managing: AsyncMutex<()>,
}

impl Qcow2 {
    /// The guest disk's size in bytes.
    pub fn size(&self) -> u64 {
        self.inner.size()
    }

    /// Sizes that follow from the header.
    pub fn geometry(&self) -> Geometry {
        self.inner.geometry
    }

    /// The image file.
    pub fn file(&self) -> &Arc<dyn Storage> {
        &self.inner.file
    }

    /// The cache sizes in use.
    pub fn cache_sizes(&self) -> CacheSizes {
        *self.inner.cache_sizes.read()
    }

    /// A copy of the header as it is in the file.
    pub async fn header(&self) -> Header {
        self.inner.header.lock().await.clone()
    }

    /// The bitmaps whose content can be trusted: those that were stored by whoever wrote to the image
    /// last. Reads the directory.
    pub async fn bitmaps(&self) -> Result<Vec<Bitmap>, Error> {
        let entries = crate::bitmap::list(&*self.inner.file, &*self.inner.header.lock().await).await?;
        let stored = entries.into_iter().filter(|entry| !entry.flags.contains(BitmapFlags::IN_USE));
        let bitmap =
            |entry| Bitmap::new(entry, Arc::clone(&self.inner.file), self.inner.geometry, self.size());
        Ok(stored.map(bitmap).collect())
    }

    /// Whether the disk was changed since it was opened, so that bitmaps that record changes are out
    /// of date.
    pub fn was_changed(&self) -> bool {
        self.inner.announced.load(Ordering::Acquire)
    }

    /// Names of the persistent bitmaps that the first change made here put out of date; empty before it.
    pub fn bitmaps_out_of_date(&self) -> Vec<String> {
        self.inner.bitmaps_out_of_date.lock().iter().cloned().collect()
    }

    /// What happens to space that is not used any more.
    pub fn discards(&self) -> DiscardOptions {
        self.inner.discards()
    }

    /// Changes what happens to space that is not used any more, for the requests that come.
    ///
    /// # Errors
    /// If `discard_no_unref` is set for an image of version 2; then nothing changes.
    pub fn set_discards(&self, discards: DiscardOptions) -> Result<(), Error> {
        if discards.discard_no_unref && self.inner.geometry.version == Version::V2 {
            return Err(self.inner.blame.invalid(NO_UNREF_NEEDS_V3));
        }
        *self.inner.discards.write() = discards;
        Ok(())
    }

    /// Drops clean map slices and refcount blocks that were not used since the last call
    /// (`cache-clean-interval`). Returns how many went.
    pub fn clean_cache(&self) -> usize {
        let below = self.inner.ask_chain(Chain::clean).unwrap_or(0);
        self.inner.cache.clean() + below + self.inner.refcounts.clean()
    }

    /// Reads into `buf` from `offset` if map and data are in memory. Costs no allocation and no lock.
    ///
    /// Zeroes leave `buf` as it was; where they are not in memory (`None`), part of it may have changed.
    pub fn try_read(&self, offset: u64, buf: &mut [u8]) -> Option<ReadKind> {
        self.inner.try_read(offset, buf)
    }

    /// Fills `buf` from `offset`, zeroes included, and gives it back.
    pub async fn read(&self, offset: u64, buf: IoBuf) -> (Result<ReadKind, Error>, IoBuf) {
        if let Err(error) = self.inner.check_range(offset, buf.len() as u64) {
            return (Err(error), buf);
        }
        let (result, buf) = {
            let _pass = match self.inner.enter().await {
                Ok(pass) => pass,
                Err(error) => return (Err(error), buf),
            };
            if let Err(error) = self.inner.check_range(offset, buf.len() as u64) {
                return (Err(error), buf);
            }
            self.inner.read(offset, buf).await
        };
        (self.inner.reporting(result).await, buf)
    }

    /// Writes `data` at `offset`. Completed means: the image's reads show it, and the next
    /// [`Qcow2::flush`] makes it durable.
    pub async fn write(&self, offset: u64, data: IoVec) -> Result<(), Error> {
        self.inner.check_range(offset, data.len() as u64)?;
        let result = self.inner.write(offset, data).await;
        self.inner.reporting(result).await
    }

    /// Makes the range read as zeroes, by metadata alone where whole subclusters allow it.
    pub async fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> Result<(), Error> {
        self.inner.check_range(offset, len)?;
        let result = self.inner.zero(offset, len, options).await;
        self.inner.reporting(result).await
    }

    /// Gives the space of the whole clusters in the range back (if the image was opened with
    /// `discard=unmap`; otherwise nothing happens). They read as zeroes afterwards.
    pub async fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.inner.check_range(offset, len)?;
        let result = self.inner.discard(offset, len).await;
        self.inner.reporting(result).await
    }

    /// Makes everything durable that completed before this call. Flushes under way at the same time
    /// share their barriers.
    pub async fn flush(&self) -> Result<(), Error> {
        let result = self.inner.flush().await;
        self.inner.reporting(result).await
    }

    /// Packs map slices that were written back and not modified since the last call, and writes metadata
    /// that waits in memory, if there is any; for a timer, so that a guest that never flushes still
    /// gets its discarded space back.
    pub async fn write_back(&self) -> Result<(), Error> {
        self.inner.cache.pack_idle();
        if self.inner.options.writable && self.inner.is_dirty() { self.flush().await } else { Ok(()) }
    }

    /// Waits for the requests inside, writes all metadata, gives freed clusters back and, with lazy
    /// refcounts, clears the dirty bit. Whatever is asked of the image afterwards fails, also if closing
    /// failed: then what was not flushed may be lost.
    pub async fn close(&self) -> Result<(), Error> {
        self.inner.close().await
    }
}

impl Inner {
    /// Tells the budget what L1, the refcount table and the places of all metadata take. After opening and with each commit:
    /// in between they grow by what one commit brings.
    pub(crate) fn count_tables(&self) {
        let bytes = self.l1.footprint() + self.refcounts.table.read().footprint() + self.overlap.footprint();
        if bytes != self.tables_charge.bytes() {
            self.tables_charge.set(bytes);
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    pub(crate) fn discards(&self) -> DiscardOptions {
        *self.discards.read()
    }

    /// Whether the range lies inside the disk. Asked before a request costs anything, and again by whoever has entered: the
    /// disk may have become smaller while the gate was closed, and keeps its size as long as somebody is inside.
    pub(crate) fn check_range(&self, offset: u64, len: u64) -> Result<(), Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size() => Ok(()),
            _ => Err(self.blame.past_end(offset, len, self.size())),
        }
    }

    /// For a change that has entered, what it asked before: while it waited at the gate the disk may have become smaller, and a
    /// snapshot may have left the medium with another header than memory. Neither happens while somebody is inside.
    pub(crate) fn check_inside(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.check_not_stopped()?;
        self.check_range(offset, len)
    }

    /// Whether the image takes changes now.
    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        if !self.options.writable {
            return Err(self.blame.refused("the image is opened read-only"));
        }
        self.check_not_stopped()?;
        if self.corrupt.load(Ordering::Relaxed) {
            return Err(self.blame.refused(
                "the image is marked corrupt: no more writes; repair it with `cowhand check -r all`",
            ));
        }
        Ok(())
    }

    /// Whether the medium is known to lead to what memory holds.
    pub(crate) fn check_not_stopped(&self) -> Result<(), Error> {
        match self.stopped.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(self.blame.refused(
                "writing the header failed and the file may have the old one or the new one: no more writes \
                 until the image is opened again",
            )),
        }
    }

    /// Waits for the right to use the map and the clusters it names.
    pub(crate) async fn enter(&self) -> Result<Pass<'_>, Error> {
        self.gate.enter().await.ok_or_else(|| self.blame.refused("the image is closed"))
    }

    /// Passes `result` on; if it tells of corruption, the header tells of it too from now on.
    pub(crate) async fn reporting<T>(self: &Arc<Self>, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(Error::Corrupt { .. }) = &result
            && self.corrupt.load(Ordering::Relaxed)
        {
            self.mark_corrupt().await;
        }
        result
    }

    /// Hands work that must run to its end to the host, and waits for its result.
    pub(crate) async fn to_the_end<T: 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + 'static,
    ) -> Result<T, Error> {
        let (done, result) = futures_channel::oneshot::channel();
        self.host.spawn(Box::pin(async move {
            // Nobody may be waiting any more; the work counts all the same.
            let _ = done.send(work.await);
        }));
        match result.await {
            Ok(result) => result,
            Err(_) => Err(self.blame.refused("the program is stopping")),
        }
    }
}
