//! What is asked of an open image: each request is checked, done, and what it says of corruption reported.

use std::sync::Arc;

use block::{BlockFuture, ReadKind};
use qcow2_layout::{BitmapEntry, BitmapFlags, Geometry, Header, Version};
use storage::{Hints, IoBuf, IoVec, Storage};

use crate::cache_sizes::CacheSizes;
use crate::image::Qcow2;
use crate::options::{DiscardOptions, NO_UNREF_NEEDS_V3};
use crate::tracking::{Bitmap, Dirtiness};
use crate::{Error, ZeroOptions};

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

    /// Whether guest data is ciphered.
    pub fn is_encrypted(&self) -> bool {
        self.inner.medium.encrypted
    }

    /// The cache sizes in use.
    pub fn cache_sizes(&self) -> CacheSizes {
        *self.inner.map.cache_sizes.read()
    }

    /// A copy of the header as it is in the file.
    pub fn header(&self) -> BlockFuture<'_, Header> {
        Box::pin(async move { self.inner.header.lock().await.clone() })
    }

    /// The bitmaps whose content can be trusted: those that are kept up to date, in the file or in memory alone, and those that were
    /// stored by the last program that wrote to the image. What is read of one is how it is then; after [`Qcow2::change_bitmap`] there is
    /// another one in its place.
    pub fn bitmaps(&self) -> Vec<Arc<Bitmap>> {
        self.inner.tracking.now().usable.clone()
    }

    /// The persistent bitmaps whose content cannot be trusted, and that can only be removed.
    pub fn inconsistent_bitmaps(&self) -> Vec<BitmapEntry> {
        let now = self.inner.tracking.now();
        let inconsistent = |entry: &&BitmapEntry| entry.flags.contains(BitmapFlags::IN_USE);
        now.entries.iter().filter(inconsistent).cloned().collect()
    }

    /// What the bitmap called `name` says of `offset`, for at most `len` bytes; `None` if there is no such bitmap, or not any more.
    ///
    /// # Errors
    /// When the range is not inside the disk, the image is closed, or bits that are not in memory cannot be read.
    pub fn bitmap_status<'a>(
        &'a self,
        name: &'a str,
        offset: u64,
        len: u64,
    ) -> BlockFuture<'a, Result<Option<Dirtiness>, Error>> {
        Box::pin(async move {
            // Bits in the file stay where they are as long as a request is inside.
            let _pass = self.inner.enter().await?;
            self.inner.check_range(offset, len).map(drop)?;
            let now = self.inner.tracking.now();
            match now.usable.iter().find(|bitmap| bitmap.name() == name) {
                Some(bitmap) => bitmap.status(offset, len).await.map(Some),
                None => Ok(None),
            }
        })
    }

    /// Whether anything was changed since the image was opened: then the file says that bitmaps which record changes are in use.
    pub fn was_changed(&self) -> bool {
        self.inner.was_changed()
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

    /// Reads into `buf` from `offset` if map and data are in memory. Costs no allocation and no lock.
    ///
    /// Zeroes leave `buf` as it was; where they are not in memory (`None`), part of it may have changed.
    pub fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> Option<ReadKind> {
        self.inner.try_read(offset, buf, hints)
    }

    /// Fills `buf` from `offset`, zeroes included, and gives it back.
    pub fn read(
        &self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(async move {
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
                self.inner.read(offset, buf, hints).await
            };
            (self.inner.reporting(result).await, buf)
        })
    }

    /// Writes `data` at `offset`. Completed means: the image's reads show it, and the next
    /// [`Qcow2::flush`] makes it durable.
    pub fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.inner.check_range(offset, data.len() as u64)?;
            let result = self.inner.write(offset, data, hints).await;
            self.inner.reporting(result).await
        })
    }

    /// Makes the range read as zeroes, by metadata alone where whole subclusters allow it. It stays so whatever is put below the image later:
    /// also zeroes over nothing are recorded, but in version 2, which cannot ([`Qcow2::await_backing`]).
    pub fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let range = self.inner.check_range(offset, len)?;
            let result = self.inner.zero(range, options).await;
            self.inner.reporting(result).await
        })
    }

    /// Gives the space of the whole clusters in the range back (if the image was opened with
    /// `discard=unmap`; otherwise nothing happens). They read as zeroes afterwards.
    pub fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let range = self.inner.check_range(offset, len)?;
            let result = self.inner.discard(range).await;
            self.inner.reporting(result).await
        })
    }

    /// Makes everything durable that completed before this call. Flushes under way at the same time
    /// share their barriers. Where no other request is inside, what was discarded is given back to the file system, too.
    pub fn flush(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let result = self.inner.flush().await;
            // Outside: those that give it back wait for everybody inside.
            if self.inner.turns.gate.is_empty() {
                self.inner.space.frees.given_back().await;
            }
            self.inner.reporting(result).await
        })
    }

    /// Packs map slices that were written back and not modified since the last call, and writes metadata
    /// that waits in memory, if there is any; for a timer, so that a guest that never flushes still
    /// gets its discarded space back.
    pub fn write_back(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.inner.map.cache.pack_idle();
            if self.inner.options.writable && self.inner.is_dirty() { self.flush().await } else { Ok(()) }
        })
    }

    /// Lets the kernel have the metadata of all that completed before this call: the next program that opens the image finds it, also if this
    /// process is killed. A power cut may lose it, as what was written to a file and not synced. Requests that wait at the same time share
    /// the work: a write of the changed entries, or, where these wait for refcounts or data (docs/internals/write-order.md), a flush. Data that was
    /// written in place is in the kernel's hands already, and costs nothing.
    pub fn hand_to_kernel(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let result = self.inner.hand_to_kernel().await;
            self.inner.reporting(result).await
        })
    }

    /// Waits until the clusters are given back that were free at the last flush: the next ones that are needed are taken from them. Waits for the
    /// requests that saw them in use.
    pub fn reclaimed(&self) -> BlockFuture<'_, ()> {
        Box::pin(async move {
            self.inner.space.frees.idle().await;
        })
    }

    /// Waits for the requests inside, writes all metadata, gives freed clusters back and, with lazy
    /// refcounts, clears the dirty bit. Whatever is asked of the image afterwards fails, also if closing
    /// failed: then what was not flushed may be lost.
    pub fn close(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move { self.inner.close().await })
    }
}
