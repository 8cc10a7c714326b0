//! The sizes that follow from a header: clusters, tables, subclusters, refcounts.

use thiserror::Error;

/// log2 of the smallest cluster: 512 bytes.
pub const CLUSTER_BITS_MIN: u32 = 9;
/// log2 of the largest cluster: 2 MiB.
pub const CLUSTER_BITS_MAX: u32 = 21;
/// log2 of the smallest cluster with extended L2 entries: 16 KiB, so that a subcluster has 512 bytes.
pub const EXTENDED_L2_CLUSTER_BITS_MIN: u32 = 14;
/// log2 of the widest refcount: 64 bits.
pub const REFCOUNT_ORDER_MAX: u32 = 6;
/// log2 of the refcount width of every version 2 image: 16 bits.
const REFCOUNT_ORDER_V2: u32 = 4;

/// Version of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// QEMU's `compat=0.10`: 72 bytes of header, 16-bit refcounts, no zero clusters, no feature bits.
    V2,
    /// QEMU's `compat=1.1`.
    V3,
}

impl Version {
    /// The number in the header.
    pub fn number(self) -> u32 {
        match self {
            Version::V2 => 2,
            Version::V3 => 3,
        }
    }
}

/// Why no image can have this geometry.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum GeometryError {
    /// Cluster size out of range.
    #[error("cluster_bits is {found}; must be {CLUSTER_BITS_MIN} to {CLUSTER_BITS_MAX}")]
    ClusterBits {
        /// The value found.
        found: u32,
    },
    /// Refcount width out of range.
    #[error("refcount_order is {found}; must be at most {REFCOUNT_ORDER_MAX}, and 4 in version 2")]
    RefcountOrder {
        /// The value found.
        found: u32,
    },
    /// Subclusters would be smaller than a sector.
    #[error("extended L2 entries with cluster_bits {found}; need at least {EXTENDED_L2_CLUSTER_BITS_MIN}")]
    ExtendedL2ClusterBits {
        /// The value found.
        found: u32,
    },
    /// Version 2 has no feature bits.
    #[error("{feature} in a version 2 image; needs version 3")]
    NeedsVersion3 {
        /// What was asked for.
        feature: &'static str,
    },
}

/// Sizes of everything in one image. Only made by [`Geometry::new`], so every field is in range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Geometry {
    /// Version of the format.
    pub version: Version,
    /// log2 of the cluster size in bytes, 9 to 21.
    pub cluster_bits: u32,
    /// log2 of the refcount width in bits, 0 to 6.
    pub refcount_order: u32,
    /// L2 entries have 16 bytes and 32 subclusters.
    pub extended_l2: bool,
    /// Guest data lives in a file of its own.
    pub external_data: bool,
}

impl Geometry {
    /// A geometry with standard L2 entries and data in the image itself.
    pub fn new(version: Version, cluster_bits: u32, refcount_order: u32) -> Result<Self, GeometryError> {
        if !(CLUSTER_BITS_MIN..=CLUSTER_BITS_MAX).contains(&cluster_bits) {
            return Err(GeometryError::ClusterBits { found: cluster_bits });
        }
        let v2_mismatch = version == Version::V2 && refcount_order != REFCOUNT_ORDER_V2;
        if refcount_order > REFCOUNT_ORDER_MAX || v2_mismatch {
            return Err(GeometryError::RefcountOrder { found: refcount_order });
        }
        Ok(Self { version, cluster_bits, refcount_order, extended_l2: false, external_data: false })
    }

    /// The same with 16-byte L2 entries: 32 subclusters a cluster.
    pub fn with_extended_l2(self) -> Result<Self, GeometryError> {
        self.needs_version_3("extended L2 entries")?;
        if self.cluster_bits < EXTENDED_L2_CLUSTER_BITS_MIN {
            return Err(GeometryError::ExtendedL2ClusterBits { found: self.cluster_bits });
        }
        Ok(Self { extended_l2: true, ..self })
    }

    /// The same with guest data in an external data file.
    pub fn with_external_data(self) -> Result<Self, GeometryError> {
        self.needs_version_3("external data file")?;
        Ok(Self { external_data: true, ..self })
    }

    fn needs_version_3(&self, feature: &'static str) -> Result<(), GeometryError> {
        match self.version {
            Version::V2 => Err(GeometryError::NeedsVersion3 { feature }),
            Version::V3 => Ok(()),
        }
    }

    /// Bytes of a cluster.
    #[inline]
    pub const fn cluster_size(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// The part of an offset inside its cluster.
    #[inline]
    pub const fn in_cluster(&self, offset: u64) -> u64 {
        offset & (self.cluster_size() - 1)
    }

    /// The offset of the cluster that `offset` lies in.
    #[inline]
    pub const fn cluster_start(&self, offset: u64) -> u64 {
        offset & !(self.cluster_size() - 1)
    }

    /// Clusters needed for `bytes`.
    #[inline]
    pub const fn clusters_for(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.cluster_size())
    }

