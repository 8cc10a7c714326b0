//! Figures of several rounds, and what is said of them.

use serde::Serialize;

/// What one measurement gave. A figure that a program does not tell is NaN.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Sample {
    /// Requests per second.
    pub rate: f64,
    /// User CPU microseconds per request.
    pub user_us: f64,
    /// System CPU microseconds per request.
    pub system_us: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the latency.
    pub p99_us: f64,
    /// 99.9th percentile of the latency.
    pub p999_us: f64,
    /// The most memory the process had, in bytes.
    pub resident_bytes: f64,
    /// Memory of the map, in bytes.
    pub map_bytes: f64,
    /// Look-ups that did not find their slice.
    pub map_misses: f64,
    /// Requests that were measured.
    pub requests: f64,
    /// Wall time of the measured requests.
    pub seconds: f64,
}

impl Sample {
    /// CPU microseconds per request.
    pub fn cpu_us(&self) -> f64 {
        self.user_us + self.system_us
    }
}

/// One program's samples, one a round.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Series(pub Vec<Sample>);

impl Series {
    /// One figure of every round.
    pub fn figures(&self, figure: impl Fn(&Sample) -> f64) -> Vec<f64> {
        self.0.iter().map(figure).collect()
    }

    /// The median of one figure.
    pub fn median(&self, figure: impl Fn(&Sample) -> f64) -> f64 {
        median(&self.figures(figure))
    }

    /// Median of the requests per second.
    pub fn rate(&self) -> f64 {
        self.median(|sample| sample.rate)
    }

    /// How far rounds lie apart: highest against lowest rate, in per cent of the median.
    pub fn spread_percent(&self) -> f64 {
        let rates = self.figures(|sample| sample.rate);
        let (low, high) =
            rates.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), &rate| (low.min(rate), high.max(rate)));
        (high - low) / median(&rates) * 100.0
    }
}

/// Both programs at one load, round by round.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Pair {
    /// cowhand.
    pub ours: Series,
    /// QEMU.
    pub theirs: Series,
}

impl Pair {
    /// The median of the ratios round by round: what is slow for a moment is slow for both.
    pub fn ratio(&self, figure: impl Fn(&Sample) -> f64) -> f64 {
        let (ours, theirs) = (self.ours.figures(&figure), self.theirs.figures(&figure));
        median(&ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>())
    }

    /// How much faster we are.
    pub fn rate_ratio(&self) -> f64 {
        self.ratio(|sample| sample.rate)
    }
}

/// The middle of `values`; NaN without any.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| !value.is_nan()).collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[len / 2],
        len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
    }
}

/// The value below which so many per cent of `values` are; NaN without any.
pub fn at_percent(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() * percent / 100).or(sorted.last()).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(rates: &[f64]) -> Series {
        Series(rates.iter().map(|&rate| Sample { rate, ..Sample::default() }).collect())
    }

    #[test]
    fn the_median_is_the_middle_and_leaves_out_what_is_not_known() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[f64::NAN, 5.0]), 5.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        // The machine was ten times slower in the second round: for both.
        let pair = Pair { ours: series(&[200.0, 20.0, 210.0]), theirs: series(&[100.0, 10.0, 100.0]) };
        assert_eq!(pair.rate_ratio(), 2.0);
        assert_eq!(series(&[90.0, 100.0, 110.0]).spread_percent(), 20.0);
    }
}
