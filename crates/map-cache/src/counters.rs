//! What the cache did, for status lines and advice.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::ghosts::GhostHits;
use crate::packing::Form;

/// Threads that count apart; more than that share a cell, which is slower and still right.
const STRIPES: usize = 8;

/// A counter that threads raise without fighting over a cache line.
#[derive(Debug, Default)]
pub(crate) struct Striped([Padded; STRIPES]);

#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(AtomicU64);

impl Striped {
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        if cfg!(feature = "uncounted") {
            return;
        }
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static STRIPE: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        if let Some(stripe) = self.0.get(STRIPE.get()) {
            stripe.0.fetch_add(count, Ordering::Relaxed);
        }
    }

    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().map(|stripe| stripe.0.load(Ordering::Relaxed)).sum()
    }
}

/// Counts since the cache was made, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Look-ups that found their slice.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Slices read from the storage.
    pub loads: u64,
    /// Bytes of slices read from the storage.
    pub loaded_bytes: u64,
    /// Misses that waited for another task's load.
    pub coalesced_loads: u64,
    /// Slices dropped for want of room or for lack of use.
    pub evictions: u64,
    /// Slices written to the storage.
    pub write_backs: u64,
    /// Slices packed again after they were written.
    pub packed_slices: u64,
    /// Slices in memory now.
    pub resident_slices: u64,
    /// Bytes of memory that the cache takes: slices, slots, and all that is needed to keep them.
    pub resident_bytes: u64,
    /// Bytes of memory that it may take; the budget that it shares may allow less.
    pub bytes_max: u64,
    /// Bytes of memory that slices take, by how they lie in memory, in the order of [`Form::ALL`].
    pub bytes_by_form: [u64; Form::ALL.len()],
    /// Slices in memory that differ from the storage.
    pub dirty_slices: u64,
    /// Misses that more memory would have avoided.
    pub ghost_hits: GhostHits,
}
