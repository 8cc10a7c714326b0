//! The front on a simulated clock: nothing here sleeps.

mod ahead;
mod figures;
mod steering;
mod threads;
mod world;

use std::time::Duration;

use throttle::{Direction, Request};

use self::world::{SECOND, World, limits};
use super::{Charge, Kind};

fn assert_close(found: u64, expected: u64, part: f64, what: &str) {
    let error = (found as f64 - expected as f64).abs() / expected as f64;
    assert!(error <= part, "{what}: {found} instead of {expected}");
}

#[test]
fn an_average_is_kept_whatever_the_depth_and_however_late_the_timers_are() {
    for (iops, depth, late) in
        [(100, 1, 60_000), (1_000, 32, 60_000), (30_000, 32, 60_000), (1_000, 4, 2_000_000)]
    {
        let mut world = World::late(Duration::from_nanos(late));
        let disk = world.disk(&format!("iops={iops}"));
        world.load(&disk, depth, Duration::from_micros(20), |_| Request::read(4096));
        world.run_for(SECOND);
        let before = disk.done();
        for second in 0..5 {
            let start = disk.done();
            world.run_for(SECOND);
            assert_close(disk.done() - start, iops, 0.02, &format!("{iops} IOPS, second {second}"));
        }
        assert_close(disk.done() - before, 5 * iops, 0.005, &format!("{iops} IOPS"));
    }
}

#[test]
fn reads_that_are_answered_at_once_are_charged_like_those_that_wait() {
    let world = World::new();
    let disk = world.disk("iops=100");
    let (mut at_once, mut refused) = (0, 0);
    for _ in 0..10_000 {
        world.advance(Duration::from_micros(500));
        match disk.front.try_begin_read(4096) {
            Some(inline) => {
                disk.front.end_inline(inline, Some(4096));
                at_once += 1;
            }
            None => refused += 1,
        }
    }
    assert_close(at_once, 500 + 10, 0.01, "five seconds and the first bucket");
    assert_eq!(at_once + refused, 10_000);
    let passed = disk.front.report().1.counters.of(Direction::Read).passed;
    assert_eq!((passed.requests, passed.bytes), (at_once, at_once * 4096));
}

#[test]
fn a_read_that_was_not_answered_at_once_costs_nothing_yet() {
    let world = World::new();
    let disk = world.disk("iops=10");
    for _ in 0..100 {
        let inline = disk.front.try_begin_read(4096).expect("nothing was charged");
        disk.front.end_inline(inline, None);
    }
    assert_eq!(disk.front.statistics().of(Kind::Read).requests, 0);
    assert_eq!(disk.front.statistics().of(Kind::Read).in_flight, 0);
}

#[test]
fn no_read_that_is_answered_at_once_overtakes_one_that_waits() {
    let mut world = World::new();
    let disk = world.disk("iops=10");
    world.load(&disk, 4, Duration::ZERO, |_| Request::read(1));
    world.run_for(SECOND);
    assert!(disk.front.try_begin_read(4096).is_none());
    world.stop();
    world.run_for(2 * SECOND);
    assert!(disk.front.try_begin_read(4096).is_some(), "nobody waits any more");
}

#[test]
fn requests_of_a_disk_go_in_the_order_in_which_they_came() {
    let mut world = World::new();
    let disk = world.disk("iops=1000");
    for number in 0..200 {
        world.request(&disk, Kind::Read, Charge::Whole(Request::read(512)), number);
    }
    world.run_for(SECOND);
    assert_eq!(*disk.order.borrow(), (0..200).collect::<Vec<_>>());
}

#[test]
fn who_names_the_same_group_shares_its_limit_and_an_idle_member_leaves_its_part_to_the_others() {
    let mut world = World::new();
    let disks: Vec<_> = (0..8).map(|_| world.disk("iops=4000,group=tenants")).collect();
    for disk in &disks {
        world.load(disk, 8, Duration::from_micros(50), |_| Request::write(4096));
    }
    world.run_for(SECOND);
    let before: Vec<u64> = disks.iter().map(|disk| disk.done()).collect();
    world.run_for(4 * SECOND);
    let parts: Vec<u64> = disks.iter().zip(&before).map(|(disk, before)| disk.done() - before).collect();
    assert_close(parts.iter().sum(), 16_000, 0.005, "all together");
    let (least, most) = (parts.iter().min().unwrap(), parts.iter().max().unwrap());
    assert!(*most as f64 <= 1.03 * *least as f64, "{parts:?}");
    disks[4..].iter().for_each(|disk| disk.stop());
    world.run_for(SECOND / 10);
    let before = disks[0].done();
    world.run_for(SECOND);
    assert_close(disks[0].done() - before, 1000, 0.01, "a quarter instead of an eighth");
}

#[test]
fn the_last_one_to_set_limits_wins_and_who_sets_none_leaves_them() {
    let world = World::new();
    let first = world.disk("iops=100,group=g");
    let second = world.disk("group=g");
    assert_eq!(second.front.group().limits(), limits("iops=100"));
    let third = world.disk("bps=5,group=g");
    assert_eq!(first.front.group().limits(), limits("bps=5"));
    assert_eq!(world.groups.list().len(), 1);
    assert_eq!(first.front.group().report().members, 3);
    drop((first, second, third));
    assert!(world.groups.find("g").is_none(), "a group ends with its last member");
}

#[test]
fn weights_divide_what_the_group_has() {
    let mut world = World::new();
    let disks = [1, 2, 4].map(|weight| world.disk(&format!("iops=700,group=g,weight={}", weight * 100)));
    for disk in &disks {
        world.load(disk, 16, Duration::ZERO, |_| Request::read(4096));
    }
    world.run_for(SECOND);
    let before = disks.each_ref().map(|disk| disk.done());
    world.run_for(10 * SECOND);
    for (index, disk) in disks.iter().enumerate() {
        assert_close(disk.done() - before[index], 1000 << index, 0.03, &format!("disk {index}"));
    }
}

#[test]
fn a_huge_write_of_zeroes_lets_others_in_between() {
    let mut world = World::new();
    let zeroing = world.disk("bps=10485760,group=g");
    let reading = world.disk("group=g");
    world.request(&zeroing, Kind::Zero, Charge::Pieces(Request::write(100 << 20)), 0);
    world.load(&reading, 1, Duration::ZERO, |_| Request::read(64 << 10));
    world.run_for(5 * SECOND);
    let read = reading.front.statistics().of(Kind::Read).bytes;
    assert_close(read, 25 << 20, 0.1, "half of five seconds' bytes");
    assert_eq!(zeroing.done(), 0);
    world.run_for(20 * SECOND);
    assert_eq!(zeroing.done(), 1);
    assert_eq!(zeroing.front.statistics().of(Kind::Zero).bytes, 100 << 20);
}

#[test]
fn a_request_that_goes_wakes_itself_and_few_others() {
    let mut world = World::new();
    let disks: Vec<_> = (0..64).map(|_| world.disk("iops=10000,group=g")).collect();
    for disk in &disks {
        world.load(disk, 4, Duration::ZERO, |_| Request::read(1));
    }
    world.run_for(SECOND);
    let done: u64 = disks.iter().map(|disk| disk.done()).sum();
    assert_close(done, 11_000, 0.01, "a second and the first bucket");
    // One poll to arrive and one to go, and a few for the timer: never all 256 that wait.
    assert!(world.polls() < 4 * done, "{} polls for {done} requests", world.polls());
    assert!(world.timers() < 2 * done, "{} timers for {done} requests", world.timers());
}
