//! How long requests took, in bins.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use thiserror::Error;
use throttle::Histogram;

/// Bounds of a histogram at most: the bin of each request is found by bisection, and a reader prints all.
pub const BOUNDS_MAX: usize = 1024;

/// Counts in the bins of a [`Histogram`], by many threads.
#[derive(Debug, Default)]
pub(super) struct Counting([AtomicU64; Histogram::BINS]);

impl Counting {
    #[inline]
    pub(super) fn record(&self, nanos: u64, weight: u64) {
        self.0[Histogram::bin(nanos)].fetch_add(weight, Relaxed);
    }

    pub(super) fn snapshot(&self) -> Histogram {
        Histogram::from_counts(self.0.each_ref().map(|count| count.load(Relaxed)))
    }
}

/// Bounds that no histogram can have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BoundsError {
    /// A bound that is not above the one before it (the first: not above 0).
    #[error("bound {found} ns of a latency histogram follows {before} ns; bounds must ascend from above 0")]
    Order {
        /// The bound.
        found: u64,
        /// The one before it.
        before: u64,
    },
    /// No bound, or too many.
    #[error("a latency histogram has {found} bounds; must be 1 to {BOUNDS_MAX}")]
    Count {
        /// How many were given.
        found: usize,
    },
}

/// Counts in bins with bounds that a user set.
#[derive(Debug)]
pub(super) struct Chosen {
    bounds_ns: Vec<u64>,
    counts: Vec<AtomicU64>,
}

impl Chosen {
    pub(super) fn new(bounds_ns: &[u64]) -> Result<Self, BoundsError> {
        if bounds_ns.is_empty() || bounds_ns.len() > BOUNDS_MAX {
            return Err(BoundsError::Count { found: bounds_ns.len() });
        }
        let mut before = 0;
        for &found in bounds_ns {
            if found <= before {
                return Err(BoundsError::Order { found, before });
            }
            before = found;
        }
        let counts = (0..=bounds_ns.len()).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { bounds_ns: bounds_ns.to_vec(), counts })
    }

    pub(super) fn record(&self, nanos: u64) {
        let bin = self.bounds_ns.partition_point(|&bound| bound <= nanos);
        self.counts[bin].fetch_add(1, Relaxed);
    }

    pub(super) fn snapshot(&self) -> ChosenHistogram {
        let counts = self.counts.iter().map(|count| count.load(Relaxed)).collect();
        ChosenHistogram { bounds_ns: self.bounds_ns.clone(), counts }
    }
}

/// A histogram whose bounds were chosen ([`crate::Disk::set_latency_bounds`]): of `n` bounds and `n + 1`
/// counts, the first below the first bound, the last from the last bound on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenHistogram {
    /// Nanoseconds, ascending.
    pub bounds_ns: Vec<u64>,
    /// Requests between the bounds.
    pub counts: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_count_into_one_histogram() {
        let counting = Counting::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|micros| counting.record(micros * 1000, 2)));
            }
        });
        let mut expected = [0; Histogram::BINS];
        (0..1000).for_each(|micros| expected[Histogram::bin(micros * 1000)] += 8);
        assert_eq!(counting.snapshot(), Histogram::from_counts(expected));
    }

    #[test]
    fn chosen_bounds_belong_to_the_bin_above_them() {
        let chosen = Chosen::new(&[10, 50, 100]).unwrap();
        [0, 9, 10, 49, 50, 100, 1000].into_iter().for_each(|nanos| chosen.record(nanos));
        let expected = ChosenHistogram { bounds_ns: vec![10, 50, 100], counts: vec![2, 2, 1, 2] };
        assert_eq!(chosen.snapshot(), expected);
    }

    #[test]
    fn bounds_ascend_from_above_zero_and_are_not_too_many() {
        let error = |bounds: &[u64]| Chosen::new(bounds).map(|_| ()).unwrap_err();
        assert_eq!(error(&[]), BoundsError::Count { found: 0 });
        assert_eq!(error(&[0, 1]), BoundsError::Order { found: 0, before: 0 });
        assert_eq!(error(&[5, 5]), BoundsError::Order { found: 5, before: 5 });
        assert_eq!(error(&vec![1; BOUNDS_MAX + 1]), BoundsError::Count { found: BOUNDS_MAX + 1 });
    }
}
