//! Other cache sizes for an image that is open.

use std::sync::Arc;

use block::BlockFuture;
use qcow2_layout::Geometry;

use crate::Error;
use crate::cache_sizes::{CacheRequest, CacheSizes, CachedImage, cache_sizes, l2_ceiling};
use crate::image::{Inner, Qcow2};

/// What cache sizes depend on.
pub(crate) fn cached_image(disk_bytes: u64, geometry: &Geometry) -> CachedImage {
    CachedImage {
        disk_bytes,
        cluster_bytes: geometry.cluster_size(),
        l2_table_entry_bytes: geometry.l2_entry_bytes(),
    }
}

impl Qcow2 {
    /// Puts the sizes that `request` means for this image in force, and says what they are. What is dirty is
    /// written first. A new `l2-cache-entry-size` empties the map, and requests wait meanwhile.
    ///
    /// # Errors
    /// When the request contradicts itself or the image, or writing fails: then the old sizes stay.
    pub fn set_caches(&self, request: CacheRequest) -> BlockFuture<'_, Result<CacheSizes, Error>> {
        Box::pin(async move {
            let image = Arc::clone(&self.inner);
            self.inner.medium.to_the_end(async move { image.set_caches(request).await }).await
        })
    }
}

impl Inner {
    async fn set_caches(self: Arc<Self>, request: CacheRequest) -> Result<CacheSizes, Error> {
        let _managing = self.turns.managing.lock().await;
        // Refuses when the image was closed meanwhile.
        drop(self.enter().await?);
        let image = cached_image(self.size(), &self.medium.geometry);
        let sizes =
            cache_sizes(&request, &image).map_err(|error| self.medium.blame.invalid(error.to_string()))?;
        if sizes.l2_entry_bytes == self.map.shape.slice_bytes() as u64 {
            self.flush().await?;
        } else if self.options.writable {
            let _pause = self.pause().await?;
            self.cut_anew(sizes.l2_entry_bytes)?;
        } else {
            let _closed = self.turns.gate.close().await;
            self.cut_anew(sizes.l2_entry_bytes)?;
        }
        let ceiling = l2_ceiling(&request, &sizes);
        self.map.cache.set_bytes_max(ceiling);
        self.ask_chain(|chain| chain.set_bytes_max(ceiling));
        self.space.refcounts.set_blocks_max(usize::try_from(sizes.refcount_count).unwrap_or(usize::MAX));
        *self.map.cache_sizes.write() = sizes;
        Ok(sizes)
    }

    /// Cuts L2 tables into slices of `slice_bytes`. No request is in flight, and nothing is dirty.
    fn cut_anew(&self, slice_bytes: u64) -> Result<(), Error> {
        self.map.cache.clear();
        let per_table = self.medium.geometry.cluster_size() / slice_bytes;
        if !self.map.cache.reshape(per_table as usize) {
            return Err(self.medium.blame.refused("map slices that cannot be written keep their size"));
        }
        self.map.shape.set_slice_bytes(slice_bytes);
        Ok(())
    }
}
