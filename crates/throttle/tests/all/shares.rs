//! Who gets how much of a group.

use crate::world;

use std::time::Duration;

use throttle::{Limits, Request};
use world::{Load, Pass, Pattern, SECOND, World, assert_close, bytes, limits, requests};

const LATE: Duration = Duration::from_micros(60);
const READS: Pattern = |_| Request::read(4096);
const WRITES: Pattern = |_| Request::write(4096);
const LARGE_READS: Pattern = |_| Request::read(64 << 10);
const MIXED: Pattern = |number| if number % 2 == 0 { Request::write(4096) } else { Request::read(4096) };

fn group(limits: Limits, members: &[(u64, Load)]) -> World {
    let mut world = World::new(limits, LATE);
    for &(weight, load) in members {
        world.add(weight, load);
    }
    world
}

/// Shares of ten seconds, after the first one.
fn shares(limits: Limits, members: &[(u64, Load)], measure: fn(&Pass) -> u64) -> Vec<u64> {
    let mut world = group(limits, members);
    world.run_until(11 * SECOND);
    world.shares(SECOND, 11 * SECOND, measure)
}

fn assert_equal(shares: &[u64], what: &str) {
    let min = shares.iter().copied().min().unwrap_or(0);
    let max = shares.iter().copied().max().unwrap_or(0);
    assert!(min > 0 && max as f64 <= min as f64 * 1.03, "{what}: {min} to {max}");
}

fn assert_proportional(shares: &[u64], weights: &[u64], what: &str) {
    let sum: u64 = shares.iter().sum();
    let weight: u64 = weights.iter().sum();
    for (&share, &own) in shares.iter().zip(weights) {
        let expected = sum as f64 * own as f64 / weight as f64;
        assert_close(share as f64, expected, 0.03, &format!("{what}, weight {own} in {shares:?}"));
    }
}

#[test]
fn equal_members_get_equal_shares() {
    for members in [2, 8, 64] {
        for (pattern, depth) in [(READS, 1), (WRITES, 32), (MIXED, 4)] {
            let what = format!("{members} members at depth {depth}");
            let found =
                shares(limits(&[("iops", 5000)]), &vec![(100, Load::new(pattern, depth)); members], requests);
            assert_equal(&found, &what);
            assert_close(found.iter().sum::<u64>() as f64, 50_000.0, 0.005, &what);
        }
    }
}

#[test]
fn members_with_different_depths_get_equal_shares() {
    let loads: Vec<(u64, Load)> = [1, 2, 8, 64].map(|depth| (100, Load::new(READS, depth))).to_vec();
    assert_equal(&shares(limits(&[("iops", 2000)]), &loads, requests), "depths 1 to 64");
}

#[test]
fn bytes_are_shared_by_bytes_whatever_the_sizes_of_requests() {
    let loads = [(100, Load::new(READS, 8)), (100, Load::new(LARGE_READS, 8))];
    assert_equal(&shares(limits(&[("bps", 40 << 20)]), &loads, bytes), "4 KiB beside 64 KiB");
}

#[test]
fn operations_are_shared_by_what_they_count_as() {
    let loads = [(100, Load::new(READS, 8)), (100, Load::new(LARGE_READS, 8))];
    let found = shares(limits(&[("iops", 5000)]), &loads, requests);
    assert_equal(&found, "each request counts once");
    let found = shares(limits(&[("iops", 8500), ("iops-size", 4096)]), &loads, bytes);
    assert_equal(&found, "64 KiB count as sixteen");
}

#[test]
fn weights_divide_operations_and_bytes() {
    let weights = [100, 200, 400];
    for depth in [1, 16] {
        let loads = weights.map(|weight| (weight, Load::new(MIXED, depth)));
        let found = shares(limits(&[("iops", 3000)]), &loads, requests);
        assert_proportional(&found, &weights, &format!("operations at depth {depth}"));
        assert_close(found.iter().sum::<u64>() as f64, 30_000.0, 0.005, "all is given out");
    }
    let loads = [
        (100, Load::new(LARGE_READS, 8)),
        (200, Load::new(READS, 8)),
        (400, Load::new(|number| Request::write(512 << (number % 6)), 8)),
    ];
    let found = shares(limits(&[("bps", 50 << 20)]), &loads, bytes);
    assert_proportional(&found, &weights, "bytes in requests of 512 bytes to 64 KiB");
}

