//! How long requests took, in bins.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use thiserror::Error;

/// Bins of the histogram that is always kept: the last one begins at about 18 minutes.
const BINS: usize = 32;

/// Nanoseconds below which a latency falls into the first bin, as a power of two (1.024 microseconds).
const FIRST_BITS: u32 = 10;

/// Bounds of a histogram at most: the bin of each request is found by bisection, and a reader prints all.
pub const BOUNDS_MAX: usize = 1024;

/// Counts in bins that double from 1.024 microseconds on.
#[derive(Debug, Default)]
pub(super) struct Doubling([AtomicU64; BINS]);

impl Doubling {
    pub(super) fn record(&self, nanos: u64, weight: u64) {
        let bits = u64::BITS - nanos.leading_zeros();
        let bin = bits.saturating_sub(FIRST_BITS) as usize;
        self.0[bin.min(BINS - 1)].fetch_add(weight, Relaxed);
    }

    pub(super) fn snapshot(&self) -> Latencies {
        Latencies { counts: self.0.each_ref().map(|count| count.load(Relaxed)) }
    }
}

/// Latencies of one kind of request: bin 0 holds those below 1.024 µs, each further bin those below twice
/// the bound of the one before, the last one all the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    counts: [u64; BINS],
}

impl Latencies {
    /// Each bin's exclusive upper bound (`None`: without end) and its count, ascending.
    pub fn bins(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        self.counts.iter().enumerate().map(|(bin, &count)| {
            let bound = (bin < BINS - 1).then(|| Duration::from_nanos(1 << (FIRST_BITS as usize + bin)));
            (bound, count)
        })
    }

    /// How many latencies were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// A latency that `per_mille` thousandths of the requests stayed below: the bound of the bin in
    /// question. `None` if nothing was counted, or if it is the last bin.
    pub fn quantile(&self, per_mille: u32) -> Option<Duration> {
        let wanted = u128::from(self.count()) * u128::from(per_mille);
        let mut seen = 0_u128;
        for (bound, count) in self.bins() {
            seen += u128::from(count) * 1000;
            if count > 0 && seen >= wanted {
                return bound;
            }
        }
        None
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

/// Counts in bins whose bounds somebody chose.
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

    pub(super) fn snapshot(&self) -> Histogram {
        let counts = self.counts.iter().map(|count| count.load(Relaxed)).collect();
        Histogram { bounds_ns: self.bounds_ns.clone(), counts }
    }
}

/// A histogram whose bounds were chosen ([`crate::Disk::set_latency_bounds`]): of `n` bounds and `n + 1`
/// counts, the first below the first bound, the last from the last bound on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// Nanoseconds, ascending.
    pub bounds_ns: Vec<u64>,
    /// Requests between the bounds.
    pub counts: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_counted_in_the_bin_whose_bound_it_is_below() {
        for nanos in [0, 1023, 1024, 2047, 2048, 1_000_000, 1 << 39, 1 << 41, u64::MAX] {
            let doubling = Doubling::default();
            doubling.record(nanos, 3);
            let mut lower = 0;
            for (bound, count) in doubling.snapshot().bins() {
                let upper = bound.map_or(u128::MAX, |bound| bound.as_nanos());
                let inside = (lower..upper).contains(&u128::from(nanos));
                assert_eq!(count, 3 * u64::from(inside), "{nanos} ns in {lower}..{upper}");
                lower = upper;
            }
        }
    }

    #[test]
    fn chosen_bounds_belong_to_the_bin_above_them() {
        let chosen = Chosen::new(&[10, 50, 100]).unwrap();
        [0, 9, 10, 49, 50, 100, 1000].into_iter().for_each(|nanos| chosen.record(nanos));
        let expected = Histogram { bounds_ns: vec![10, 50, 100], counts: vec![2, 2, 1, 2] };
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
