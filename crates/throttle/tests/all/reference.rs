//! The buckets against the published algorithm, written down plainly in floating point.

use crate::world;

use proptest::prelude::*;
use throttle::{Direction, Flow, Limits, Meter, Rate, Request, Time};
use world::limits;

/// One bucket as the algorithm is published.
struct Published {
    avg: f64,
    max: f64,
    length: f64,
    level: f64,
    burst_level: f64,
}

impl Published {
    fn new(rate: Rate) -> Self {
        Self {
            avg: rate.avg as f64,
            max: rate.max as f64,
            length: f64::from(rate.length),
            level: 0.0,
            burst_level: 0.0,
        }
    }

    fn leak(&mut self, seconds: f64) {
        self.level = (self.level - self.avg * seconds).max(0.0);
        self.burst_level = (self.burst_level - self.max * seconds).max(0.0);
    }

    /// Seconds to wait.
    fn wait(&self) -> f64 {
        if self.avg == 0.0 {
            return 0.0;
        }
        let capacity = if self.max == 0.0 { self.avg / 10.0 } else { self.max * self.length };
        let wait = ((self.level - capacity) / self.avg).max(0.0);
        let burst =
            if self.length > 1.0 { ((self.burst_level - self.max / 10.0) / self.max).max(0.0) } else { 0.0 };
        wait.max(burst)
    }

    fn fill(&mut self, units: f64) {
        self.level += units;
        self.burst_level += units;
    }
}

struct PublishedMeter {
    buckets: Vec<(Flow, Published)>,
    iops_size: f64,
}

impl PublishedMeter {
    fn new(limits: &Limits) -> Self {
        let buckets = Flow::ALL.map(|flow| (flow, Published::new(limits.rate(flow))));
        Self { buckets: buckets.into(), iops_size: limits.iops_size() as f64 }
    }

    fn applicable(&mut self, direction: Direction) -> impl Iterator<Item = &mut (Flow, Published)> {
        self.buckets.iter_mut().filter(move |(flow, _)| flow.direction().is_none_or(|own| own == direction))
    }

    fn leak(&mut self, seconds: f64) {
        self.buckets.iter_mut().for_each(|(_, bucket)| bucket.leak(seconds));
    }

    fn wait(&mut self, direction: Direction) -> f64 {
        self.applicable(direction).map(|(_, bucket)| bucket.wait()).fold(0.0, f64::max)
    }

    fn account(&mut self, request: Request) {
        let bytes = request.bytes as f64;
        let operations = if self.iops_size == 0.0 { 1.0 } else { (bytes / self.iops_size).max(1.0) };
        for (flow, bucket) in self.applicable(request.direction) {
            bucket.fill(match flow.measure() {
                throttle::Measure::Operations => operations,
                throttle::Measure::Bytes => bytes,
            });
        }
    }
}

fn any_rate(unit: u64) -> impl Strategy<Value = [u64; 3]> {
    (1..2000_u64, 1..20_u64, 1..30_u64, 0..3).prop_map(move |(avg, times, length, kind)| match kind {
        0 => [avg * unit, 0, 1],
        1 => [avg * unit, avg * times * unit, 1],
        _ => [avg * unit, avg * times * unit, length],
    })
}

fn any_limits() -> impl Strategy<Value = Limits> {
    let iops = (any_rate(1), any_rate(1), 0..3);
    let bps = (any_rate(1000), any_rate(1000), 0..3);
    (iops, bps, prop_oneof![Just(0), 1..20_000_u64]).prop_map(|(iops, bps, iops_size)| {
        let mut given = Vec::new();
        for (measure, (first, second, kind)) in [("iops", iops), ("bps", bps)] {
            let scopes: &[(&str, [u64; 3])] = match kind {
                0 => &[],
                1 => &[("total", first)],
                _ => &[("read", first), ("write", second)],
            };
            for (scope, [avg, max, length]) in scopes {
                given.push((format!("{measure}-{scope}"), *avg));
                given.push((format!("{measure}-{scope}-max"), *max));
                given.push((format!("{measure}-{scope}-max-length"), *length));
            }
        }
        if given.iter().any(|(name, _)| name.starts_with("iops")) {
            given.push(("iops-size".to_owned(), iops_size));
        }
        let given: Vec<(&str, u64)> = given.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        limits(&given)
    })
}

#[derive(Clone, Debug)]
struct Step {
    idle_nanos: u64,
    request: Request,
}

fn any_step() -> impl Strategy<Value = Step> {
    let idle = prop_oneof![Just(0_u64), 0..100_000_u64, 0..1_000_000_000_u64, 0..1_000_000_000_000_u64];
    (idle, any::<bool>(), 0..200_000_u64).prop_map(|(idle_nanos, reads, bytes)| Step {
        idle_nanos,
        request: if reads { Request::read(bytes) } else { Request::write(bytes) },
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Requests go one by one, each as soon as the meter lets it: the algorithm never says more than
    /// a microsecond more or less (floating point is the one that errs).
    #[test]
    fn the_meter_waits_as_long_as_the_published_algorithm(
        limits in any_limits(),
        start in 0..u64::MAX / 4,
        steps in prop::collection::vec(any_step(), 1..300),
    ) {
        let mut now = Time::from_nanos(start);
        let mut meter = Meter::new(limits, now);
        let mut published = PublishedMeter::new(&limits);
        let pass = |now: &mut Time, nanos: u64, published: &mut PublishedMeter| {
            *now = Time::from_nanos(now.as_nanos() + nanos);
            published.leak(nanos as f64 / 1e9);
        };
        for step in steps {
            pass(&mut now, step.idle_nanos, &mut published);
            let wait = meter.wait(step.request.direction, now);
            let expected = published.wait(step.request.direction);
            let difference = (wait.as_secs_f64() - expected).abs();
            prop_assert!(difference < 1e-6 + expected * 1e-9, "{wait:?} instead of {expected} s");
            pass(&mut now, wait.as_nanos() as u64, &mut published);
            prop_assert!(meter.wait(step.request.direction, now).is_zero());
            meter.account(step.request, now);
            published.account(step.request);
        }
    }
}