    /// Bytes of an L2 entry: 8, extended 16.
    #[inline]
    pub const fn l2_entry_bytes(&self) -> u64 {
        if self.extended_l2 { 16 } else { 8 }
    }

    /// log2 of the entries in an L2 table.
    #[inline]
    pub const fn l2_bits(&self) -> u32 {
        self.cluster_bits - if self.extended_l2 { 4 } else { 3 }
    }

    /// Entries in an L2 table, which is one cluster.
    #[inline]
    pub const fn l2_entries(&self) -> u64 {
        1 << self.l2_bits()
    }

    /// Guest bytes that one L2 table maps.
    #[inline]
    pub const fn bytes_per_l2_table(&self) -> u64 {
        1 << (self.cluster_bits + self.l2_bits())
    }

    /// Subclusters in a cluster: 32 with extended L2 entries, otherwise 1.
    #[inline]
    pub const fn subclusters(&self) -> u32 {
        if self.extended_l2 { 32 } else { 1 }
    }

    /// log2 of [`Self::subcluster_size`].
    #[inline]
    pub const fn subcluster_bits(&self) -> u32 {
        self.cluster_bits - if self.extended_l2 { 5 } else { 0 }
    }

    /// Bytes of a subcluster.
    #[inline]
    pub const fn subcluster_size(&self) -> u64 {
        1 << self.subcluster_bits()
    }

    /// The mask with one bit for every subcluster.
    #[inline]
    pub const fn subcluster_mask(&self) -> u32 {
        if self.extended_l2 { u32::MAX } else { 1 }
    }

    /// Which entry of the L1 table maps `guest`.
    #[inline]
    pub const fn l1_index(&self, guest: u64) -> u64 {
        guest >> (self.cluster_bits + self.l2_bits())
    }

    /// Which entry of its L2 table maps `guest`.
    #[inline]
    pub const fn l2_index(&self, guest: u64) -> u64 {
        (guest >> self.cluster_bits) & (self.l2_entries() - 1)
    }

    /// Entries an L1 table needs for `size` guest bytes.
    #[inline]
    pub const fn l1_entries_for(&self, size: u64) -> u64 {
        size.div_ceil(self.bytes_per_l2_table())
    }

    /// Bits of a refcount.
    #[inline]
    pub const fn refcount_bits(&self) -> u32 {
        1 << self.refcount_order
    }

    /// The largest refcount.
    #[inline]
    pub const fn refcount_max(&self) -> u64 {
        u64::MAX >> (64 - self.refcount_bits())
    }

    /// Refcounts in a refcount block, which is one cluster.
    #[inline]
    pub const fn refcount_block_entries(&self) -> u64 {
        1 << (self.cluster_bits + 3 - self.refcount_order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_the_default_image_are_those_of_the_specification() {
        let geometry = Geometry::new(Version::V3, 16, 4).unwrap();
        assert_eq!((geometry.cluster_size(), geometry.l2_entries()), (65536, 8192));
        assert_eq!(geometry.bytes_per_l2_table(), 512 << 20);
        assert_eq!((geometry.refcount_block_entries(), geometry.refcount_max()), (32768, 65535));
        assert_eq!(geometry.l1_entries_for((512 << 20) + 1), 2);
        let extended = geometry.with_extended_l2().unwrap();
        assert_eq!((extended.l2_entries(), extended.subcluster_size()), (4096, 2048));
    }

    #[test]
    fn every_geometry_out_of_range_is_refused() {
        for bits in [0, 8, 22, 63, u32::MAX] {
            assert_eq!(Geometry::new(Version::V3, bits, 4), Err(GeometryError::ClusterBits { found: bits }));
        }
        assert!(Geometry::new(Version::V3, 16, 7).is_err());
        assert!(Geometry::new(Version::V2, 16, 3).is_err());
        assert!(Geometry::new(Version::V3, 13, 4).unwrap().with_extended_l2().is_err());
        assert!(Geometry::new(Version::V2, 16, 4).unwrap().with_external_data().is_err());
    }

    #[test]
    fn index_and_offset_in_table_rebuild_the_guest_offset() {
        for bits in CLUSTER_BITS_MIN..=CLUSTER_BITS_MAX {
            let geometry = Geometry::new(Version::V3, bits, 6).unwrap();
            let guest = 0x0123_4567_89ab_cdef;
            let rebuilt = geometry.l1_index(guest) * geometry.bytes_per_l2_table()
                + geometry.l2_index(guest) * geometry.cluster_size()
                + geometry.in_cluster(guest);
            assert_eq!(rebuilt, guest);
            assert_eq!(geometry.refcount_max(), u64::MAX);
        }
    }
}
