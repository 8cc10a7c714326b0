//! Bursts follow the published curve: what the buckets hold at the start, then the burst rate until
//! the long bucket is full, then the average.

use crate::world;

use std::time::Duration;

use throttle::{Limits, Request};
use world::{Load, SECOND, World, assert_close, limits, requests};

fn burst_limits(length: u64) -> Limits {
    limits(&[("iops", 100), ("iops-total-max", 2000), ("iops-total-max-length", length)])
}

fn burst_world(length: u64) -> World {
    let mut world = World::new(burst_limits(length), Duration::from_micros(60));
    world.add(100, Load::new(|_| Request::read(4096), 32));
    world
}

/// What has passed after `seconds`, by the formula: the fuller of two buckets decides.
fn formula(length: f64, seconds: f64) -> f64 {
    (2000.0 * length + 100.0 * seconds).min(200.0 + 2000.0 * seconds)
}

fn assert_curve(length: u64, seconds: u64) {
    let mut world = burst_world(length);
    world.run_until(seconds * SECOND);
    let mut sum = 0.0;
    for second in 0..seconds {
        let passed = world.sum(second * SECOND, (second + 1) * SECOND, requests) as f64;
        sum += passed;
        let expected = formula(length as f64, second as f64 + 1.0);
        assert_close(sum, expected, 0.01, &format!("length {length}, up to the end of second {second}"));
        let before = if second == 0 { 0.0 } else { formula(length as f64, second as f64) };
        assert_close(passed, expected - before, 0.01, &format!("length {length}, in second {second}"));
    }
}

#[test]
fn a_burst_of_a_minute_follows_the_curve() {
    assert_curve(60, 90);
}

#[test]
fn a_burst_of_three_seconds_follows_the_curve() {
    assert_curve(3, 10);
}

#[test]
fn half_the_idle_time_buys_half_the_burst() {
    let mut idle = World::new(burst_limits(60), Duration::ZERO);
    idle.add(100, Load { until: 100 * SECOND, ..Load::new(|_| Request::read(4096), 32) });
    idle.run_until(700 * SECOND);
    idle.add(100, Load::new(|_| Request::read(4096), 32));
    idle.run_until(800 * SECOND);
    // 600 s have leaked 60,000 of 120,000: (60,000 - 200) / 1,900 s at the burst rate.
    let lasts = 59_800.0 / 1_900.0;
    let burst = idle.sum(700 * SECOND, (700.0 * 1e9 + lasts * 1e9) as u64, requests);
    assert_close(burst as f64, 200.0 + 2000.0 * lasts, 0.01, "the burst");
    let after = idle.sum(740 * SECOND, 800 * SECOND, requests);
    assert_close(after as f64, 6_000.0, 0.01, "after the burst");
}

#[test]
fn without_a_length_the_burst_goes_at_once() {
    let mut world = World::new(limits(&[("iops", 100), ("iops-total-max", 2000)]), Duration::ZERO);
    world.add(100, Load { latency: Duration::ZERO, ..Load::new(|_| Request::write(512), 32) });
    world.run_until(10 * SECOND);
    assert_eq!(world.sum(0, 1, requests), 2001, "the capacity, and the one that finds it full to the brim");
    assert_eq!(world.sum(1, 10 * SECOND + 1, requests), 1000);
}
