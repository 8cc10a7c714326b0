//! A row of table L: what both programs took.

use super::super::MIB;
use crate::bench::sample::{Spread, median};
use crate::bench::table::{Verdict, number};

/// CPU time of a conversion under qemu-img's name, of qemu-img's.
const CONVERT_CPU: f64 = 0.8;
/// How many times faster than qemu-img a conversion is to be where both make it durable.
const DURABLE_BOUND: f64 = 1.3;

/// What a program took for it, round by round.
#[derive(Default)]
pub struct Runs {
    pub seconds: Vec<f64>,
    pub cpu_seconds: Vec<f64>,
    pub memory_mib: Vec<f64>,
    pub target_bytes: f64,
}

impl Runs {
    fn ratios_to(&self, others: &Self) -> Vec<f64> {
        self.seconds.iter().zip(&others.seconds).map(|(its, others)| its / others).collect()
    }

    /// The median of how many times longer it took than the others.
    fn against(&self, others: &Self) -> f64 {
        median(&self.ratios_to(others))
    }

    fn cpu(&self) -> f64 {
        median(&self.cpu_seconds)
    }
}

/// A row.
#[derive(Default)]
pub struct Row {
    pub what: String,
    /// Of what makes a file: under qemu-img's name, with its durability.
    pub ours: Runs,
    pub theirs: Runs,
    pub durable: Option<Durable>,
    /// A copy by the kernel.
    pub limit: Option<Runs>,
    pub least_seconds: Option<f64>,
    pub bound: f64,
}

/// Runs that make a file which is on the device when they end.
#[derive(Default)]
pub struct Durable {
    /// Under our own name.
    pub ours: Runs,
    /// `qemu-img convert -t writeback`.
    pub theirs: Runs,
    /// A copy by the kernel.
    pub limit: Option<Runs>,
}

impl Durable {
    fn ratio(&self) -> f64 {
        self.theirs.against(&self.ours)
    }

    /// Our rate, of that of the copy.
    fn of_limit(&self) -> Option<f64> {
        self.limit.as_ref().map(|limit| limit.against(&self.ours))
    }
}

impl Spread for Row {
    /// Of the rounds' ratios.
    fn spread_percent(&self) -> f64 {
        let ratios = self.ratios();
        let highest = ratios.iter().copied().fold(f64::MIN, f64::max);
        let lowest = ratios.iter().copied().fold(f64::MAX, f64::min);
        (highest - lowest) / self.ratio() * 100.0
    }
}

impl Row {
    fn ratios(&self) -> Vec<f64> {
        self.theirs.ratios_to(&self.ours)
    }

    pub fn ratio(&self) -> f64 {
        median(&self.ratios())
    }

    /// Of what it takes at least; NaN where that is unknown.
    fn of_least(&self) -> f64 {
        let of_copy = self.limit.as_ref().map(|limit| limit.against(&self.ours));
        let of_codec = || self.least_seconds.map(|least| least / median(&self.ours.seconds));
        of_copy.or_else(of_codec).unwrap_or(f64::NAN)
    }

    pub fn memory_ratio(&self) -> f64 {
        median(&self.ours.memory_mib) / median(&self.theirs.memory_mib)
    }

    pub fn cells(&self) -> Vec<String> {
        let both = |figure: fn(&Runs) -> f64| {
            format!("{} : {}", number(figure(&self.ours)), number(figure(&self.theirs)))
        };
        let known = |figure: f64| if figure.is_nan() { String::new() } else { number(figure) };
        vec![
            self.what.clone(),
            format!("**{}**", number(self.ratio())),
            format!("{:.0} %", self.spread_percent()),
            self.durable.as_ref().map_or(String::new(), |durable| number(durable.ratio())),
            self.durable.as_ref().and_then(Durable::of_limit).map_or(String::new(), number),
            known(self.of_least()),
            both(|runs| median(&runs.seconds) * 1000.0),
            both(|runs| runs.cpu() * 1000.0),
            both(|runs| median(&runs.memory_mib)),
            both(|runs| runs.target_bytes / MIB as f64),
        ]
    }

    /// What was to be reached.
    pub fn verdicts(&self) -> Vec<Verdict> {
        let of = |what: &str| format!("L, {}: {what}", self.what);
        let mut all = vec![Verdict::at_least_or_limit(
            of("times as fast as qemu-img"),
            self.ratio(),
            self.bound,
            self.of_least(),
        )];
        let Some((durable, of_limit)) =
            self.durable.as_ref().and_then(|durable| Some((durable, durable.of_limit()?)))
        else {
            return all;
        };
        let of_theirs = |runs: &Runs| runs.cpu() / self.theirs.cpu();
        let least = self.limit.as_ref().map_or(f64::NAN, of_theirs);
        let what = of("CPU, of qemu-img's");
        all.push(Verdict::at_most_or_limit(what, of_theirs(&self.ours), CONVERT_CPU, "", least));
        let what = of("durable, times as fast as qemu-img");
        all.push(Verdict::at_least_or_limit(what, durable.ratio(), DURABLE_BOUND, of_limit));
        all
    }
}
