//! How large the file of a new image will be: the plan of [`super::create`], asked and not carried out.

use qcow2_layout::{BitmapEntry, Version};

use super::plan::Plan;
use super::{CreateError, CreateOptions, Preallocation};

/// Sizes of an image's file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSizes {
    /// With what is to be in it. The metadata is that of a full disk, so this is never too little.
    pub required: u64,
    /// Once every cluster of the disk was written.
    pub fully_allocated: u64,
}

/// What a new image will hold at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing.
    Empty,
    /// The content of another disk, which has data in so many bytes of whole clusters ([`DataClusters`]).
    Copied {
        /// Bytes of those clusters.
        data_bytes: u64,
    },
}

impl CreateOptions {
    /// Sizes of the file that these options make. The data of an external data file is counted as if it were inside.
    /// Where there is a backing file, it is unknown how much of a copied disk it holds: all is counted.
    ///
    /// # Errors
    /// For options that [`super::create`] refuses.
    pub fn measure(&self, content: Content) -> Result<FileSizes, CreateError> {
        let planned = self.plan()?;
        let mut geometry = planned.geometry;
        geometry.external_data = false;
        let l1_entries = geometry.l1_entries_for(planned.size);
        let mut full = Plan::begin(geometry, Preallocation::Full, planned.size, l1_entries);
        full.luks_clusters = planned.luks_clusters;
        full.place_refcounts();
        let all = full.data_clusters * full.cluster_size();
        let data_bytes = match (self.preallocation, content) {
            (Preallocation::Falloc | Preallocation::Full, _) => all,
            (_, Content::Copied { .. }) if self.backing_file.is_some() => all,
            (_, Content::Copied { data_bytes }) => data_bytes.min(all),
            (_, Content::Empty) => 0,
        };
        Ok(FileSizes { required: full.bytes() - all + data_bytes, fully_allocated: full.bytes() })
    }

    /// Bytes that the persistent bitmaps of a disk take in the file of its copy, all their bits stored. `bitmaps` are
    /// names, and the bytes of the disk that one bit stands for. `None` for a version that has no bitmaps.
    pub fn measure_bitmaps<'a>(&self, bitmaps: impl Iterator<Item = (&'a str, u64)>) -> Option<u64> {
        if self.version < Version::V3 {
            return None;
        }
        let (mut directory, mut stored) = (0, 0);
        for (name, granularity_bytes) in bitmaps {
            let bytes = self.size.div_ceil(granularity_bytes).div_ceil(8);
            let clusters = bytes.div_ceil(self.cluster_size);
            stored += clusters * self.cluster_size + (clusters * 8).next_multiple_of(self.cluster_size);
            directory += BitmapEntry::encoded_bytes(name, 0);
        }
        Some(stored + directory.next_multiple_of(self.cluster_size))
    }
}

/// Counts the clusters of an image to be that hold data, where the extents of a disk come one by one.
#[derive(Clone, Copy, Debug)]
pub struct DataClusters {
    cluster_bytes: u64,
    /// What lies before this is counted.
    counted_to: u64,
    bytes: u64,
}

impl DataClusters {
    /// None yet. `cluster_bytes` is a power of two.
    pub fn new(cluster_bytes: u64) -> Self {
        Self { cluster_bytes, counted_to: 0, bytes: 0 }
    }

    /// The disk has data here. Extents come in ascending order.
    pub fn add(&mut self, offset: u64, len: u64) {
        let start = (offset - offset % self.cluster_bytes).max(self.counted_to);
        let end = offset.saturating_add(len).div_ceil(self.cluster_bytes).saturating_mul(self.cluster_bytes);
        self.bytes += end.saturating_sub(start);
        self.counted_to = end.max(self.counted_to);
    }

    /// From where on an extent can still add to the count.
    pub fn counted_to(&self) -> u64 {
        self.counted_to
    }

    /// Bytes of all clusters with data.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_counted_once_however_many_extents_lie_in_it() {
        let mut clusters = DataClusters::new(4096);
        for (offset, len) in [(100, 10), (200, 3000), (4000, 97), (8192, 1), (20_000, 8192)] {
            clusters.add(offset, len);
        }
        assert_eq!(clusters.bytes(), (1 + 1 + 1 + 3) * 4096);
        assert_eq!(clusters.counted_to(), 28_672);
    }

    #[test]
    fn what_is_fully_allocated_is_what_a_preallocated_image_is_planned_to_be() {
        for cluster_size in [512, 65536, 2 << 20] {
            for (refcount_bits, extended_l2) in [(1, false), (16, cluster_size > 512), (64, false)] {
                for size in [512, (1 << 30) + 512, 1 << 36] {
                    let options = CreateOptions {
                        size,
                        cluster_size,
                        refcount_bits,
                        extended_l2,
                        preallocation: Preallocation::Full,
                        ..CreateOptions::default()
                    };
                    let Ok(plan) = options.plan() else { continue };
                    let sizes = options.measure(Content::Empty).unwrap();
                    assert_eq!(sizes.fully_allocated, plan.bytes());
                    assert_eq!(sizes.required, plan.bytes());
                }
            }
        }
    }

    #[test]
    fn bitmaps_take_clusters_for_bits_tables_and_one_directory() {
        let options = CreateOptions { size: 1 << 40, ..CreateOptions::default() };
        // 2 MiB of bits in 32 clusters, a table in one, and a directory.
        let bitmaps = [("a", 65536), ("b", 65536)];
        assert_eq!(options.measure_bitmaps(bitmaps.into_iter()), Some((2 * 33 + 1) << 16));
        assert_eq!(options.measure_bitmaps(std::iter::empty()), Some(0));
        let old = CreateOptions { version: Version::V2, ..options };
        assert_eq!(old.measure_bitmaps(bitmaps.into_iter()), None);
    }
}
