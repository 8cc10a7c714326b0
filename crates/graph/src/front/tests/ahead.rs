//! Requests that go without the group's lock.

use throttle::{Direction, Request};

use super::world::{Disk, SECOND, World, limits};
use crate::front::{Charge, Kind};

/// Reads that are answered at once, until one would have to wait or there were so many.
fn read_at_once(disk: &Disk, most: u64) -> u64 {
    let mut count = 0;
    while count < most
        && let Some(inline) = disk.front.try_begin_read(4096)
    {
        disk.front.end_inline(inline, Some(4096));
        count += 1;
    }
    count
}

fn goes_ahead(disk: &Disk) -> bool {
    disk.front.membership.load().allows(Request::read(4096))
}

#[test]
fn what_goes_far_below_a_limit_is_counted_and_charged_all_the_same() {
    let mut world = World::new();
    let disk = world.disk("iops=1000000");
    assert_eq!(read_at_once(&disk, 700), 700);
    assert!(goes_ahead(&disk), "it was about this that nobody is asked");
    (0..100).for_each(|number| {
        world.request(&disk, Kind::Write, Charge::Whole(Request::write(512)), number);
    });
    world.settle();
    assert_eq!(disk.done(), 100);
    let (group, member) = disk.front.report();
    let passed = [Direction::Read, Direction::Write].map(|direction| member.counters.of(direction).passed);
    assert_eq!(passed.map(|passed| (passed.requests, passed.bytes)), [(700, 700 * 4096), (100, 51_200)]);
    assert_eq!(group.report().levels[0].1.level, 800.0);
    assert_eq!(group.report().counters.of(Direction::Read).passed.requests, 700);
}

#[test]
fn a_bucket_that_is_filled_at_once_holds_what_it_always_holds() {
    for (given, capacity) in [("iops=100000", 10_000), ("iops=100,iops_max=5000,iops_max_length=1", 5000)] {
        let world = World::new();
        let disk = world.disk(given);
        assert_eq!(read_at_once(&disk, u64::MAX), capacity + 1, "{given}: and the one that finds it full");
        world.advance(SECOND);
        assert!(goes_ahead(&disk) || read_at_once(&disk, 1) == 1, "{given}");
    }
}

#[test]
fn new_limits_take_back_what_was_granted_under_the_old_ones() {
    let world = World::new();
    let disk = world.disk("iops=1000000");
    read_at_once(&disk, 10);
    assert!(goes_ahead(&disk));
    disk.front.group().set_limits(limits("iops=10"));
    assert!(!goes_ahead(&disk));
    assert_eq!(read_at_once(&disk, 100), 2);
}

#[test]
fn nobody_goes_ahead_while_a_member_of_the_group_waits() {
    let mut world = World::new();
    let first = world.disk("iops=100000,group=g");
    let second = world.disk("group=g");
    read_at_once(&first, 1);
    assert!(goes_ahead(&first));
    for number in 0..10_100 {
        world.request(&second, Kind::Read, Charge::Whole(Request::read(512)), number);
    }
    world.settle();
    assert!(second.done() < 10_100, "the bucket is full");
    assert!(!goes_ahead(&first));
    assert_eq!(read_at_once(&first, 1), 0);
}

#[test]
fn requests_that_count_as_several_are_always_asked_for() {
    let world = World::new();
    let disk = world.disk("iops=1000000,iops_size=4096");
    read_at_once(&disk, 10);
    let allows = |bytes| disk.front.membership.load().allows(Request::read(bytes));
    assert_eq!([512, 4096, 4097].map(allows), [true, true, false]);
}

#[test]
fn a_disk_that_leaves_its_group_leaves_what_it_took_on_the_groups_account() {
    let world = World::new();
    let (first, second) = (world.disk("iops=1000000,group=g"), world.disk("group=g"));
    read_at_once(&first, 100);
    drop(first);
    assert_eq!(second.front.group().report().levels[0].1.level, 100.0);
}
