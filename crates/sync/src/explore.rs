//! Runs a test under many schedules, and says how to replay the one that failed.
//!
//! Half of the schedules pick every step at random; the other half change the order of the threads'
//! priorities at a few random steps, which finds bugs of few, far-apart switches (probabilistic
//! concurrency testing). Both come from one seed. Atomics behave as if all orderings were `SeqCst`:
//! what a weaker ordering would allow on real processors is not explored.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler};
use shuttle::{Config, Runner};

pub use shuttle::future::{JoinHandle, block_on, spawn_local};
pub use shuttle::thread;

/// Schedules a test, unless [`ITERATIONS`] says otherwise.
const ITERATIONS_DEFAULT: usize = 200;
/// Environment: schedules a test.
pub const ITERATIONS: &str = "COWHAND_INTERLEAVE_ITERATIONS";
/// Environment: the seed of all schedules.
pub const SEED: &str = "COWHAND_INTERLEAVE_SEED";
/// Environment: the one schedule to replay, as printed by a failure.
pub const SCHEDULE: &str = "COWHAND_INTERLEAVE_SCHEDULE";

/// Priority changes a schedule at most: bugs that need more switches are rare.
const PRIORITY_CHANGES: usize = 3;
/// Steps after which a schedule counts as hanging: ordinary ones take a few thousand at most.
const STEPS_MAX: usize = 20_000;
/// Bytes of stack for each thread: unoptimised futures nest deeply.
const STACK_BYTES: usize = 512 << 10;

/// Runs `test` under as many schedules as asked for. `test` must do the same whenever it gets the same
/// schedule: no clock, no random numbers, no memory of earlier runs.
///
/// # Panics
/// If the test panics, deadlocks or does not end under one of them; what to type to see it again
/// is printed before.
pub fn explore(test: impl Fn() + Send + Sync + 'static) {
    let name = std::thread::current().name().unwrap_or("TEST").to_owned();
    if let Ok(schedule) = std::env::var(SCHEDULE) {
        Runner::new(ReplayScheduler::new_from_encoded(schedule.trim()), config()).run(test);
        return;
    }
    let iterations = number(ITERATIONS).map_or(ITERATIONS_DEFAULT, |number| number as usize).max(2);
    let seed = number(SEED).unwrap_or(0);
    let explored = catch_unwind(AssertUnwindSafe(|| {
        let test = std::sync::Arc::new(test);
        let (random, biased) = (std::sync::Arc::clone(&test), test);
        let half = iterations / 2;
        Runner::new(RandomScheduler::new_from_seed(seed, iterations - half), config()).run(move || random());
        let scheduler = PctScheduler::new_from_seed(seed, PRIORITY_CHANGES, half);
        Runner::new(scheduler, config()).run(move || biased());
    }));
    match explored {
        Ok(()) => println!("{name}: {iterations} interleavings explored"),
        Err(panic) => {
            eprintln!(
                "{name} failed. To see it again, with all schedules before it:\n\
                 cargo xtask interleave --test {name} --each {iterations} --seed {seed}\n\
                 or the failing schedule alone, printed above (all of its lines, in quotes):\n\
                 cargo xtask interleave --test {name} --schedule 'SCHEDULE'"
            );
            resume_unwind(panic);
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    match text.parse() {
        Ok(number) => Some(number),
        Err(error) => panic!("{variable} is {text:?}: {error}"),
    }
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.max_steps = shuttle::MaxSteps::FailAfter(STEPS_MAX);
    config.silence_warnings = true;
    config
}

/// A step at which others may run, before a piece of the test itself.
pub fn pause() {
    shuttle::sync::atomic::AtomicBool::new(false).load(shuttle::sync::atomic::Ordering::SeqCst);
}
