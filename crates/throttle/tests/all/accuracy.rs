//! A limit holds: on average over half a minute, and in each second of it.

use crate::world;

use std::time::Duration;

use throttle::{Limits, Request};
use world::{Load, Pass, Pattern, SECOND, World, assert_close, bytes, limits, requests};

const READS: Pattern = |_| Request::read(4096);
const WRITES: Pattern = |_| Request::write(4096);
const MIXED: Pattern = |number| if number % 3 == 0 { Request::write(4096) } else { Request::read(4096) };

/// Later than any timer should be.
const LATE: Duration = Duration::from_micros(60);

fn assert_holds(limits: Limits, rate: f64, load: Load, measure: fn(&Pass) -> u64, what: &str) {
    let mut world = World::new(limits, LATE);
    world.add(100, load);
    world.run_until(31 * SECOND);
    // The first second holds what the bucket let through at the start.
    let mean = world.sum(SECOND, 31 * SECOND, measure) as f64 / 30.0;
    assert_close(mean, rate, 0.005, what);
    let mut seconds = [0_u64; 31];
    for pass in &world.passes {
        seconds[((pass.time / SECOND) as usize).min(30)] += measure(pass);
    }
    for (second, &passed) in seconds.iter().enumerate().skip(1) {
        assert_close(passed as f64, rate, 0.02, &format!("{what}, second {second}"));
    }
    assert_close(seconds[0] as f64, rate * 1.1, 0.02, &format!("{what}, the first bucket"));
}

fn assert_iops_hold(rate: u64, pattern: Pattern, depth: u64) {
    let what = format!("{rate} IOPS at depth {depth}");
    assert_holds(limits(&[("iops", rate)]), rate as f64, Load::new(pattern, depth), requests, &what);
}

#[test]
fn operations_per_second_hold_for_reads_writes_and_both() {
    for rate in [100, 1_000, 10_000] {
        for depth in [1, 32] {
            for pattern in [READS, WRITES, MIXED] {
                assert_iops_hold(rate, pattern, depth);
            }
        }
    }
}

#[test]
fn thirty_thousand_operations_per_second_hold_though_timers_are_later_than_that() {
    assert_iops_hold(30_000, MIXED, 1);
    assert_iops_hold(30_000, READS, 32);
}

#[test]
fn bytes_per_second_hold() {
    let patterns: [(u64, Pattern); 3] = [
        (1, |number| Request::read(512 << (number % 4))),
        (10, |number| if number % 2 == 0 { Request::write(16 << 10) } else { Request::read(4 << 10) }),
        (100, |_| Request::write(64 << 10)),
    ];
    for (mebibytes, pattern) in patterns {
        for depth in [1, 32] {
            let rate = mebibytes << 20;
            let what = format!("{mebibytes} MiB/s at depth {depth}");
            assert_holds(limits(&[("bps", rate)]), rate as f64, Load::new(pattern, depth), bytes, &what);
        }
    }
}

#[test]
fn reads_and_writes_with_limits_of_their_own_hold_both() {
    let mut world = World::new(limits(&[("iops_rd", 1000), ("iops_wr", 300)]), LATE);
    world.add(100, Load::new(READS, 8));
    world.add(100, Load::new(WRITES, 8));
    world.run_until(11 * SECOND);
    let shares = world.shares(SECOND, 11 * SECOND, requests);
    assert_close(shares[0] as f64, 10_000.0, 0.005, "reads");
    assert_close(shares[1] as f64, 3_000.0, 0.005, "writes");
}

#[test]
fn a_total_beside_a_limit_for_reads_is_used_up_and_shared() {
    let mut world = World::new(limits(&[("bps", 8 << 20), ("iops_rd", 500)]), LATE);
    world.add(100, Load::new(READS, 8));
    world.add(100, Load::new(WRITES, 8));
    world.run_until(11 * SECOND);
    let shares = world.shares(SECOND, 11 * SECOND, bytes);
    assert_close((shares[0] + shares[1]) as f64, (80 << 20) as f64, 0.005, "together");
    assert_close(shares[0] as f64, 5000.0 * 4096.0, 0.01, "reads, which their own limit holds below half");
}

#[test]
fn an_operation_size_divides_the_rate_for_larger_requests() {
    let mut world = World::new(limits(&[("iops", 1000), ("iops_size", 4096)]), LATE);
    world.add(100, Load::new(|_| Request::read(10 << 10), 8));
    world.run_until(11 * SECOND);
    assert_close(world.sum(SECOND, 11 * SECOND, requests) as f64, 4000.0, 0.005, "10 KiB requests");
}

#[test]
fn a_limit_that_is_not_reached_delays_nothing() {
    let mut world = World::new(limits(&[("iops", 10_000), ("bps", 100 << 20)]), LATE);
    let load = Load { latency: Duration::from_micros(500), ..Load::new(MIXED, 4) };
    world.add(100, load);
    world.run_until(2 * SECOND);
    let report = world.group.report(world.now());
    let passed = throttle::Direction::BOTH.map(|direction| report.counters.of(direction).clone());
    assert!(passed[0].passed.requests + passed[1].passed.requests >= 15_999, "the load was there");
    assert_eq!(passed[0].delayed.requests + passed[1].delayed.requests, 0);
    assert_eq!(report.time_at_limit, Duration::ZERO);
}
