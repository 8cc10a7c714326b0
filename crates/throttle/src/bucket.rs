//! One leaky bucket.

use std::time::Duration;

use crate::{Rate, Time};

/// A second in nanoseconds; levels are kept in billionths of a unit, so that leaking `avg` units a
/// second for one nanosecond is the whole number `avg`: nothing is ever rounded.
pub(crate) const NANO: u128 = 1_000_000_000;

/// A bucket that requests fill and time empties. A request may go while the level is at most the
/// capacity; its units are added afterwards, so that the level may stand above it.
///
/// Without a burst rate the capacity is a tenth of a second's worth. With one it is `max * length`,
/// and if `length > 1` a second bucket, leaking at `max` with a tenth of a second's worth of that,
/// keeps the burst itself from exceeding `max`.
///
/// All arithmetic is in whole numbers: `avg` and elapsed nanoseconds multiply exactly in 128 bits
/// (10^15 * 2^64 < 2^114).
#[derive(Clone, Debug)]
pub struct LeakyBucket {
    rate: Rate,
    main: Vessel,
    burst: Option<Vessel>,
    updated: Time,
}

/// A level between leaks, in billionths of a unit.
#[derive(Clone, Debug)]
struct Vessel {
    level: u128,
    capacity: u128,
    leak_per_second: u64,
}

/// How full a bucket is, in units (operations or bytes).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketLevel {
    /// Level of the bucket that leaks at the average.
    pub level: f64,
    /// Its capacity: requests wait while the level is above.
    pub capacity: f64,
    /// Level and capacity of the bucket that leaks at the burst rate, where there is one.
    pub burst: Option<(f64, f64)>,
}

impl LeakyBucket {
    /// An empty bucket.
    pub fn new(rate: Rate, now: Time) -> Self {
        let capacity = match rate.max {
            0 => tenth_of_a_second(rate.avg),
            max => u128::from(max) * u128::from(rate.length) * NANO,
        };
        let burst = (rate.length > 1).then(|| Vessel::new(tenth_of_a_second(rate.max), rate.max));
        Self { rate, main: Vessel::new(capacity, rate.avg), burst, updated: now }
    }

    /// How long until a request may go; zero if one may go now. Waiting exactly this long is enough.
    pub fn wait(&mut self, now: Time) -> Duration {
        if self.rate.is_unlimited() {
            return Duration::ZERO;
        }
        self.leak(now);
        let burst = self.burst.as_ref().map_or(0, Vessel::wait_nanos);
        Duration::from_nanos(self.main.wait_nanos().max(burst))
    }

    /// Adds billionths of units: what a request that has been allowed costs.
    pub fn fill(&mut self, nano_units: u128, now: Time) {
        if self.rate.is_unlimited() {
            return;
        }
        self.leak(now);
        self.main.level = self.main.level.saturating_add(nano_units);
        if let Some(burst) = &mut self.burst {
            burst.level = burst.level.saturating_add(nano_units);
        }
    }

    /// Billionths of units until a request would have to wait; `None` without a limit.
    pub(crate) fn room(&mut self, now: Time) -> Option<u128> {
        if self.rate.is_unlimited() {
            return None;
        }
        self.leak(now);
        let burst = self.burst.as_ref().map_or(u128::MAX, Vessel::room);
        Some(self.main.room().min(burst))
    }

    /// How full it is.
    pub fn level(&mut self, now: Time) -> BucketLevel {
        self.leak(now);
        let (level, capacity) = self.main.units();
        BucketLevel { level, capacity, burst: self.burst.as_ref().map(Vessel::units) }
    }

    /// Makes it at least as full as another one of the same limits was ([`LeakyBucket::level`]).
    pub fn raise(&mut self, level: &BucketLevel, now: Time) {
        self.leak(now);
        self.main.raise(level.level);
        if let (Some(own), Some((burst, _))) = (&mut self.burst, level.burst) {
            own.raise(burst);
        }
    }

    fn leak(&mut self, now: Time) {
        if now <= self.updated {
            return;
        }
        let nanos = now.as_nanos() - self.updated.as_nanos();
        self.updated = now;
        self.main.leak(nanos);
        if let Some(burst) = &mut self.burst {
            burst.leak(nanos);
        }
    }
}

impl Vessel {
    fn new(capacity: u128, leak_per_second: u64) -> Self {
        Self { level: 0, capacity, leak_per_second }
    }

    fn leak(&mut self, nanos: u64) {
        self.level = self.level.saturating_sub(u128::from(nanos) * u128::from(self.leak_per_second));
    }

