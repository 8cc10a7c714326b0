//! An open image: what all requests share.

use std::sync::Arc;

use block::ReadKind;
use map_cache::Charge;
use qcow2_layout::{BitmapFlags, Geometry, Header, Version};
use storage::{IoBuf, IoVec, Storage};
use sync::atomic::{AtomicU64, Ordering};
use sync::{OnceLock, RwLock};

use crate::below::Below;
use crate::bitmap::Bitmap;
use crate::cache_sizes::CacheSizes;
use crate::chain::Chain;
use crate::compressed::Decompressed;
use crate::gate::Pass;
use crate::header_update::FileHeader;
use crate::map::Map;
use crate::medium::Medium;
use crate::options::{DiscardOptions, Options};
use crate::space::Space;
use crate::turns::Turns;
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

/// The state of an open image: parts, each with a law of its own. A part takes those that it needs as arguments; the
/// arrows between them point from the later ones here to the earlier ones.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) medium: Medium,
    pub(crate) header: FileHeader,
    pub(crate) map: Map,
    pub(crate) space: Space,
    pub(crate) turns: Turns,
    pub(crate) decompressed: Decompressed,
    pub(crate) backing: Option<Below>,
    /// Data of this image, or of a block below, may be in memory.
    pub(crate) has_cached_data: bool,
    /// The map of all that lies below.
    pub(crate) chain: OnceLock<Option<Box<Chain>>>,
    pub(crate) options: Options,
    /// Those of the options that can change.
    pub(crate) discards: RwLock<DiscardOptions>,
    /// Of the disk, in bytes.
    pub(crate) size: AtomicU64,
    /// What is in memory as a whole as long as the image is open: [`Inner::count_tables`] keeps it true.
    pub(crate) tables_charge: Charge,
}

impl Qcow2 {
    /// The guest disk's size in bytes.
    pub fn size(&self) -> u64 {
        self.inner.size()
    }

    /// Sizes that follow from the header.
    pub fn geometry(&self) -> Geometry {
        self.inner.medium.geometry
    }

    /// The image file.
    pub fn file(&self) -> &Arc<dyn Storage> {
        &self.inner.medium.file
    }

    /// The cache sizes in use.
    pub fn cache_sizes(&self) -> CacheSizes {
        *self.inner.map.cache_sizes.read()
    }

    /// A copy of the header as it is in the file.
    pub async fn header(&self) -> Header {
        self.inner.header.lock().await.clone()
    }

    /// The bitmaps whose content can be trusted: those that were stored by whoever wrote to the image
    /// last. Reads the directory.
    pub async fn bitmaps(&self) -> Result<Vec<Bitmap>, Error> {
        let entries = crate::bitmap::list(&*self.inner.medium.file, &*self.inner.header.lock().await).await?;
        let stored = entries.into_iter().filter(|entry| !entry.flags.contains(BitmapFlags::IN_USE));
        let bitmap = |entry| {
            Bitmap::new(entry, Arc::clone(&self.inner.medium.file), self.inner.medium.geometry, self.size())
        };
        Ok(stored.map(bitmap).collect())
    }

    /// Whether the disk was changed since it was opened, so that bitmaps that record changes are out
    /// of date.
    pub fn was_changed(&self) -> bool {
        self.inner.header.announced.load(Ordering::Acquire)
    }

    /// Names of the persistent bitmaps that the first change made here put out of date; empty before it.
    pub fn bitmaps_out_of_date(&self) -> Vec<String> {
        self.inner.header.bitmaps_out_of_date.lock().iter().cloned().collect()
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
        if discards.discard_no_unref && self.inner.medium.geometry.version == Version::V2 {
            return Err(self.inner.medium.blame.invalid(NO_UNREF_NEEDS_V3));
        }
        *self.inner.discards.write() = discards;
        Ok(())
    }

    /// Drops clean map slices and refcount blocks that were not used since the last call
    /// (`cache-clean-interval`). Returns how many went.
    pub fn clean_cache(&self) -> usize {
        let below = self.inner.chain_if_made().map_or(0, Chain::clean);
        self.inner.map.cache.clean() + below + self.inner.space.refcounts.clean()
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
        self.inner.map.cache.pack_idle();
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
    /// The map of what lies below, if anybody has asked it yet.
    pub(crate) fn chain_if_made(&self) -> Option<&Chain> {
        self.chain.get()?.as_deref()
    }

    /// Tells the budget what L1, the refcount table and the places of all metadata take. After opening and with each commit:
    /// in between they grow by what one commit brings.
    pub(crate) fn count_tables(&self) {
        let bytes = self.map.l1.footprint()
            + self.space.refcounts.table.read().footprint()
            + self.medium.overlap.footprint();
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
            _ => Err(self.medium.blame.past_end(offset, len, self.size())),
        }
    }

    /// For a change that has entered, what it asked before: while it waited at the gate the disk may have become smaller, and a
    /// snapshot may have left the medium with another header than memory. Neither happens while somebody is inside.
    pub(crate) fn check_inside(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.medium.check_not_stopped()?;
        self.check_range(offset, len)
    }

    /// Whether the image takes changes now.
    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        if !self.options.writable {
            return Err(self.medium.blame.refused("the image is opened read-only"));
        }
        self.medium.check_not_stopped()?;
        if self.medium.health.is_corrupt() {
            return Err(self.medium.blame.refused(
                "the image is marked corrupt: no more writes; repair it with `cowhand check -r all`",
            ));
        }
        Ok(())
    }

    /// Waits for the right to use the map and the clusters it names.
    pub(crate) async fn enter(&self) -> Result<Pass<'_>, Error> {
        self.turns.gate.enter().await.ok_or_else(|| self.medium.blame.refused("the image is closed"))
    }

    /// Passes `result` on; if it tells of corruption, the header tells of it too from now on.
    pub(crate) async fn reporting<T>(self: &Arc<Self>, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(Error::Corrupt { .. }) = &result
            && self.medium.health.is_corrupt()
        {
            self.mark_corrupt().await;
        }
        result
    }

    /// What the header must say before the first change of the image: with lazy refcounts the dirty
    /// bit, for bitmaps that they are out of date from now on. Durable when this returns, with everything
    /// that was read when the image was opened.
    #[inline]
    pub(crate) async fn announce(self: &Arc<Self>) -> Result<(), Error> {
        if self.header.announced.load(Ordering::Acquire) {
            return Ok(());
        }
        let image = Arc::clone(self);
        self.medium
            .to_the_end(async move {
                let _pass = image.enter().await?;
                image.header.announce_now(&image.medium).await
            })
            .await
    }

    /// Sets the corrupt bit, once: whoever opens the image next must know.
    pub(crate) async fn mark_corrupt(self: &Arc<Self>) {
        if !self.options.writable || self.header.corrupt_marked.swap(true, Ordering::AcqRel) {
            return;
        }
        let image = Arc::clone(self);
        let marked =
            self.medium.to_the_end(async move { image.header.mark_corrupt_now(&image.medium).await });
        if let Err(error) = marked.await {
            tracing::error!("cannot set the corrupt bit: {error}");
        }
    }
}
