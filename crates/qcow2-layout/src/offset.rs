//! Places in the guest's disk and in the image file, which must not be confused.

use std::fmt;
use std::ops::Add;

use thiserror::Error;

use crate::Geometry;

/// Host offsets are below this: the format keeps 56 bits for them.
pub const HOST_OFFSET_LIMIT: u64 = 1 << 56;

/// A place in the guest's disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GuestOffset(pub u64);

/// A place in the image file (or the external data file), in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HostOffset(pub u64);

impl Add<u64> for HostOffset {
    type Output = Self;

    fn add(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

impl fmt::Display for GuestOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for HostOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Why an entry of an L1, L2, refcount or bitmap table is not one.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum EntryError {
    /// Bits that the format keeps for later are set.
    #[error("{table} entry {entry:#x} has reserved bits {bits:#x} set")]
    Reserved {
        /// Which table.
        table: &'static str,
        /// The entry.
        entry: u64,
        /// The offending bits of it.
        bits: u64,
    },
    /// The host offset is not the start of a cluster.
    #[error(
        "{table} entry {entry:#x} points to {offset}, which is not a multiple of the cluster size {cluster_size}"
    )]
    Unaligned {
        /// Which table.
        table: &'static str,
        /// The entry.
        entry: u64,
        /// Where it points.
        offset: HostOffset,
        /// What the offset must be a multiple of.
        cluster_size: u64,
    },
    /// The host range ends beyond what the format can address.
    #[error("{table} entry {entry:#x} points to {offset}, beyond the limit of 2^56 bytes")]
    BeyondLimit {
        /// Which table.
        table: &'static str,
        /// The entry.
        entry: u64,
        /// Where it points.
        offset: HostOffset,
    },
    /// A version 2 image has no zero clusters, yet bit 0 is set.
    #[error("L2 entry {entry:#x} is a zero cluster, which a version 2 image cannot have")]
    ZeroInVersion2 {
        /// The entry.
        entry: u64,
    },
    /// Compressed clusters cannot live in an external data file.
    #[error(
        "L2 entry {entry:#x} is a compressed cluster, which an image with an external data file cannot have"
    )]
    CompressedInDataFile {
        /// The entry.
        entry: u64,
    },
    /// A cluster of an external data file is not where the guest has it.
    #[error(
        "L2 entry {entry:#x} points to {host} of the external data file, which must be the guest offset, {guest:#x}"
    )]
    NotAtGuestOffset {
        /// The entry.
        entry: u64,
        /// Where it points.
        host: HostOffset,
        /// The guest offset of the cluster.
        guest: u64,
    },
    /// A compressed cluster has no subclusters, yet its bitmap is not empty.
    #[error(
        "L2 entry {entry:#x} is a compressed cluster with subcluster bitmap {bitmap:#x}, which must be 0"
    )]
    CompressedWithBitmap {
        /// The entry.
        entry: u64,
        /// Its second word.
        bitmap: u64,
    },
    /// A subcluster is both allocated and reading as zeroes.
    #[error("L2 entry {entry:#x} has subclusters {both:#010x} marked both as allocated and as zeroes")]
    AllocatedAndZero {
        /// The entry.
        entry: u64,
        /// Subclusters with both bits.
        both: u32,
    },
    /// A subcluster is allocated, but the cluster has no place in the file.
    #[error("L2 entry {entry:#x} has subclusters {alloc:#010x} marked as allocated without a host offset")]
    AllocatedNowhere {
        /// The entry.
        entry: u64,
        /// Subclusters marked as allocated.
        alloc: u32,
    },
}

/// Checks a cluster's host offset: start of a cluster, inside the 56 bits.
#[inline]
pub(crate) fn check_cluster(
    table: &'static str,
    entry: u64,
    offset: u64,
    geometry: &Geometry,
) -> Result<HostOffset, EntryError> {
    let cluster_size = geometry.cluster_size();
    if offset & (cluster_size - 1) != 0 {
        return Err(EntryError::Unaligned { table, entry, offset: HostOffset(offset), cluster_size });
    }
    if offset >= HOST_OFFSET_LIMIT {
        return Err(EntryError::BeyondLimit { table, entry, offset: HostOffset(offset) });
    }
    Ok(HostOffset(offset))
}
