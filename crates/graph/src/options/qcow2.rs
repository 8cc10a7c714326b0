//! Options that only a qcow2 image takes.

use qcow2::cache_sizes::CacheRequest;
use qcow2::{Options, OverlapCheck, Prefetch};

/// Seconds after which an unused cache entry is dropped, unless said otherwise: ten minutes, long
/// enough that a working set stays, short enough that an idle guest gives its memory back.
pub const CACHE_CLEAN_INTERVAL_S_DEFAULT: u32 = 600;

/// Options of a qcow2 image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qcow2Options {
    /// `cache-size`, `l2-cache-size`, `l2-cache-entry-size`, `refcount-cache-size`.
    pub caches: CacheRequest,
    /// `prefetch`: what of the map is read before it is asked for.
    pub prefetch: Prefetch,
    /// `cache-clean-interval` in seconds; 0 is never.
    pub cache_clean_interval_s: u32,
    /// `lazy-refcounts`; `None`: as the image's header says.
    pub lazy_refcounts: Option<bool>,
    /// `pass-discard-request`: what the guest discards gives its space back; `None`: as `discard` says when it is used.
    pub pass_discard_request: Option<bool>,
    /// `pass-discard-snapshot`: what a deleted snapshot held gives its space back.
    pub pass_discard_snapshot: bool,
    /// `pass-discard-other`: so does everything else that is freed.
    pub pass_discard_other: bool,
    /// `discard-no-unref`: a discarded cluster keeps its place in the file.
    pub discard_no_unref: bool,
    /// `allocation-reserve`: bytes of clusters that are counted before they are used, so that a flush need
    /// not wait for their refcounts; 0 is none, `None` the engine's choice.
    pub allocation_reserve: Option<u64>,
    /// `overlap-check*`.
    pub overlap_check: OverlapCheck,
}

impl Qcow2Options {
    pub(super) fn defaults(prefetch: Prefetch) -> Self {
        Self {
            caches: CacheRequest::default(),
            prefetch,
            cache_clean_interval_s: CACHE_CLEAN_INTERVAL_S_DEFAULT,
            lazy_refcounts: None,
            pass_discard_request: None,
            pass_discard_snapshot: true,
            pass_discard_other: false,
            discard_no_unref: false,
            allocation_reserve: None,
            overlap_check: OverlapCheck::default(),
        }
    }

    /// The same in the engine's words, with what it needs to know of the other options: whether the image is written, and whether a guest's discard
    /// frees space.
    pub fn for_engine(&self, writable: bool, discards: bool) -> Options {
        Options {
            writable,
            ignore_corrupt: false,
            cache: self.caches,
            prefetch: self.prefetch,
            lazy_refcounts: self.lazy_refcounts,
            overlap_check: self.overlap_check,
            discard: discards,
            pass_discard_request: self.pass_discard_request.unwrap_or(discards),
            pass_discard_snapshot: self.pass_discard_snapshot,
            pass_discard_other: self.pass_discard_other,
            discard_no_unref: self.discard_no_unref,
            allocation_reserve: self.allocation_reserve,
            bitmap_slack: None,
        }
    }
}
