//! Limits, members and requests that come and go while others wait.

use crate::world;

use std::time::Duration;

use throttle::{Decision, Direction, Group, Request, Time, Weight};
use world::{Load, SECOND, World, assert_close, limits, requests};

const LATE: Duration = Duration::from_micros(60);

fn mixed(number: u64) -> Request {
    if number.is_multiple_of(3) { Request::write(4096 << (number % 4)) } else { Request::read(4096) }
}

#[test]
fn a_thousand_changes_of_limits_lose_no_request_and_keep_each_members_order() {
    let mut world = World::new(limits(&[("iops", 1000)]), LATE);
    for weight in [1, 100, 100, 10_000] {
        world.add(
            weight,
            Load { until: 10 * SECOND, latency: Duration::from_micros(100), ..Load::new(mixed, 16) },
        );
    }
    let settings = [
        limits(&[("iops", 1)]),
        limits(&[("bps-read", 1 << 20), ("bps-write", 1)]),
        limits(&[
            ("iops", 5000),
            ("iops-total-max", 9000),
            ("iops-total-max-length", 3),
            ("iops-size", 4096),
        ]),
        limits(&[]),
        limits(&[("bps", 10 << 20), ("iops-read", 300)]),
        limits(&[("iops-write", 2000)]),
    ];
    let mut changes_under_load = 0;
    for change in 0..1000_usize {
        world.run_until((change as u64 + 1) * SECOND / 100);
        changes_under_load += usize::from(world.waiting() > 0);
        world.set_limits(settings[change * 7 % settings.len()]);
    }
    world.set_limits(limits(&[("iops", 100_000)]));
    world.run_until(12 * SECOND);
    assert!(changes_under_load > 500, "{changes_under_load} changes came while requests waited");
    assert_eq!(world.waiting(), 0);
    let sent: u64 = (0..4).map(|client| world.sent(client)).sum();
    assert_eq!(world.passes.len() as u64, sent);
    assert!(sent > 10_000, "the load was there: {sent}");
}

#[test]
fn a_member_that_leaves_strands_nobody() {
    let mut world = World::new(limits(&[("iops", 1000)]), LATE);
    for _ in 0..4 {
        world.add(100, Load::new(mixed, 16));
    }
    world.run_until(SECOND);
    for client in 0..3 {
        world.leave(client);
        world.run_until((client as u64 + 2) * SECOND);
    }
    world.run_until(6 * SECOND);
    let shares = world.shares(5 * SECOND, 6 * SECOND, requests);
    assert_eq!(shares[..3], [0, 0, 0]);
    assert_close(shares[3] as f64, 1000.0, 0.01, "the one that stayed");
    assert!(world.waiting() <= 16, "the requests of those that left went");
}

#[test]
fn a_drained_member_goes_free_and_the_others_do_not_pay_for_it() {
    let mut world = World::new(limits(&[("iops", 1000)]), LATE);
    let drained = world.add(100, Load { latency: Duration::from_millis(1), ..Load::new(mixed, 16) });
    world.add(100, Load::new(mixed, 16));
    world.run_until(SECOND);
    world.drain(drained);
    world.run_until(2 * SECOND);
    world.end_drain(drained);
    world.run_until(4 * SECOND);
    let free = world.shares(SECOND, 2 * SECOND, requests);
    assert!(free[0] > 15_000, "16 in flight, a millisecond each: {free:?}");
    assert_close(free[1] as f64, 1000.0, 0.01, "the other has the limit to itself");
    let after = world.shares(3 * SECOND, 4 * SECOND, requests);
    assert_close(after[0] as f64, 500.0, 0.03, "limited again");
}

#[test]
fn a_disks_writes_at_their_limit_do_not_hold_up_its_reads() {
    let mut group = Group::new(limits(&[("iops-write", 10), ("iops-read", 10)]), Time::default());
    let member = group.join(Weight::default());
    let mut write = || group.enqueue(&member, Request::write(1), Time::default());
    assert_eq!([write(), write()], [Decision::Now, Decision::Now]);
    assert!(matches!(write(), Decision::Queued { .. }));
    assert_eq!(group.enqueue(&member, Request::read(1), Time::default()), Decision::Now);
}

#[test]
fn a_disks_waiting_reads_and_writes_take_turns_under_a_total() {
    let mut group = Group::new(limits(&[("iops", 10)]), Time::default());
    let member = group.join(Weight::default());
    let mut lines = [Vec::new(), Vec::new()];
    for number in 0..22 {
        let (line, request) = if number < 12 { (0, Request::read(1)) } else { (1, Request::write(1)) };
        if let Decision::Queued { ticket, .. } = group.enqueue(&member, request, Time::default()) {
            lines[line].push(ticket);
        }
    }
    let mut granted = Vec::new();
    let mut wake = group.wake(Time::default());
    while let Some(now) = wake {
        wake = group.poll(now, &mut granted);
    }
    let turns: Vec<_> = lines[0].iter().zip(&lines[1]).flat_map(|(read, write)| [*read, *write]).collect();
    assert_eq!((turns.len(), granted), (20, turns));
}

