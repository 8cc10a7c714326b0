//! How an image is opened.

use crate::cache_sizes::CacheRequest;
use crate::overlap::OverlapCheck;

/// A version 2 image cannot say "zeroes here, and the place is kept".
pub(crate) const NO_UNREF_NEEDS_V3: &str = "discard-no-unref=on needs a version 3 image (compat=1.1)";

/// A version 2 image has no dirty bit.
pub(crate) const LAZY_NEEDS_V3: &str = "lazy-refcounts=on needs a version 3 image (compat=1.1)";

/// What of the map is read before it is asked for (`prefetch`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefetch {
    /// Nothing: a miss reads one slice.
    #[default]
    Off,
    /// A miss reads its neighbours in the table too.
    Table,
    /// As `Table`, and everything is read once in the background ([`crate::Qcow2::prefetch`]).
    All,
}

/// Runtime options of one image, under QEMU's names with `_` for `-`.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Guest writes are allowed.
    pub writable: bool,
    /// Open for writing although the corrupt bit is set (for repair).
    pub ignore_corrupt: bool,
    /// Memory for the map and for refcounts.
    pub cache: CacheRequest,
    /// `prefetch`.
    pub prefetch: Prefetch,
    /// `lazy-refcounts`: `None` is what the image says.
    pub lazy_refcounts: Option<bool>,
    /// `overlap-check`.
    pub overlap_check: OverlapCheck,
    /// `discard=unmap`: guest discards take effect.
    pub discard: bool,
    /// `pass-discard-request`: space that the guest discards goes back to the file system.
    pub pass_discard_request: bool,
    /// `pass-discard-snapshot`: likewise for space of deleted snapshots.
    pub pass_discard_snapshot: bool,
    /// `pass-discard-other`: likewise for clusters freed for other reasons.
    pub pass_discard_other: bool,
    /// `discard-no-unref`: discarded clusters stay reserved where they are.
    pub discard_no_unref: bool,
    /// `allocation-reserve`: bytes of clusters whose refcounts are raised ahead of their use, so
    /// that a flush need not wait for them. A crash leaks at most this, until the image is opened for writing again; 0 is none, `None` follows
    /// from the cluster size (16 MiB, at least 128 clusters, at most 4,096 and what one refcount block counts). Images of version 2 have none
    /// unless it is given: their header cannot tell of it.
    pub allocation_reserve: Option<u64>,
    /// Bytes of the disk that bitmaps may have as dirty for nothing after a crash, beside the regions that changed last: when the record of
    /// changes has so many, bitmaps are stored and it begins anew. `None` is 8 GiB, or 1/128 of a disk where that is more.
    pub bitmap_slack: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            writable: false,
            ignore_corrupt: false,
            cache: CacheRequest::default(),
            prefetch: Prefetch::default(),
            lazy_refcounts: None,
            overlap_check: OverlapCheck::default(),
            discard: false,
            pass_discard_request: false,
            pass_discard_snapshot: true,
            pass_discard_other: false,
            discard_no_unref: false,
            allocation_reserve: None,
            bitmap_slack: None,
        }
    }
}

/// What happens to space that is not used any more. Can be changed while the image is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscardOptions {
    /// As [`Options::discard`].
    pub discard: bool,
    /// As [`Options::pass_discard_request`].
    pub pass_discard_request: bool,
    /// As [`Options::pass_discard_snapshot`].
    pub pass_discard_snapshot: bool,
    /// As [`Options::pass_discard_other`].
    pub pass_discard_other: bool,
    /// As [`Options::discard_no_unref`].
    pub discard_no_unref: bool,
}

impl Options {
    /// What happens to space that is not used any more.
    pub fn discards(&self) -> DiscardOptions {
        DiscardOptions {
            discard: self.discard,
            pass_discard_request: self.pass_discard_request,
            pass_discard_snapshot: self.pass_discard_snapshot,
            pass_discard_other: self.pass_discard_other,
            discard_no_unref: self.discard_no_unref,
        }
    }
}
