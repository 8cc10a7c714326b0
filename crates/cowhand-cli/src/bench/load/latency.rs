//! How long requests took, in bins of about 3 %.

use std::time::Duration;

/// Bins per power of two.
const BINS_PER_OCTAVE: usize = 32;
/// 2^40 ns are 18 minutes.
const OCTAVES: usize = 40;

/// A histogram of durations.
#[derive(Clone, Debug)]
pub struct Latencies {
    bins: Vec<u64>,
    count: u64,
    longest: Duration,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { bins: vec![0; BINS_PER_OCTAVE * OCTAVES], count: 0, longest: Duration::ZERO }
    }
}

impl Latencies {
    /// Counts one duration.
    pub fn add(&mut self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).max(1);
        let octave = nanos.ilog2() as usize;
        let in_octave = match octave {
            0..5 => 0,
            _ => (nanos >> (octave - 5)) as usize - BINS_PER_OCTAVE,
        };
        let last = self.bins.len() - 1;
        self.bins[(octave * BINS_PER_OCTAVE + in_octave).min(last)] += 1;
        self.count += 1;
        self.longest = self.longest.max(duration);
    }

    /// Durations counted so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest of them, exactly.
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// The duration that `per_mille` of 1000 requests did not exceed; zero without any request.
    pub fn quantile(&self, per_mille: u64) -> Duration {
        let wanted = (self.count * per_mille).div_ceil(1000);
        let mut seen = 0;
        for (bin, count) in self.bins.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                let (octave, in_octave) = (bin / BINS_PER_OCTAVE, bin % BINS_PER_OCTAVE);
                let base = 1u64 << octave;
                return Duration::from_nanos(base + (base / BINS_PER_OCTAVE as u64) * in_octave as u64);
            }
        }
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_within_a_bin() {
        let mut latencies = Latencies::default();
        (1..=1000).for_each(|micros| latencies.add(Duration::from_micros(micros)));
        for (per_mille, micros) in [(500, 500.0), (990, 990.0), (999, 999.0)] {
            let found = latencies.quantile(per_mille).as_secs_f64() * 1e6;
            assert!((found / micros - 1.0).abs() < 0.04, "{per_mille}: {found} for {micros}");
        }
        assert_eq!((latencies.count(), latencies.longest()), (1000, Duration::from_millis(1)));
        assert_eq!(Latencies::default().quantile(500), Duration::ZERO);
    }
}
