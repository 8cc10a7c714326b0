//! What an open image does and holds, for people and programs that watch it.

use map_cache::Counters;
use sync::atomic::Ordering;

use crate::cache_sizes::CacheSizes;
use crate::chain::{Chain, ChainStatus};
use crate::health::Corruption;
use crate::image::Qcow2;

/// What an open image does and holds, for people and programs that watch it.
#[derive(Clone, Copy, Debug)]
pub struct Status {
    /// Counters of the map cache.
    pub map: Counters,
    /// The map of the layers below, once it was needed.
    pub chain: Option<ChainStatus>,
    /// The cache sizes in use.
    pub cache_sizes: CacheSizes,
    /// Bytes of the disk that the map entries in memory cover, at most.
    pub covered_bytes: u64,
    /// Bytes of memory in the refcount cache.
    pub refcount_bytes: u64,
    /// Bytes of memory in what is known of free clusters.
    pub free_space_bytes: u64,
    /// Bytes of memory in what is there as a whole: L1, the refcount table, the places of all metadata.
    pub tables_bytes: u64,
    /// Bytes of memory that the caches and tables of all images of the process take ...
    pub budget_used_bytes: u64,
    /// ... and may take.
    pub budget_bytes_max: u64,
    /// Clusters below the end of the file that are known to be free.
    pub free_clusters: u64,
    /// Clusters leaked because giving them back failed.
    pub leaked_clusters: u64,
    /// How often bitmaps could not be stored, or their record be made, for want of room.
    pub bitmaps_put_off: u64,
    /// The corrupt bit was set since the image was opened.
    pub corrupt: bool,
}

impl Qcow2 {
    /// In what the image was found to contradict itself since it was opened. Given once.
    pub fn news_of_corruption(&self) -> Option<Corruption> {
        self.inner.medium.health.take_news()
    }

    /// Whether [`Self::news_of_corruption`] has something to give. Costs nothing.
    pub fn has_news_of_corruption(&self) -> bool {
        self.inner.medium.health.has_news()
    }

    /// What the image does and holds.
    pub fn status(&self) -> Status {
        let map = self.inner.map.cache.counters();
        let covered = (map.resident_slices << self.inner.map.shape.entry_bits())
            << self.inner.medium.geometry.cluster_bits;
        let chain = self.inner.ask_chain(Chain::status);
        let (free_clusters, free_space_bytes) = {
            let allocator = self.inner.space.allocator.lock();
            (allocator.free_clusters(), allocator.memory_bytes())
        };
        Status {
            map,
            chain,
            cache_sizes: self.cache_sizes(),
            covered_bytes: covered.max(chain.map_or(0, |chain| chain.covered_bytes)).min(self.size()),
            refcount_bytes: self.inner.space.refcounts.resident_bytes(),
            free_space_bytes,
            tables_bytes: self.inner.tables_charge.bytes(),
            budget_used_bytes: self.inner.map.budget.used_bytes(),
            budget_bytes_max: self.inner.map.budget.bytes_max(),
            free_clusters,
            leaked_clusters: self.inner.space.frees.leaked(),
            bitmaps_put_off: self.inner.tracking.put_off.load(Ordering::Relaxed),
            corrupt: self.inner.medium.health.is_corrupt(),
        }
    }

    /// Whether the image was found corrupt: [`Status::corrupt`] by itself.
    pub fn is_corrupt(&self) -> bool {
        self.inner.medium.health.is_corrupt()
    }
}
