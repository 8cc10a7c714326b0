//! How much memory the L2 and refcount caches get: from what the user asked for to what is used.
//!
//! The option names, defaults and rules are QEMU's (docs/qcow2-cache.txt there; FACTS 1.4), so that a
//! command line moved from QEMU means the same memory here. Pure: numbers in, numbers out.

use thiserror::Error;

/// Memory for L2 tables when neither `l2-cache-size` nor `cache-size` is given: covers 256 GiB of
/// disk at the default cluster size.
pub const L2_BYTES_DEFAULT: u64 = 32 << 20;

/// Bytes of an L2 slice when the cache does not cover the disk and none was asked for: small, so
/// that a miss evicts and reads little.
pub const L2_ENTRY_BYTES_DEFAULT: u64 = 4096;

/// Smallest L2 slice that may be asked for.
pub const L2_ENTRY_BYTES_MIN: u64 = 512;

/// Fewest slices in the L2 cache: a copy between two tables holds two at a time.
pub const L2_COUNT_MIN: u64 = 2;

/// Fewest blocks in the refcount cache: growing the refcount table touches this many at once.
pub const REFCOUNT_COUNT_MIN: u64 = 4;

/// Most entries in either cache, as in QEMU, so that no option is valid here and invalid there.
pub const COUNT_MAX: u64 = i32::MAX as u64;

/// What the user asked for; `None` where the option was not given. All in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheRequest {
    /// `cache-size`: both caches together.
    pub total_bytes: Option<u64>,
    /// `l2-cache-size`: the most memory for L2 slices.
    pub l2_bytes: Option<u64>,
    /// `l2-cache-entry-size`: one slice.
    pub l2_entry_bytes: Option<u64>,
    /// `refcount-cache-size`.
    pub refcount_bytes: Option<u64>,
}

/// The image that the caches are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedImage {
    /// Virtual size in bytes.
    pub disk_bytes: u64,
    /// Cluster size in bytes: a power of two, 512 to 2 MiB.
    pub cluster_bytes: u64,
    /// One L2 table entry: 8, or 16 with extended L2.
    pub l2_table_entry_bytes: u64,
}

impl CachedImage {
    /// Bytes of L2 tables that map the whole disk, rounded up to whole tables.
    pub fn l2_bytes_full(&self) -> u64 {
        self.l2_bytes_used().next_multiple_of(self.cluster_bytes)
    }

    /// Bytes of L2 entries that map the disk; the rest of the last table maps nothing.
    fn l2_bytes_used(&self) -> u64 {
        self.disk_bytes.div_ceil(self.cluster_bytes) * self.l2_table_entry_bytes
    }
}

/// What is used. `l2_bytes == l2_count * l2_entry_bytes`, and likewise for refcounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSizes {
    /// Memory for L2 slices in bytes.
    pub l2_bytes: u64,
    /// One slice in bytes: a power of two, 512 to the cluster size.
    pub l2_entry_bytes: u64,
    /// Slices, at least [`L2_COUNT_MIN`].
    pub l2_count: u64,
    /// Memory for refcount blocks in bytes.
    pub refcount_bytes: u64,
    /// Refcount blocks of one cluster each, at least [`REFCOUNT_COUNT_MIN`].
    pub refcount_count: u64,
    /// The L2 slices of the whole disk fit at once: after each was read once, nothing is evicted.
    pub covers_disk: bool,
}

/// A request that contradicts itself or the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CacheSizesError {
    /// More is said than there is to say.
    #[error(
        "cache-size, l2-cache-size and refcount-cache-size are all set; at most two of the three may be, \
         the third follows from them"
    )]
    AllThree,
    /// A part is larger than the whole.
    #[error("l2-cache-size is {l2_bytes} bytes; at most cache-size ({total_bytes} bytes) is allowed")]
    L2BeyondTotal {
        /// What was asked for.
        l2_bytes: u64,
        /// The bound.
        total_bytes: u64,
    },
    /// A part is larger than the whole.
    #[error(
        "refcount-cache-size is {refcount_bytes} bytes; at most cache-size ({total_bytes} bytes) is allowed"
    )]
    RefcountBeyondTotal {
        /// What was asked for.
        refcount_bytes: u64,
        /// The bound.
        total_bytes: u64,
    },
    /// A slice that does not divide a table, or is too small.
    #[error(
        "l2-cache-entry-size is {found_bytes} bytes; must be a power of two from 512 to the cluster size \
         ({cluster_bytes} bytes)"
    )]
    EntrySize {
        /// What was asked for.
        found_bytes: u64,
        /// The bound.
        cluster_bytes: u64,
    },
    /// More slices than can be counted.
    #[error(
        "the L2 cache would have {count} entries of {entry_bytes} bytes; at most {COUNT_MAX} are allowed"
    )]
    L2Count {
        /// What the request comes to.
        count: u64,
        /// One slice.
        entry_bytes: u64,
    },
    /// More refcount blocks than can be counted.
    #[error(
        "the refcount cache would have {count} blocks of {cluster_bytes} bytes; at most {COUNT_MAX} are allowed"
    )]
    RefcountCount {
        /// What the request comes to.
        count: u64,
        /// One block.
        cluster_bytes: u64,
    },
}

