//! The time a front lives by, and the one kind of waiting it does.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, Timespec, clock_gettime};
use throttle::Time;

/// A wait for a moment. Bound to the thread that polls it.
pub type Sleep = Pin<Box<dyn Future<Output = ()>>>;

/// Time and timers. Tests bring their own, so that none of them sleeps.
pub trait Clock: Debug + Send + Sync {
    /// The time, monotonic.
    fn now(&self) -> Time;

    /// The time to some milliseconds, for a fraction of the cost.
    fn coarse(&self) -> Time {
        self.now()
    }

    /// Ends at `at`, never before.
    fn sleep_until(&self, at: Time) -> Sleep;
}

/// The machine's monotonic clock, and timers of the loop on which they are awaited.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic {
    origin_ns: u64,
}

impl Monotonic {
    /// A clock that begins a second ago, so that the coarse reading is never before its beginning.
    pub fn new() -> Self {
        const HEAD_START_NS: u64 = 1_000_000_000;
        Self { origin_ns: nanos(clock_gettime(ClockId::Monotonic)).saturating_sub(HEAD_START_NS) }
    }

    fn read(&self, clock: ClockId) -> Time {
        Time::from_nanos(nanos(clock_gettime(clock)).saturating_sub(self.origin_ns))
    }
}

impl Default for Monotonic {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for Monotonic {
    fn now(&self) -> Time {
        self.read(ClockId::Monotonic)
    }

    fn coarse(&self) -> Time {
        self.read(ClockId::MonotonicCoarse)
    }

    fn sleep_until(&self, at: Time) -> Sleep {
        /// As good as never, and a time that every clock can express.
        const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
        let wait = at.since(self.now()).min(NEVER);
        Box::pin(reactor::sleep_until(Instant::now() + wait))
    }
}

fn nanos(time: Timespec) -> u64 {
    // Monotonic clocks are not negative, and nanoseconds of 64 bits last 584 years.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
