//! How long something took, in powers of two.

use std::time::Duration;

/// Nanoseconds below which a time falls into the first bin, as a power of two (1.024 microseconds).
const FIRST_BITS: u32 = 10;

/// Counts of times: bin 0 holds those below 1.024 µs, each further bin those below twice the
/// bound of the one before, the last one all the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; Self::BINS],
}

impl Histogram {
    /// Number of bins: the last one begins at about 18 minutes.
    pub const BINS: usize = 32;

    /// What was counted elsewhere, by [`Histogram::bin`].
    pub const fn from_counts(counts: [u64; Self::BINS]) -> Self {
        Self { counts }
    }

    /// The bin of a time in nanoseconds. Constant time.
    #[inline]
    pub fn bin(nanos: u64) -> usize {
        let bits = u64::BITS - nanos.leading_zeros();
        (bits.saturating_sub(FIRST_BITS) as usize).min(Self::BINS - 1)
    }

    /// Counts one time. Constant time.
    pub fn record(&mut self, time: Duration) {
        self.counts[Self::bin(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))] += 1;
    }

    /// Each bin's exclusive upper bound (`None`: without end) and its count, ascending.
    pub fn bins(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        self.counts.iter().enumerate().map(|(bin, &count)| {
            let bound =
                (bin < Self::BINS - 1).then(|| Duration::from_nanos(1 << (FIRST_BITS as usize + bin)));
            (bound, count)
        })
    }

    /// How many times were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// A time that `per_mille` thousandths of the counted ones stayed below: the
    /// bound of the bin in question. `None` if nothing was counted, or if it is the last bin.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_counted_in_the_bin_whose_bound_it_is_below() {
        for nanos in [0, 1, 1023, 1024, 2047, 2048, 1_000_000, 1 << 39, 1 << 40, 1 << 41, u64::MAX] {
            let mut histogram = Histogram::default();
            histogram.record(Duration::from_nanos(nanos));
            let mut lower = 0;
            for (bound, count) in histogram.bins() {
                let upper = bound.map_or(u128::MAX, |bound| bound.as_nanos());
                let inside = (lower..upper).contains(&u128::from(nanos));
                assert_eq!(count, u64::from(inside), "{nanos} ns in {lower}..{upper}");
                lower = upper;
            }
        }
    }

    #[test]
    fn a_quantile_is_a_bound_that_holds() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(500), None);
        for micros in 0..1000 {
            histogram.record(Duration::from_micros(micros));
        }
        let half = histogram.quantile(500).unwrap();
        assert!((500..=1024).contains(&half.as_micros()), "{half:?}");
    }
}
