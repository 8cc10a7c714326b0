//! What an allocation takes: more than was asked for.

/// Bytes that the allocator keeps beside each allocation.
const HEADER: usize = 8;
/// Allocations, header included, are multiples of this.
const GRANULE: usize = 16;
/// Smallest allocation, header included.
const SMALLEST: usize = 32;

/// Reference counts of an `Arc`.
pub(crate) const ARC_COUNTS: usize = 16;

/// Bytes of an entry in an ordered map: a leaf has room for eleven and is at least half full.
pub(crate) const fn map_entry(bytes: usize) -> u64 {
    (bytes * 11 / 8 + 4) as u64
}

/// Bytes that an allocation of `bytes` takes, as glibc's malloc counts; 0 is no allocation.
pub(crate) const fn allocation(bytes: usize) -> u64 {
    if bytes == 0 {
        return 0;
    }
    let whole = (bytes + HEADER).next_multiple_of(GRANULE);
    if whole < SMALLEST { SMALLEST as u64 } else { whole as u64 }
}
