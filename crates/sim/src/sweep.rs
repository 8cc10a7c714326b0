//! Many seeds, one after the other: how many is decided by the environment of the test.

use std::fmt::Display;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// The first seed; also the only one, if no minutes are given.
pub const SEED_VARIABLE: &str = "COWHAND_SIM_SEED";
/// For how many minutes (a number with or without a fraction) to go on with the seeds that follow.
pub const MINUTES_VARIABLE: &str = "COWHAND_SIM_MINUTES";

/// Which seeds to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweep {
    first: u64,
    count: u64,
    time: Option<Duration>,
}

impl Sweep {
    /// What [`SEED_VARIABLE`] and [`MINUTES_VARIABLE`] say; without them seeds 0 to `count`.
    ///
    /// # Panics
    /// If a variable is set and not a number.
    pub fn from_environment(count: u64) -> Self {
        let seed = number(SEED_VARIABLE);
        let time = number(MINUTES_VARIABLE).map(|minutes: f64| Duration::from_secs_f64(minutes * 60.0));
        let count = match (seed, time) {
            (_, Some(_)) => u64::MAX,
            (Some(_), None) => 1,
            (None, None) => count,
        };
        Self { first: seed.unwrap_or(0), count, time }
    }

    /// Whether the environment says what to run, rather than the test.
    pub fn is_asked_for(&self) -> bool {
        self.time.is_some() || number::<u64>(SEED_VARIABLE).is_some()
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
