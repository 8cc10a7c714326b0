//! What changes while requests wait.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use throttle::{Limits, Request, Weight};

use super::assert_close;
use super::world::{SECOND, World, limits};
use crate::front::{Charge, Kind};

#[test]
fn a_thousand_changes_of_limits_groups_and_weights_under_load_lose_no_request() {
    let mut world = World::late(Duration::from_micros(60));
    let disks: Vec<_> = (0..6).map(|_| world.disk("iops=500,group=a")).collect();
    for disk in &disks {
        world.load(disk, 16, Duration::from_micros(100), |number| match number % 3 {
            0 => Request::write(4096),
            _ => Request::read(65_536),
        });
    }
    let settings = [
        limits("iops=1"),
        limits("bps_rd=1048576,bps_wr=1"),
        limits("iops=5000,iops_max=9000,iops_max_length=3,iops_size=4096"),
        Limits::default(),
        limits("bps=10485760,iops_rd=300"),
        limits("iops_wr=2000"),
    ];
    let mut waited = 0;
    for change in 0..1000_usize {
        world.run_for(SECOND / 200);
        let disk = &disks[change % disks.len()];
        waited += u64::from(disk.front.report().1.counters.queued_requests() > 0);
        match change % 4 {
            0 | 1 => disk.front.group().set_limits(settings[change * 7 % settings.len()]),
            2 => disk.front.set_group([Some("a"), Some("b"), None][change / 4 % 3]),
            _ => disk.front.set_weight(Weight::new(change as u64 % 300 + 1).expect("a weight")),
        }
    }
    assert!(waited > 200, "{waited} changes came while requests waited");
    world.stop();
    disks.iter().for_each(|disk| disk.front.group().set_limits(Limits::default()));
    world.run_for(SECOND);
    for disk in &disks {
        let figures = disk.front.statistics();
        let ended = figures.of(Kind::Read).requests + figures.of(Kind::Write).requests;
        assert_eq!(ended, disk.done());
        assert_eq!((figures.of(Kind::Read).in_flight, figures.of(Kind::Write).in_flight), (0, 0));
    }
    assert!(disks.iter().map(|disk| disk.done()).sum::<u64>() > 10_000);
}

#[test]
fn requests_that_are_given_up_leave_the_line_and_strand_nobody() {
    let mut world = World::new();
    let disk = world.disk("iops=100");
    let other = world.disk("iops=100");
    let handles: Vec<_> = (0..100)
        .map(|number| world.request(&disk, Kind::Read, Charge::Whole(Request::read(1)), number))
        .collect();
    world.request(&other, Kind::Read, Charge::Whole(Request::read(1)), 0);
    world.settle();
    let passed = disk.done();
    // The request that keeps the timer is among them, on whichever loop.
    for (number, handle) in handles.iter().enumerate().filter(|(number, _)| number % 5 != 0) {
        handle.abort();
        if number % 10 == 1 {
            world.settle();
        }
    }
    world.run_for(SECOND);
    let left = (passed..100).filter(|number| number % 5 == 0).count() as u64;
    assert_eq!(disk.done(), passed + left);
    assert_eq!(disk.front.statistics().of(Kind::Read).in_flight, 0);
    assert_eq!(disk.front.statistics().of(Kind::Read).requests, disk.done(), "given up is not done");
}

#[test]
fn a_disk_that_leaves_its_group_strands_nobody_and_what_it_had_waiting_goes() {
    let mut world = World::new();
    let disks: Vec<_> = (0..3).map(|_| world.disk("iops=100,group=g")).collect();
    for disk in &disks {
        world.load(disk, 8, Duration::ZERO, |_| Request::read(1));
    }
    world.run_for(SECOND);
    disks[0].stop();
    let before = disks[0].done();
    disks[0].front.set_group(None);
    world.settle();
    assert_eq!(disks[0].done() - before, 8, "all that waited");
    assert_eq!(disks[1].front.group().report().members, 2);
    let before = disks[1].done() + disks[2].done();
    world.run_for(2 * SECOND);
    assert_close(disks[1].done() + disks[2].done() - before, 200, 0.01, "the others have it all");
}

#[test]
fn a_drained_disk_lets_nothing_in_and_what_was_inside_end() {
    let mut world = World::new();
    let disk = world.disk("iops=100");
    world.load(&disk, 8, Duration::from_millis(3), |_| Request::write(1));
    world.run_for(SECOND);
    let drained = Rc::new(Cell::new(false));
    disk.front.close_gate();
    let (waiting, flag) = (Rc::clone(&disk), Rc::clone(&drained));
    world.spawn(async move {
        waiting.front.emptied().await;
        flag.set(true);
    });
    world.settle();
    assert!(!drained.get(), "requests are inside");
    let before = disk.done();
    world.run_for(Duration::from_millis(3));
    assert!(drained.get());
    assert_eq!(disk.done() - before, 8, "those that waited for the limit too, at once");
    assert!(disk.front.try_begin_read(4096).is_none());
    world.run_for(5 * SECOND);
    assert_eq!(disk.done() - before, 8, "nothing goes in");
    disk.front.open_gate();
    world.run_for(10 * SECOND);
    assert_close(disk.done() - before, 1010, 0.03, "limited as before");
}

#[test]
fn two_who_drain_at_a_time_both_keep_the_disk_shut() {
    let mut world = World::new();
    let disk = world.disk("");
    disk.front.close_gate();
    disk.front.close_gate();
    world.request(&disk, Kind::Flush, Charge::Free, 0);
    world.settle();
    disk.front.open_gate();
    world.settle();
    assert_eq!(disk.done(), 0);
    disk.front.open_gate();
    world.settle();
    assert_eq!(disk.done(), 1);
}

#[test]
fn a_disk_moved_while_it_is_drained_stays_drained_and_is_limited_afterwards() {
    let mut world = World::new();
    let disk = world.disk("iops=10");
    let _other = world.disk("iops=50,group=g");
    disk.front.suspend_limits();
    disk.front.set_group(Some("g"));
    world.load(&disk, 4, Duration::from_millis(1), |_| Request::read(1));
    world.run_for(SECOND);
    assert!(disk.done() > 3000, "limits do not hold: {}", disk.done());
    disk.front.restore_limits();
    world.run_for(SECOND);
    let before = disk.done();
    world.run_for(2 * SECOND);
    assert_close(disk.done() - before, 100, 0.02, "limits hold");
}