/// The sizes that `request` means for `image`.
///
/// Sizes that are not multiples of an entry are rounded down, then up to the fewest entries that
/// the engine can work with; they are never refused for that.
///
/// # Errors
/// When the request contradicts itself, or an entry size does not fit the image.
pub fn cache_sizes(request: &CacheRequest, image: &CachedImage) -> Result<CacheSizes, CacheSizesError> {
    let full_bytes = image.l2_bytes_full();
    let shares = shares(request, image)?;
    let l2_entry_bytes = l2_entry_bytes(request, image, shares.l2_bytes < full_bytes)?;
    let l2_count = (shares.l2_bytes / l2_entry_bytes).max(L2_COUNT_MIN);
    let refcount_count = (shares.refcount_bytes / image.cluster_bytes).max(REFCOUNT_COUNT_MIN);
    if l2_count > COUNT_MAX {
        return Err(CacheSizesError::L2Count { count: l2_count, entry_bytes: l2_entry_bytes });
    }
    if refcount_count > COUNT_MAX {
        let cluster_bytes = image.cluster_bytes;
        return Err(CacheSizesError::RefcountCount { count: refcount_count, cluster_bytes });
    }
    Ok(CacheSizes {
        l2_bytes: l2_count * l2_entry_bytes,
        l2_entry_bytes,
        l2_count,
        refcount_bytes: refcount_count * image.cluster_bytes,
        refcount_count,
        covers_disk: l2_count >= image.l2_bytes_used().div_ceil(l2_entry_bytes),
    })
}

/// Bytes that the L2 slices may really take, everything included, where `sizes` are in use for `request`.
///
/// A size that was asked for is the most; one that follows from the disk says what QEMU would take, and is
/// no reason to release anything: what packs badly takes a little more than it does there.
pub fn l2_ceiling(request: &CacheRequest, sizes: &CacheSizes) -> u64 {
    match (request.l2_bytes, request.total_bytes) {
        (Some(asked), _) => asked.max(sizes.l2_bytes),
        (None, Some(_)) => sizes.l2_bytes,
        (None, None) => L2_BYTES_DEFAULT.max(sizes.l2_bytes),
    }
}

/// The two caches' parts before they are cut into entries.
struct Shares {
    l2_bytes: u64,
    refcount_bytes: u64,
}

fn shares(request: &CacheRequest, image: &CachedImage) -> Result<Shares, CacheSizesError> {
    let full_bytes = image.l2_bytes_full();
    let l2_bytes = request.l2_bytes.unwrap_or(L2_BYTES_DEFAULT).min(full_bytes);
    let Some(total_bytes) = request.total_bytes else {
        return Ok(Shares { l2_bytes, refcount_bytes: request.refcount_bytes.unwrap_or(0) });
    };
    match (request.l2_bytes, request.refcount_bytes) {
        (Some(_), Some(_)) => Err(CacheSizesError::AllThree),
        (Some(asked), None) if asked > total_bytes => {
            Err(CacheSizesError::L2BeyondTotal { l2_bytes: asked, total_bytes })
        }
        // What the L2 cache cannot use because the disk is small goes to the refcounts.
        (Some(_), None) => Ok(Shares { l2_bytes, refcount_bytes: total_bytes - l2_bytes }),
        (None, Some(refcount_bytes)) if refcount_bytes > total_bytes => {
            Err(CacheSizesError::RefcountBeyondTotal { refcount_bytes, total_bytes })
        }
        (None, Some(refcount_bytes)) => Ok(Shares { l2_bytes: total_bytes - refcount_bytes, refcount_bytes }),
        (None, None) => Ok(split(total_bytes, full_bytes, image.cluster_bytes)),
    }
}

