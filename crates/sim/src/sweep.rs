//! Many seeds, one after the other: how many is decided by the environment of the test.

use std::fmt::Display;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// The first seed; also the only one, if no minutes are given.
pub const SEED_VARIABLE: &str = "COWHAND_SIM_SEED";
/// For how many minutes (a number with or without a fraction) to try the seeds that follow.
pub const MINUTES_VARIABLE: &str = "COWHAND_SIM_MINUTES";

/// How many times as much as the tests say: a number, or a part such as `1/10`.
pub const SCALE_VARIABLE: &str = "COWHAND_SIM_SCALE";

/// Which seeds to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweep {
    first: u64,
    count: u64,
    time: Option<Duration>,
    /// Whether it is all that the test says, or more.
    whole: bool,
}

impl Sweep {
    /// What [`SEED_VARIABLE`] and [`MINUTES_VARIABLE`] say; without them seeds 0 to `count`, as often or as few of them as
    /// [`SCALE_VARIABLE`] says.
    ///
    /// # Panics
    /// If a variable is set and not a number.
    pub fn from_environment(name: &str, count: u64) -> Self {
        let seed = number(SEED_VARIABLE);
        let time = number(MINUTES_VARIABLE).map(|minutes: f64| Duration::from_secs_f64(minutes * 60.0));
        let first = seed.unwrap_or_else(|| first_of_part(name, count, scaled(count)));
        let (count, whole) = match (seed, time) {
            (_, Some(_)) => (u64::MAX, false),
            (Some(_), None) => (1, false),
            (None, None) => (scaled(count), scaled(count) >= count),
        };
        Self { first, count, time, whole }
    }

    /// The same for seeds that belong together, so many in each round: a part of the seeds is whole rounds.
    pub fn in_rounds_of(self, round: u64) -> Self {
        if self.is_asked_for() || self.whole {
            return self;
        }
        Self { first: self.first / round * round, count: (self.count / round).max(1) * round, ..self }
    }

    /// The seeds that it runs.
    pub fn seeds(&self) -> std::ops::Range<u64> {
        self.first..self.first.saturating_add(self.count)
    }

    /// Whether the environment says what to run, rather than the test.
    pub fn is_asked_for(&self) -> bool {
        self.time.is_some() || number::<u64>(SEED_VARIABLE).is_some()
    }

    /// Whether it runs all that the test says: a few seeds need not meet everything.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Runs one seed after the other until all are done, the time is over, or one fails; gives the
    /// number of seeds run.
    ///
    /// # Panics
    /// With the whole report, the seed and the command that replays it, if one fails.
    pub fn run(&self, mut one: impl FnMut(u64) -> Result<(), Box<Failure>>) -> u64 {
        let start = Instant::now();
        let mut done = 0;
        while done < self.count && self.time.is_none_or(|time| done == 0 || start.elapsed() < time) {
            let seed = self.first.wrapping_add(done);
            if let Err(failure) = one(seed) {
                let replayed = failure.replayed_by(replay(seed));
                panic!("seed {seed}: {replayed}");
            }
            done += 1;
        }
        done
    }
}

/// `count`, times what [`SCALE_VARIABLE`] says, and at least 1.
///
/// # Panics
/// If the variable is set and neither a number nor a part.
pub fn scaled(count: u64) -> u64 {
    let Ok(text) = std::env::var(SCALE_VARIABLE) else { return count };
    match times(count, &text) {
        Some(scaled) => scaled,
        None => panic!("{SCALE_VARIABLE} is `{text}`: neither a number, as 20, nor a part, as 1/10"),
    }
}

/// `count` times `scale`, rounded up.
fn times(count: u64, scale: &str) -> Option<u64> {
    let (factor, divisor) = scale.split_once('/').unwrap_or((scale, "1"));
    let (factor, divisor): (u64, u64) = (factor.parse().ok()?, divisor.parse().ok()?);
    let product = count.saturating_mul(factor);
    (divisor > 0).then(|| product.div_ceil(divisor).max(1))
}

/// The first seed of a part of `whole` seeds. It depends on the name of the configuration: what the seeds take in turns, such as ways to
/// fail, is then met by the parts of all configurations together.
fn first_of_part(name: &str, whole: u64, part: u64) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash % (whole.saturating_sub(part) + 1)
}

/// The test harness names its threads after the tests.
fn replay(seed: u64) -> String {
    let thread = std::thread::current();
    match thread.name() {
        Some(test) if test != "main" => format!("cargo xtask sim --seed {seed} {test}"),
        Some(_) | None => format!("cargo xtask sim --seed {seed}"),
    }
}

fn number<T: FromStr<Err: Display>>(variable: &str) -> Option<T> {
    let text = std::env::var(variable).ok()?;
    match text.parse() {
        Ok(number) => Some(number),
        Err(error) => panic!("{variable} is `{text}`: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_a_number_or_a_part_and_leaves_something() {
        let scaled = |scale| times(68, scale);
        assert_eq!(["20", "1", "1/10", "1/1000", "0"].map(scaled), [1360, 68, 7, 1, 1].map(Some));
        assert_eq!(["", "ten", "1/0", "1/", "0.1"].map(scaled), [None; 5]);
    }

    #[test]
    fn a_part_of_rounds_is_whole_rounds() {
        for (count, rounds) in [(2, 20..30), (12, 20..30), (20, 20..40)] {
            let part = Sweep { first: 25, count, time: None, whole: false };
            assert_eq!(part.in_rounds_of(10).seeds(), rounds);
        }
        let whole = Sweep { first: 0, count: 25, time: None, whole: true };
        assert_eq!(whole.in_rounds_of(10), whole);
    }

    #[test]
    fn a_part_is_some_of_the_seeds_and_the_whole_begins_with_the_first() {
        for name in ["c512", "c4k", "c2m"] {
            assert_eq!(first_of_part(name, 60, 60), 0);
            assert_eq!(first_of_part(name, 60, 120), 0);
            assert!(first_of_part(name, 60, 6) <= 54);
        }
        let firsts: std::collections::BTreeSet<u64> =
            ["c512", "c4k", "c2m", "raw"].into_iter().map(|name| first_of_part(name, 60, 6)).collect();
        assert!(firsts.len() > 1, "{firsts:?}");
    }
}