#[test]
fn a_request_does_not_overtake_one_of_the_other_direction_that_a_late_timer_has_yet_to_let_go() {
    let mut group = Group::new(limits(&[("bps", 1000), ("iops-read", 1000)]), Time::default());
    let member = group.join(Weight::default());
    assert_eq!(group.enqueue(&member, Request::write(1100), Time::default()), Decision::Now);
    assert!(matches!(group.enqueue(&member, Request::write(1000), Time::default()), Decision::Queued { .. }));
    let late = Time::from_nanos(SECOND + 1_000_000);
    let Decision::Queued { wake, .. } = group.enqueue(&member, Request::read(1000), late) else {
        panic!("the read took what the write had waited for")
    };
    assert_eq!(wake, late, "the timer is due");
    let mut granted = Vec::new();
    assert!(group.poll(late, &mut granted).is_some(), "one of the two waits on");
    assert_eq!(granted.len(), 1);
}

#[test]
fn a_request_that_is_given_up_is_gone_and_its_neighbours_are_served() {
    let mut group = Group::new(limits(&[("iops", 10)]), Time::default());
    let member = group.join(Weight::default());
    let start = Time::default();
    assert_eq!(group.enqueue(&member, Request::read(1), start), Decision::Now);
    assert_eq!(group.enqueue(&member, Request::read(1), start), Decision::Now);
    let tickets: Vec<_> = (0..3)
        .map(|_| match group.enqueue(&member, Request::read(1), start) {
            Decision::Queued { ticket, wake } => {
                assert_eq!(wake, Time::from_nanos(SECOND / 10));
                ticket
            }
            Decision::Now => panic!("the bucket is full"),
        })
        .collect();
    assert!(group.cancel(tickets[1], start));
    assert!(!group.cancel(tickets[1], start), "given up once");
    let mut granted = Vec::new();
    assert_eq!(group.poll(start, &mut granted), Some(Time::from_nanos(SECOND / 10)));
    assert_eq!(group.poll(Time::from_nanos(SECOND / 10), &mut granted), Some(Time::from_nanos(SECOND / 5)));
    assert_eq!(group.poll(Time::from_nanos(SECOND / 5), &mut granted), None);
    assert_eq!(granted, [tickets[0], tickets[2]]);
    assert!(!group.cancel(tickets[0], start), "it went");
}

#[test]
fn counters_tell_what_waited_and_how_long() {
    let mut group = Group::new(limits(&[("iops-write", 10)]), Time::default());
    let member = group.join(Weight::new(250).unwrap());
    let at = |millis: u64| Time::from_nanos(millis * 1_000_000);
    assert_eq!(group.enqueue(&member, Request::write(100), at(0)), Decision::Now);
    assert_eq!(group.enqueue(&member, Request::write(100), at(0)), Decision::Now);
    assert_eq!(group.enqueue(&member, Request::read(7), at(0)), Decision::Now);
    assert!(matches!(group.enqueue(&member, Request::write(50), at(20)), Decision::Queued { .. }));
    assert!(matches!(group.enqueue(&member, Request::write(60), at(40)), Decision::Queued { .. }));
    let waiting = group.report(at(50));
    assert_eq!(waiting.counters.of(Direction::Write).queued.bytes, 110);
    assert_eq!(waiting.time_at_limit, Duration::from_millis(30));
    assert_eq!(waiting.levels.len(), 1);
    assert_eq!((waiting.levels[0].1.level, waiting.levels[0].1.capacity), (1.5, 1.0));

    let mut granted = Vec::new();
    group.poll(at(100), &mut granted);
    group.poll(at(200), &mut granted);
    let report = group.member_report(&member, at(300));
    let writes = report.counters.of(Direction::Write);
    assert_eq!((writes.passed.requests, writes.passed.bytes), (4, 310));
    assert_eq!((writes.delayed.requests, writes.delayed.bytes), (2, 110));
    assert_eq!(writes.delayed_ns, 80_000_000 + 160_000_000);
    assert_eq!(writes.delays.count(), 2);
    assert_eq!(report.counters.queued_requests(), 0);
    assert_eq!(report.time_at_limit, Duration::from_millis(180));
    assert_eq!(report.weight.get(), 250);
    assert_eq!(report.counters, group.report(at(300)).counters, "a lone member is the group");
}

#[test]
fn what_is_charged_after_the_fact_is_paid_for_by_those_behind_it() {
    let mut group = Group::new(limits(&[("iops", 10)]), Time::default());
    let member = group.join(Weight::default());
    let start = Time::default();
    assert_eq!(group.opens(Direction::Read, start), Some(start));
    for _ in 0..3 {
        group.charge(&member, Request::read(1), start);
    }
    let open = Time::from_nanos(SECOND / 5);
    assert_eq!(group.opens(Direction::Read, start), Some(open));
    assert!(
        matches!(group.enqueue(&member, Request::write(1), start), Decision::Queued { wake, .. } if wake == open)
    );
    assert_eq!(group.opens(Direction::Read, start), None, "somebody came first");
    let mut granted = Vec::new();
    group.poll(open, &mut granted);
    assert_eq!(group.opens(Direction::Read, open), Some(Time::from_nanos(SECOND * 3 / 10)));
    assert_eq!(group.member_report(&member, open).counters.of(Direction::Read).passed.requests, 3);
}
