//! What a choice of clusters costs: arithmetic of the format, no measurement.

use qcow2::cache_sizes::CachedImage;
use serde::Serialize;

/// A small write, as file systems and databases make them.
pub const SMALL_WRITE_BYTES: u64 = 4 << 10;

/// Subclusters of a cluster with extended L2.
const SUBCLUSTERS: u64 = 32;

/// The default width of refcounts: 16 bits.
const REFCOUNT_BYTES: u64 = 2;

/// Bits a packed cluster takes beyond its offset (docs/internals/map-cache.md: 21.8 where the offset has 20).
const PACKED_BITS: u64 = 2;

/// Bits of a packed bitmap where each is different.
const PACKED_BITMAP_BITS: u64 = 32;

/// A size of clusters, with subclusters or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clusters {
    /// Bytes: a power of two.
    pub bytes: u64,
    /// Extended L2: each has 32 subclusters.
    pub extended: bool,
}

/// What they cost for a whole disk, and for one small write to new space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Costs {
    /// Bytes of a cluster.
    pub cluster_bytes: u64,
    /// Bytes of a subcluster, if there are any.
    pub subcluster_bytes: Option<u64>,
    /// The map of the whole disk, as QEMU keeps it.
    pub map_bytes_qemu: u64,
    /// The same in cowhand at worst: a full disk in random order, the bitmaps all different.
    pub map_bytes_packed_max: u64,
    /// Refcounts of a full disk.
    pub refcount_bytes: u64,
    /// What an aligned write of 4 KiB copies from the backing file.
    pub copied_bytes: u64,
    /// Space that such a write takes on a host file system that knows holes.
    pub taken_bytes: u64,
}

impl Clusters {
    /// As `-o` takes it.
    pub fn options(self) -> String {
        let extended = if self.extended { "on" } else { "off" };
        format!("cluster_size={}k,extended_l2={extended}", self.bytes >> 10)
    }

    /// Bytes of the L2 tables that map a disk, as they lie in the file and in QEMU's memory.
    pub fn map_bytes(self, disk_bytes: u64) -> u64 {
        self.cached(disk_bytes).l2_bytes_full()
    }

    /// Bytes of the L1 table of a disk: 8 for each L2 table.
    pub fn l1_bytes(self, disk_bytes: u64) -> u64 {
        disk_bytes.div_ceil(self.bytes).div_ceil(self.bytes / self.entry_bytes()) * 8
    }

    /// What an aligned small write to new space copies if there is a backing file.
    pub fn copied_bytes(self) -> u64 {
        self.unit_bytes().saturating_sub(SMALL_WRITE_BYTES)
    }

    /// All figures of a disk. `copies`: there is a backing file.
    pub fn costs(self, disk_bytes: u64, copies: bool) -> Costs {
        let clusters = disk_bytes.div_ceil(self.bytes);
        let copied_bytes = if copies { self.copied_bytes() } else { 0 };
        Costs {
            cluster_bytes: self.bytes,
            subcluster_bytes: self.extended.then(|| self.unit_bytes()),
            map_bytes_qemu: self.map_bytes(disk_bytes),
            map_bytes_packed_max: self.packed_bytes_max(clusters),
            refcount_bytes: clusters * REFCOUNT_BYTES,
            copied_bytes,
            taken_bytes: SMALL_WRITE_BYTES + copied_bytes,
        }
    }

    /// The offset of one cluster among all, and what packing adds.
    fn packed_bytes_max(self, clusters: u64) -> u64 {
        let offset_bits = u64::from(u64::BITS - clusters.saturating_sub(1).leading_zeros());
        let bitmap_bits = if self.extended { PACKED_BITMAP_BITS } else { 0 };
        // Below 2^42 clusters, by the limit on L1 tables.
        clusters.saturating_mul(offset_bits + PACKED_BITS + bitmap_bits).div_ceil(8)
    }

    /// What is allocated at once.
    fn unit_bytes(self) -> u64 {
        if self.extended { self.bytes / SUBCLUSTERS } else { self.bytes }
    }

    fn entry_bytes(self) -> u64 {
        if self.extended { 16 } else { 8 }
    }

    fn cached(self, disk_bytes: u64) -> CachedImage {
        CachedImage { disk_bytes, cluster_bytes: self.bytes, l2_table_entry_bytes: self.entry_bytes() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_those_of_the_documents() {
        let standard = Clusters { bytes: 64 << 10, extended: false }.costs(40 << 30, true);
        assert_eq!(standard.map_bytes_qemu, 5 << 20);
        // Measured: 1,788,832.
        assert_eq!(standard.map_bytes_packed_max, 655_360 * 22 / 8);
        assert_eq!((standard.copied_bytes, standard.taken_bytes), (60 << 10, 64 << 10));
        let extended = Clusters { bytes: 128 << 10, extended: true }.costs(40 << 30, true);
        assert_eq!(extended.map_bytes_qemu, 5 << 20);
        assert_eq!(extended.subcluster_bytes, Some(4 << 10));
        assert_eq!((extended.copied_bytes, extended.taken_bytes), (0, 4 << 10));
        assert_eq!(extended.refcount_bytes, 327_680 * 2);
    }

    #[test]
    fn without_an_image_below_nothing_is_copied_or_wasted() {
        let large = Clusters { bytes: 2 << 20, extended: false }.costs(1 << 40, false);
        assert_eq!((large.copied_bytes, large.taken_bytes), (0, 4 << 10));
    }
}
