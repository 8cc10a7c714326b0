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
    /// So many requests in so many seconds, which took a server this CPU time, user and system together.
    pub fn of_server(requests: f64, seconds: f64, cpu_seconds: f64) -> Self {
        let (rate, system_us) = (requests / seconds, cpu_seconds * 1e6 / requests);
        Self { rate, system_us, requests, seconds, ..Self::default() }
    }

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
    /// What the machine itself does of the same; empty where the table does not ask for that.
    pub limit: Series,
}

/// Figures of several rounds that lie apart by so much, or not.
pub trait Spread {
    /// The largest of any program's, in per cent of its median.
    fn spread_percent(&self) -> f64;
}

impl Spread for Pair {
    fn spread_percent(&self) -> f64 {
        self.ours.spread_percent().max(self.theirs.spread_percent())
    }
}

impl<Name> Spread for Vec<(Name, Series)> {
    fn spread_percent(&self) -> f64 {
        self.iter().map(|(_, series)| series.spread_percent()).fold(0.0, f64::max)
    }
}

/// Above it a row is measured again ...
const SPREAD_MAX_PERCENT: f64 = 15.0;
/// ... until it was measured so many times.
const TIMES_MAX: u32 = 3;

/// Fills `figures` in rounds, a call of `measure` each; all of them again where they lie far apart.
///
/// # Errors
/// As `measure`.
pub fn in_rounds<T: Spread>(
    rounds: u32,
    figures: &mut T,
    mut measure: impl FnMut(&mut T, u32) -> Result<(), String>,
) -> Result<(), String> {
    for round in 0..rounds * TIMES_MAX {
        measure(figures, round)?;
        // A single round is a look at shapes.
        if rounds == 1
            || ((round + 1).is_multiple_of(rounds) && figures.spread_percent() <= SPREAD_MAX_PERCENT)
        {
            break;
        }
    }
    Ok(())
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

    /// Our rate, of the limit's; NaN without one.
    pub fn of_limit(&self) -> f64 {
        let pair = Self { ours: self.ours.clone(), theirs: self.limit.clone(), ..Self::default() };
        pair.rate_ratio()
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
        let (ours, theirs) = (series(&[200.0, 20.0, 210.0]), series(&[100.0, 10.0, 100.0]));
        let pair = Pair { ours, theirs, ..Pair::default() };
        assert_eq!(pair.rate_ratio(), 2.0);
        assert!(pair.of_limit().is_nan());
        assert_eq!(series(&[90.0, 100.0, 110.0]).spread_percent(), 20.0);
    }

    #[test]
    fn rounds_that_lie_apart_are_measured_again_and_not_for_ever() {
        let measured = |rates: &[f64]| {
            let mut pair = Pair::default();
            in_rounds(2, &mut pair, |pair, round| {
                for series in [&mut pair.ours, &mut pair.theirs] {
                    series.0.push(Sample { rate: rates[round as usize % rates.len()], ..Sample::default() });
                }
                Ok(())
            })
            .map(|()| pair.ours.0.len())
        };
        assert_eq!(measured(&[100.0, 110.0]), Ok(2));
        assert_eq!(measured(&[100.0, 200.0]), Ok(6));
    }
}