    fn wait_nanos(&self) -> u64 {
        match self.level.saturating_sub(self.capacity) {
            0 => 0,
            surplus => {
                let nanos = surplus.div_ceil(u128::from(self.leak_per_second.max(1)));
                u64::try_from(nanos).unwrap_or(u64::MAX)
            }
        }
    }

    fn raise(&mut self, units: f64) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "what is no level becomes the nearest one"
        )]
        let level = (units * NANO as f64) as u128;
        // Above this a level has no meaning: it would take all time to leak.
        self.level = self.level.max(level.min(u128::from(u64::MAX) * NANO));
    }

    fn room(&self) -> u128 {
        self.capacity.saturating_sub(self.level)
    }

    fn units(&self) -> (f64, f64) {
        (self.level as f64 / NANO as f64, self.capacity as f64 / NANO as f64)
    }
}

/// In billionths of a unit, exactly: a tenth of `rate` need not be a whole number of units.
fn tenth_of_a_second(rate: u64) -> u128 {
    u128::from(rate) * (NANO / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: u64 = 365 * 24 * 3600 * 1_000_000_000;

    /// Lets `requests` of one unit through as early as they may go; the time of the last one.
    fn drive(bucket: &mut LeakyBucket, mut now: Time, requests: u64) -> Time {
        for _ in 0..requests {
            now = now.after(bucket.wait(now));
            assert_eq!(bucket.wait(now), Duration::ZERO, "the wait that was asked for is enough");
            bucket.fill(NANO, now);
        }
        now
    }

    #[test]
    fn the_nth_request_goes_at_its_exact_nanosecond_however_old_the_clock_is() {
        for avg in [3_u64, 7, 1_000, 30_000, 999_983] {
            let start = Time::from_nanos(300 * YEAR + 12_345);
            let mut bucket = LeakyBucket::new(Rate { avg, max: 0, length: 1 }, start);
            let last = drive(&mut bucket, start, 1_000_000);
            // Request n may go when n - 1 units have leaked down to avg / 10.
            let exact = (999_999 * NANO - u128::from(avg) * NANO / 10).div_ceil(u128::from(avg));
            let late = u128::from(last.since(start).as_nanos() as u64) - exact;
            assert!(late <= 1, "avg {avg}: {late} ns late after a million requests");
        }
    }

    #[test]
    fn an_idle_century_empties_the_bucket_and_no_more() {
        let rate = Rate { avg: crate::RATE_MAX, max: crate::RATE_MAX, length: 1 };
        let mut bucket = LeakyBucket::new(rate, Time::default());
        bucket.fill(u128::from(u64::MAX) * NANO, Time::default());
        assert!(bucket.wait(Time::default()) > Duration::ZERO);
        let level = bucket.level(Time::from_nanos(100 * YEAR));
        assert_eq!((level.level, level.capacity), (0.0, crate::RATE_MAX as f64));
    }

    #[test]
    fn a_clock_that_steps_back_stands_still() {
        let mut bucket = LeakyBucket::new(Rate { avg: 10, max: 0, length: 1 }, Time::from_nanos(1_000));
        bucket.fill(2 * NANO, Time::from_nanos(1_000));
        assert_eq!(bucket.wait(Time::from_nanos(10)), Duration::from_millis(100));
        assert_eq!(bucket.wait(Time::from_nanos(1_000)), Duration::from_millis(100));
    }

    #[test]
    fn a_wait_longer_than_the_clock_ends_at_the_end_of_time() {
        let mut bucket = LeakyBucket::new(Rate { avg: 1, max: 0, length: 1 }, Time::default());
        bucket.fill(u128::MAX, Time::default());
        bucket.fill(u128::MAX, Time::default());
        assert_eq!(bucket.wait(Time::default()), Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn a_bucket_that_goes_on_for_another_one_is_as_full() {
        let rate = Rate { avg: 10, max: 100, length: 5 };
        let now = Time::from_nanos(7);
        let mut other = LeakyBucket::new(rate, now);
        other.fill(40 * NANO, now);
        let mut bucket = LeakyBucket::new(rate, now);
        bucket.raise(&other.level(now), now);
        assert_eq!(bucket.level(now), other.level(now));
        assert_eq!(bucket.wait(now), other.wait(now));
        // Never less than it is, whatever is said.
        for level in [-1.0, f64::NAN, 0.0] {
            bucket.raise(&BucketLevel { level, capacity: 0.0, burst: Some((level, 0.0)) }, now);
            assert_eq!(bucket.level(now), other.level(now));
        }
    }
}