/// Both caches from one number: refcounts get their minimum until the L2 cache covers the disk,
/// and all the rest after that.
fn split(total_bytes: u64, full_bytes: u64, cluster_bytes: u64) -> Shares {
    let refcount_min = REFCOUNT_COUNT_MIN * cluster_bytes;
    if total_bytes >= full_bytes + refcount_min {
        return Shares { l2_bytes: full_bytes, refcount_bytes: total_bytes - full_bytes };
    }
    let refcount_bytes = total_bytes.min(refcount_min);
    Shares { l2_bytes: total_bytes - refcount_bytes, refcount_bytes }
}

fn l2_entry_bytes(
    request: &CacheRequest,
    image: &CachedImage,
    partial: bool,
) -> Result<u64, CacheSizesError> {
    let cluster_bytes = image.cluster_bytes;
    match request.l2_entry_bytes {
        None if partial => Ok(L2_ENTRY_BYTES_DEFAULT.min(cluster_bytes)),
        None => Ok(cluster_bytes),
        Some(bytes) if (L2_ENTRY_BYTES_MIN..=cluster_bytes).contains(&bytes) && bytes.is_power_of_two() => {
            Ok(bytes)
        }
        Some(found_bytes) => Err(CacheSizesError::EntrySize { found_bytes, cluster_bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn disk(disk_bytes: u64) -> CachedImage {
        CachedImage { disk_bytes, cluster_bytes: 64 * KIB, l2_table_entry_bytes: 8 }
    }

    /// (cache-size, l2-cache-size, refcount-cache-size, l2-cache-entry-size)
    type Requested = (Option<u64>, Option<u64>, Option<u64>, Option<u64>);

    fn sizes(asked: Requested, image: CachedImage) -> Result<CacheSizes, CacheSizesError> {
        let (total_bytes, l2_bytes, refcount_bytes, l2_entry_bytes) = asked;
        cache_sizes(&CacheRequest { total_bytes, l2_bytes, l2_entry_bytes, refcount_bytes }, &image)
    }

    #[test]
    fn every_combination_of_options_gives_the_sizes_that_qemu_gives() {
        // Asked, image, then (L2 bytes, slice bytes, refcount bytes, covers the disk).
        type Used = (u64, u64, u64, bool);
        let table: &[(Requested, CachedImage, Used)] = &[
            // Nothing asked: the whole map up to 32 MiB, whole tables as slices.
            ((None, None, None, None), disk(40 * GIB), (5 * MIB, 64 * KIB, 256 * KIB, true)),
            ((None, None, None, None), disk(256 * GIB), (32 * MIB, 64 * KIB, 256 * KIB, true)),
            // One cluster more than 32 MiB map: small slices.
            ((None, None, None, None), disk(256 * GIB + 1), (32 * MIB, 4 * KIB, 256 * KIB, false)),
            // A disk that one slice maps still gets two.
            ((None, None, None, None), disk(MIB), (128 * KIB, 64 * KIB, 256 * KIB, true)),
            ((None, None, None, None), disk(0), (128 * KIB, 64 * KIB, 256 * KIB, true)),
            // L2 alone: bounded by what the disk needs.
            ((None, Some(MIB), None, None), disk(40 * GIB), (MIB, 4 * KIB, 256 * KIB, false)),
            ((None, Some(100 * MIB), None, None), disk(40 * GIB), (5 * MIB, 64 * KIB, 256 * KIB, true)),
            ((None, Some(0), None, None), disk(40 * GIB), (8 * KIB, 4 * KIB, 256 * KIB, false)),
            ((None, Some(MIB + 1), None, None), disk(40 * GIB), (MIB, 4 * KIB, 256 * KIB, false)),
            // Refcounts alone: in whole clusters, at least four.
            ((None, None, Some(MIB + 5), None), disk(40 * GIB), (5 * MIB, 64 * KIB, MIB, true)),
            ((None, None, Some(0), None), disk(40 * GIB), (5 * MIB, 64 * KIB, 256 * KIB, true)),
            // The total alone: refcounts get their minimum first ...
            ((Some(2 * MIB), None, None, None), disk(40 * GIB), (1792 * KIB, 4 * KIB, 256 * KIB, false)),
            ((Some(100 * KIB), None, None, None), disk(40 * GIB), (8 * KIB, 4 * KIB, 256 * KIB, false)),
            // ... and everything that a covering L2 cache leaves.
            ((Some(8 * MIB), None, None, None), disk(40 * GIB), (5 * MIB, 64 * KIB, 3 * MIB, true)),
            ((Some(5376 * KIB), None, None, None), disk(40 * GIB), (5 * MIB, 64 * KIB, 256 * KIB, true)),
            ((Some(5375 * KIB), None, None, None), disk(40 * GIB), (5116 * KIB, 4 * KIB, 256 * KIB, false)),
            // The total and one part.
            ((Some(8 * MIB), Some(2 * MIB), None, None), disk(40 * GIB), (2 * MIB, 4 * KIB, 6 * MIB, false)),
            ((Some(8 * MIB), Some(8 * MIB), None, None), disk(40 * GIB), (5 * MIB, 64 * KIB, 3 * MIB, true)),
            ((Some(8 * MIB), None, Some(MIB), None), disk(40 * GIB), (7 * MIB, 64 * KIB, MIB, true)),
            ((Some(8 * MIB), None, Some(4 * MIB), None), disk(40 * GIB), (4 * MIB, 4 * KIB, 4 * MIB, false)),
            // Slices.
            ((None, Some(MIB), None, Some(512)), disk(40 * GIB), (MIB, 512, 256 * KIB, false)),
            ((None, None, None, Some(4 * KIB)), disk(40 * GIB), (5 * MIB, 4 * KIB, 256 * KIB, true)),
            ((None, Some(MIB), None, Some(64 * KIB)), disk(40 * GIB), (MIB, 64 * KIB, 256 * KIB, false)),
            (
                (None, Some(1), None, None),
                CachedImage { disk_bytes: GIB, cluster_bytes: 512, l2_table_entry_bytes: 8 },
                (1024, 512, 2048, false),
            ),
            // Extended L2: twice the memory for the same disk.
            (
                (None, None, None, None),
                CachedImage { disk_bytes: 40 * GIB, cluster_bytes: 64 * KIB, l2_table_entry_bytes: 16 },
                (10 * MIB, 64 * KIB, 256 * KIB, true),
            ),
        ];
        for &(asked, image, (l2_bytes, l2_entry_bytes, refcount_bytes, covers_disk)) in table {
            let expected = CacheSizes {
                l2_bytes,
                l2_entry_bytes,
                l2_count: l2_bytes / l2_entry_bytes,
                refcount_bytes,
                refcount_count: refcount_bytes / image.cluster_bytes,
                covers_disk,
            };
            assert_eq!(sizes(asked, image), Ok(expected), "{asked:?} {image:?}");
        }
    }

    #[test]
    fn a_request_that_contradicts_itself_is_refused_with_its_numbers() {
        let entry = |found_bytes| CacheSizesError::EntrySize { found_bytes, cluster_bytes: 64 * KIB };
        let table: &[(Requested, CacheSizesError)] = &[
            ((Some(8 * MIB), Some(MIB), Some(MIB), None), CacheSizesError::AllThree),
            (
                (Some(MIB), Some(MIB + 1), None, None),
                CacheSizesError::L2BeyondTotal { l2_bytes: MIB + 1, total_bytes: MIB },
            ),
            (
                (Some(MIB), None, Some(2 * MIB), None),
                CacheSizesError::RefcountBeyondTotal { refcount_bytes: 2 * MIB, total_bytes: MIB },
            ),
            ((None, None, None, Some(0)), entry(0)),
            ((None, None, None, Some(256)), entry(256)),
            ((None, None, None, Some(5000)), entry(5000)),
            ((None, None, None, Some(128 * KIB)), entry(128 * KIB)),
            (
                (None, None, Some(u64::MAX), None),
                CacheSizesError::RefcountCount { count: u64::MAX / (64 * KIB), cluster_bytes: 64 * KIB },
            ),
            (
                (Some(u64::MAX), None, Some(0), None),
                CacheSizesError::L2Count { count: u64::MAX / (64 * KIB), entry_bytes: 64 * KIB },
            ),
        ];
        for &(asked, expected) in table {
            assert_eq!(sizes(asked, disk(40 * GIB)), Err(expected), "{asked:?}");
        }
    }

    #[test]
    fn a_cache_said_to_cover_the_disk_is_not_one_entry_short() {
        for clusters in (1..40_000).step_by(37) {
            for l2_bytes in [1, 64 * KIB - 1, 64 * KIB, 128 * KIB, 319 * KIB, 320 * KIB] {
                let image = disk(clusters * 64 * KIB - 1);
                let used = sizes((None, Some(l2_bytes), None, None), image).unwrap();
                assert_eq!(used.covers_disk, used.l2_count * used.l2_entry_bytes >= clusters * 8);
            }
        }
    }

    #[test]
    fn the_largest_possible_disk_does_not_overflow() {
        let image = CachedImage { disk_bytes: i64::MAX as u64, cluster_bytes: 512, l2_table_entry_bytes: 16 };
        let used = sizes((Some(u64::MAX / 2), None, None, None), image);
        assert!(used.is_err());
        assert!(!sizes((None, None, None, None), image).unwrap().covers_disk);
    }
}
