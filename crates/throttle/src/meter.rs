//! The six buckets of a disk or a group.

use std::time::Duration;

use crate::bucket::NANO;
use crate::{Amount, BucketLevel, Direction, Flow, LeakyBucket, Limits, Measure, Request, Time};

/// Tells how long a request must wait, and counts those that went.
#[derive(Clone, Debug)]
pub struct Meter {
    limits: Limits,
    buckets: [LeakyBucket; 6],
    /// What dividing by `iops-size` has left over so far, in billionths of a unit times that size:
    /// carried on, so that a million odd sizes add up exactly.
    remainder: u128,
}

impl Meter {
    /// Empty buckets for `limits`.
    pub fn new(limits: Limits, now: Time) -> Self {
        let buckets = Flow::ALL.map(|flow| LeakyBucket::new(limits.rate(flow), now));
        Self { limits, buckets, remainder: 0 }
    }

    /// The limits it keeps.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// How long until a request in `direction` may go; zero if one may go now. Its size plays no
    /// part: a request is allowed whole, and those after it pay.
    pub fn wait(&mut self, direction: Direction, now: Time) -> Duration {
        let mut wait = Duration::ZERO;
        for flow in Flow::of(direction) {
            wait = wait.max(self.buckets[flow.index()].wait(now));
        }
        wait
    }

    /// Charges a request that has been allowed, before it is dispatched.
    pub fn account(&mut self, request: Request, now: Time) {
        let operations = self.nano_operations(request.bytes);
        let bytes = u128::from(request.bytes) * NANO;
        for flow in Flow::of(request.direction) {
            let units = match flow.measure() {
                Measure::Operations => operations,
                Measure::Bytes => bytes,
            };
            self.buckets[flow.index()].fill(units, now);
        }
    }

    /// Charges several requests, each of which counts as one operation.
    pub(crate) fn account_all(&mut self, direction: Direction, amount: Amount, now: Time) {
        for flow in Flow::of(direction) {
            let units = match flow.measure() {
                Measure::Operations => amount.requests,
                Measure::Bytes => amount.bytes,
            };
            self.buckets[flow.index()].fill(u128::from(units) * NANO, now);
        }
    }

    /// How much in `direction` fits the buckets before one is full; `u64::MAX` where nothing is limited.
    pub(crate) fn room(&mut self, direction: Direction, now: Time) -> Amount {
        let mut room = Amount { requests: u64::MAX, bytes: u64::MAX };
        for flow in Flow::of(direction) {
            let Some(units) = self.buckets[flow.index()].room(now) else { continue };
            let units = u64::try_from(units / NANO).unwrap_or(u64::MAX);
            match flow.measure() {
                Measure::Operations => room.requests = room.requests.min(units),
                Measure::Bytes => room.bytes = room.bytes.min(units),
            }
        }
        room
    }

    /// How full the bucket of `flow` is, if it is limited.
    pub fn level(&mut self, flow: Flow, now: Time) -> Option<BucketLevel> {
        (!self.limits.rate(flow).is_unlimited()).then(|| self.buckets[flow.index()].level(now))
    }

    /// Makes the bucket of `flow` at least so full.
    pub fn raise(&mut self, flow: Flow, level: &BucketLevel, now: Time) {
        self.buckets[flow.index()].raise(level, now);
    }

    /// Billionths of an operation that a request counts as.
    fn nano_operations(&mut self, bytes: u64) -> u128 {
        let size = self.limits.iops_size();
        if size == 0 || bytes <= size {
            return NANO;
        }
        let exact = u128::from(bytes) * NANO + self.remainder;
        self.remainder = exact % u128::from(size);
        exact / u128::from(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Parameter, Part};

    fn meter(given: &[(Flow, u64)], iops_size: u64) -> Meter {
        let mut options = Options::new();
        for &(flow, avg) in given {
            options.set(Parameter::Rate(flow, Part::Average), avg);
        }
        options.set(Parameter::IopsSize, iops_size);
        Meter::new(options.check().unwrap(), Time::default())
    }

    fn level(meter: &mut Meter, flow: Flow) -> f64 {
        meter.level(flow, Time::default()).unwrap().level
    }

    #[test]
    fn a_large_request_counts_as_its_size_in_operations() {
        let mut meter = meter(&[(Flow::IopsTotal, 100)], 4096);
        for (bytes, level_after) in [(8192, 2.0), (6144, 3.5), (4096, 4.5), (512, 5.5), (0, 6.5)] {
            meter.account(Request::read(bytes), Time::default());
            assert_eq!(level(&mut meter, Flow::IopsTotal), level_after, "after {bytes} bytes");
        }
    }

    #[test]
    fn odd_sizes_add_up_without_a_rounding_error() {
        let mut meter = meter(&[(Flow::IopsTotal, 100)], 3);
        for _ in 0..300_000 {
            meter.account(Request::write(4), Time::default());
        }
        assert_eq!(level(&mut meter, Flow::IopsTotal), 400_000.0);
    }

    #[test]
    fn a_request_fills_the_total_and_its_own_direction() {
        let mut meter = meter(&[(Flow::IopsRead, 100), (Flow::IopsWrite, 100), (Flow::BpsTotal, 100)], 0);
        meter.account(Request::read(7), Time::default());
        meter.account(Request::write(30), Time::default());
        meter.account(Request::write(40), Time::default());
        let levels = [Flow::IopsRead, Flow::IopsWrite, Flow::BpsTotal].map(|flow| level(&mut meter, flow));
        assert_eq!(levels, [1.0, 2.0, 77.0]);
        assert_eq!(meter.level(Flow::BpsRead, Time::default()), None);
    }

    #[test]
    fn the_fullest_bucket_sets_the_wait() {
        let mut meter = meter(&[(Flow::IopsTotal, 10), (Flow::BpsWrite, 1000)], 0);
        meter.account(Request::write(2100), Time::default());
        assert_eq!(meter.wait(Direction::Write, Time::default()), Duration::from_secs(2));
        assert_eq!(meter.wait(Direction::Read, Time::default()), Duration::ZERO);
    }
}
