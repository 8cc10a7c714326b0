//! What is asked of an open image: each request is checked, done, and what it says of corruption reported.

use std::sync::Arc;

use block::ReadKind;
use qcow2_layout::{BitmapFlags, Geometry, Header, Version};
use storage::{IoBuf, IoVec, Storage};
use sync::atomic::Ordering;

use crate::bitmap::Bitmap;
use crate::cache_sizes::CacheSizes;
use crate::chain::Chain;
use crate::image::Qcow2;
use crate::options::{DiscardOptions, NO_UNREF_NEEDS_V3};
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
    pub async fn header(&self) -> Header {
        self.inner.header.lock().await.clone()
    }

    /// The bitmaps whose content can be trusted: those that were stored by the last program that wrote to the
    /// image. Reads the directory.
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
        self.inner.header.prepared_for_data.load(Ordering::Acquire)
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
        let below = self.inner.ask_chain(Chain::clean).unwrap_or(0);
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
        let range = self.inner.check_range(offset, len)?;
        let result = self.inner.zero(range, options).await;
        self.inner.reporting(result).await
    }

    /// Gives the space of the whole clusters in the range back (if the image was opened with
    /// `discard=unmap`; otherwise nothing happens). They read as zeroes afterwards.
    pub async fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        let range = self.inner.check_range(offset, len)?;
        let result = self.inner.discard(range).await;
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

    /// Writes metadata that waits in memory, if there is any: whoever opens the image next finds all that completed before this call, also if
    /// this process is killed. It costs a flush where something waits, which those who wait at the same time share, and nothing elsewhere:
    /// data that was written in place is in the kernel's hands already.
    pub async fn hand_to_kernel(&self) -> Result<(), Error> {
        // In this order: what a commit took, and has not written yet, is not dirty any more.
        let waits = self.inner.is_dirty() || self.inner.turns.committer.is_running();
        if self.inner.options.writable && waits { self.flush().await } else { Ok(()) }
    }

    /// Waits for the requests inside, writes all metadata, gives freed clusters back and, with lazy
    /// refcounts, clears the dirty bit. Whatever is asked of the image afterwards fails, also if closing
    /// failed: then what was not flushed may be lost.
    pub async fn close(&self) -> Result<(), Error> {
        self.inner.close().await
    }
}
