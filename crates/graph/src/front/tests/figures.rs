//! The figures of the front.

use std::time::Duration;

use block::pace::Unpaced;
use throttle::{Direction, Request};

use super::world::{SECOND, World};
use crate::front::{BoundsError, Charge, Kind};

#[test]
fn every_request_is_counted_once_with_its_bytes_its_time_and_its_fate() {
    let mut world = World::new();
    let disk = world.disk("");
    world.load(&disk, 1, Duration::from_micros(100), |_| Request::write(512));
    world.run_for(Duration::from_micros(1000));
    disk.stop();
    world.run_for(Duration::from_micros(200));
    let figures = disk.front.statistics();
    let writes = figures.of(Kind::Write);
    assert_eq!((writes.requests, writes.failed, writes.in_flight), (disk.done(), 0, 0));
    assert_eq!(writes.bytes, 512 * disk.done());
    assert_eq!(writes.total_ns, 100_000 * disk.done());
    assert_eq!(writes.latencies.count(), disk.done());
    assert_eq!(writes.latencies.quantile(990), Some(Duration::from_nanos(131_072)));
    assert!(figures.idle.is_some_and(|idle| idle <= Duration::from_micros(200)), "{:?}", figures.idle);
}

#[test]
fn a_failed_request_is_counted_as_failed_and_its_bytes_are_not() {
    let mut world = World::new();
    let disk = world.disk("");
    let failing = disk.clone();
    world.spawn(async move {
        let inside = failing.front.begin(Kind::Discard, Charge::Free, &Unpaced).await;
        assert_eq!(failing.front.statistics().of(Kind::Discard).in_flight, 1);
        let _: Result<(), &str> = inside.end(Err("no"), 100);
    });
    world.settle();
    let discards = disk.front.statistics().of(Kind::Discard).clone();
    assert_eq!((discards.requests, discards.failed, discards.bytes, discards.in_flight), (0, 1, 0, 0));
}

#[test]
fn reads_answered_at_once_are_sampled_and_all_are_timed_once_bounds_are_chosen() {
    let world = World::new();
    let disk = world.disk("");
    let read = |nanos: u64| {
        let inline = disk.front.try_begin_read(4096).expect("no limit");
        world.advance(Duration::from_nanos(nanos));
        disk.front.end_inline(inline, Some(4096));
    };
    (0..32).for_each(|_| read(2000));
    let reads = disk.front.statistics().of(Kind::Read).clone();
    assert_eq!((reads.requests, reads.bytes), (32, 32 * 4096));
    assert_eq!((reads.total_ns, reads.latencies.count()), (32 * 2000, 32), "two stand for all");
    assert_eq!(reads.histogram, None);

    assert_eq!(
        disk.front.set_latency_bounds(Kind::Read, Some(&[5, 5])),
        Err(BoundsError::Order { found: 5, before: 5 })
    );
    disk.front.set_latency_bounds(Kind::Read, Some(&[1000, 3000])).unwrap();
    for nanos in [10, 999, 1000, 2000, 2999, 3000, 50_000] {
        read(nanos);
    }
    let histogram = disk.front.statistics().of(Kind::Read).histogram.clone().unwrap();
    assert_eq!((histogram.bounds_ns, histogram.counts), (vec![1000, 3000], vec![2, 3, 2]));
    disk.front.set_latency_bounds(Kind::Read, None).unwrap();
    assert_eq!(disk.front.statistics().of(Kind::Read).histogram, None);
}

#[test]
fn what_waited_is_reported_with_its_time_and_the_bucket_levels() {
    let mut world = World::new();
    let disk = world.disk("iops=10");
    world.request(&disk, Kind::Flush, Charge::Free, 100);
    for number in 0..5 {
        world.request(&disk, Kind::Read, Charge::Whole(Request::read(100)), number);
    }
    world.settle();
    let (group, member) = disk.front.report();
    assert_eq!(member.counters.of(Direction::Read).queued.requests, 3, "two fit the first bucket");
    assert_eq!(group.report().levels[0].1.level, 2.0, "a flush costs nothing");
    assert_eq!(disk.front.statistics().of(Kind::Read).in_flight, 3);
    world.run_for(SECOND);
    let (_, member) = disk.front.report();
    let reads = member.counters.of(Direction::Read);
    assert_eq!((reads.passed.requests, reads.delayed.requests), (5, 3));
    assert_eq!(reads.delayed_ns, 100_000_000 + 200_000_000 + 300_000_000);
    assert_eq!(member.time_at_limit, Duration::from_millis(300));
    // The wait is part of a request's time.
    assert_eq!(disk.front.statistics().of(Kind::Read).total_ns, 600_000_000);
}