#[test]
fn under_a_total_a_reader_and_a_writer_are_weighed_against_each_other() {
    let loads = [(100, Load::new(READS, 8)), (400, Load::new(WRITES, 8))];
    assert_proportional(&shares(limits(&[("iops", 2000)]), &loads, requests), &[1, 4], "one total");
    let both = limits(&[("iops", 2000), ("bps-read", 1 << 30)]);
    assert_proportional(&shares(both, &loads, requests), &[1, 4], "a total beside a limit out of reach");
}

#[test]
fn reads_and_writes_with_limits_of_their_own_are_shared_independently() {
    let loads = [(100, READS), (300, READS), (400, WRITES), (100, WRITES)];
    let loads = loads.map(|(weight, pattern)| (weight, Load::new(pattern, 8)));
    let found = shares(limits(&[("iops-read", 3000), ("iops-write", 1000)]), &loads, requests);
    assert_proportional(&found[..2], &[1, 3], "reads");
    assert_proportional(&found[2..], &[4, 1], "writes");
    assert_close((found[0] + found[1]) as f64, 30_000.0, 0.005, "all reads");
    assert_close((found[2] + found[3]) as f64, 10_000.0, 0.005, "all writes");
}

#[test]
fn a_flood_of_writes_does_not_hold_up_the_same_disks_reads() {
    let mut world = World::new(limits(&[("iops", 100)]), LATE);
    world.add(100, Load { until: 1, ..Load::new(WRITES, 1000) });
    world.run_until(SECOND);
    world.add(100, Load { until: 2 * SECOND, ..Load::new(WRITES, 1000) });
    let reader = world.add(100, Load { until: SECOND + 1, ..Load::new(READS, 1) });
    world.run_until(2 * SECOND);
    let read = world.passes.iter().find(|pass| pass.client == reader).expect("the read went");
    assert!(read.time - SECOND <= 30_000_000, "after at most one request of each member");
}

#[test]
fn what_an_idle_member_leaves_goes_to_the_others_within_a_tenth_of_a_second() {
    let until = 5 * SECOND;
    let loads = [
        (100, Load::new(READS, 8)),
        (200, Load::new(READS, 8)),
        (400, Load { until, ..Load::new(READS, 8) }),
    ];
    let mut world = group(limits(&[("iops", 3000)]), &loads);
    world.run_until(7 * SECOND);
    let tenth = SECOND / 10;
    assert_close(
        world.sum(until, until + tenth, requests) as f64,
        300.0,
        0.02,
        "at once, nothing is left over",
    );
    let shares = world.shares(until + tenth, until + SECOND + tenth, requests);
    assert_eq!(shares[2], 0, "the idle member sends nothing");
    assert_proportional(&shares[..2], &[1, 2], "what the others get");
    assert_close((shares[0] + shares[1]) as f64, 3000.0, 0.01, "all is given out");
}

#[test]
fn a_member_that_returns_gets_its_share_within_a_tenth_of_a_second_and_no_more() {
    let mut world =
        group(limits(&[("iops", 3000)]), &[(100, Load::new(READS, 8)), (200, Load::new(READS, 8))]);
    world.run_until(5 * SECOND);
    world.add(300, Load::new(READS, 8));
    world.run_until(7 * SECOND);
    for from in [5 * SECOND, 5 * SECOND + SECOND / 10, 6 * SECOND] {
        assert_proportional(&world.shares(from, from + SECOND, requests), &[1, 2, 3], "from its return on");
    }
}

#[test]
fn a_changed_weight_counts_at_once() {
    let mut world =
        group(limits(&[("iops", 1000)]), &[(100, Load::new(READS, 8)), (100, Load::new(READS, 8))]);
    world.run_until(3 * SECOND);
    let member = world.group.join(throttle::Weight::default());
    let mut released = Vec::new();
    world.group.leave(&member, world.now(), &mut released);
    assert!(released.is_empty());
    let (group, member) = world.group_and_member(1);
    group.set_weight(member, throttle::Weight::new(300).unwrap());
    world.run_until(6 * SECOND);
    assert_proportional(&world.shares(3 * SECOND, 6 * SECOND, requests), &[1, 3], "after the change");
}

#[test]
fn members_that_only_joined_cost_the_others_nothing() {
    let mut loads = vec![(100, Load::new(READS, 0)); 63];
    loads.push((1, Load::new(READS, 8)));
    let found = shares(limits(&[("iops", 1000)]), &loads, requests);
    assert_close(found[63] as f64, 10_000.0, 0.005, "the only one that sends");
}
