//! What holds for a group whatever is done to it.

use crate::world;

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use throttle::{Decision, Direction, Group, Limits, MemberId, Request, Ticket, Time, Weight};
use world::limits;

#[derive(Clone, Debug)]
enum Act {
    Join(u64),
    Leave(usize),
    Enqueue(usize, Request),
    Cancel(usize),
    Drain(usize),
    EndDrain(usize),
    SetWeight(usize, u64),
    SetLimits(usize),
    Pass(u64),
    Poll,
    SleepUntilWoken,
}

fn any_act() -> impl Strategy<Value = Act> {
    let request = (any::<bool>(), prop_oneof![0..100_000_u64, Just(u64::MAX)])
        .prop_map(|(reads, bytes)| if reads { Request::read(bytes) } else { Request::write(bytes) });
    prop_oneof![
        1 => (1..=10_000_u64).prop_map(Act::Join),
        1 => any::<usize>().prop_map(Act::Leave),
        20 => (any::<usize>(), request).prop_map(|(member, request)| Act::Enqueue(member, request)),
        3 => any::<usize>().prop_map(Act::Cancel),
        1 => any::<usize>().prop_map(Act::Drain),
        1 => any::<usize>().prop_map(Act::EndDrain),
        1 => (any::<usize>(), 1..=10_000_u64).prop_map(|(member, weight)| Act::SetWeight(member, weight)),
        1 => any::<usize>().prop_map(Act::SetLimits),
        4 => (0..1_000_000_000_u64).prop_map(Act::Pass),
        4 => Just(Act::Poll),
        6 => Just(Act::SleepUntilWoken),
    ]
}

fn settings() -> Vec<Limits> {
    vec![
        limits(&[]),
        limits(&[("iops", 7)]),
        limits(&[("iops-read", 3), ("iops-write", 1000), ("iops-size", 1000)]),
        limits(&[("bps", 50_000), ("iops-read", 20)]),
        limits(&[("bps", 100_000), ("bps_max", 200_000), ("bps_max_length", 5), ("iops", 1000)]),
        limits(&[("bps-write", 1)]),
    ]
}

/// What must be true of the group, kept beside it.
struct Witness {
    group: Group,
    now: Time,
    members: Vec<(u64, MemberId)>,
    joined: u64,
    /// Tickets that wait, per member and direction, in the order in which they were drawn.
    waiting: BTreeMap<(u64, Direction), VecDeque<Ticket>>,
    /// When the timer rings, as the group last said.
    timer: Option<Time>,
}

impl Witness {
    fn new() -> Self {
        let now = Time::from_nanos(1 << 60);
        let mut witness = Self {
            group: Group::new(settings()[1], now),
            now,
            members: Vec::new(),
            joined: 0,
            waiting: BTreeMap::new(),
            timer: None,
        };
        witness.join(100);
        witness.join(300);
        witness
    }

    fn join(&mut self, weight: u64) {
        let member = self.group.join(Weight::new(weight).expect("in range"));
        self.members.push((self.joined, member));
        self.joined += 1;
    }

    fn index(&self, number: usize) -> usize {
        number % self.members.len()
    }

    fn count(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }

    fn perform(&mut self, act: Act) {
        match act {
            Act::Join(weight) => self.join(weight),
            Act::Leave(number) if self.members.len() > 1 => self.leave(number),
            Act::Leave(_) => {}
            Act::Enqueue(number, request) => self.enqueue(number, request),
            Act::Cancel(number) => self.cancel(number),
            Act::Drain(number) => {
                let index = self.index(number);
                let mut released = Vec::new();
                self.group.drain(&self.members[index].1, self.now, &mut released);
                self.expect_released(self.members[index].0, &released);
            }
            Act::EndDrain(number) => {
                let index = self.index(number);
                self.group.end_drain(&self.members[index].1);
            }
            Act::SetWeight(number, weight) => {
                let index = self.index(number);
                self.group.set_weight(&self.members[index].1, Weight::new(weight).expect("in range"));
            }
            Act::SetLimits(number) => {
                let settings = settings();
                self.group.set_limits(settings[number % settings.len()], self.now);
                self.poll();
            }
            Act::Pass(nanos) => self.now = Time::from_nanos(self.now.as_nanos() + nanos),
            Act::Poll => {
                self.poll();
            }
            Act::SleepUntilWoken => self.sleep_until_woken(),
        }
    }

    fn enqueue(&mut self, number: usize, request: Request) {
        let index = self.index(number);
        let (member, id) = &self.members[index];
        let line = self.waiting.entry((*member, request.direction)).or_default();
        match self.group.enqueue(id, request, self.now) {
            Decision::Now => assert!(line.is_empty(), "overtook an earlier request"),
            Decision::Queued { ticket, wake } => {
                assert!(wake >= self.now);
                line.push_back(ticket);
                self.timer = Some(self.timer.map_or(wake, |timer| timer.min(wake)));
            }
        }
    }

    fn cancel(&mut self, number: usize) {
        if self.count() == 0 {
            return;
        }
        let at = number % self.count();
        let ticket = *self.waiting.values().flatten().nth(at).expect("fewer than wait");
        assert!(self.group.cancel(ticket, self.now));
        assert!(!self.group.cancel(ticket, self.now));
        self.waiting.values_mut().for_each(|queue| queue.retain(|&waiting| waiting != ticket));
    }

    fn leave(&mut self, number: usize) {
        let index = self.index(number);
        let (member, id) = self.members.swap_remove(index);
        let mut released = Vec::new();
        self.group.leave(&id, self.now, &mut released);
        self.expect_released(member, &released);
    }

    /// Exactly the member's own requests are released.
    fn expect_released(&mut self, member: u64, released: &[Ticket]) {
        let mut own: Vec<Ticket> = Vec::new();
        for direction in Direction::BOTH {
            own.extend(self.waiting.remove(&(member, direction)).unwrap_or_default());
        }
        assert_eq!(released, own);
    }

    /// Each grant is the oldest of its member and direction; the wake is after now, and stands
    /// exactly while a member waits. How many were granted.
    fn poll(&mut self) -> usize {
        let mut granted = Vec::new();
        let wake = self.group.poll(self.now, &mut granted);
        for ticket in &granted {
            let queue = self.waiting.values_mut().find(|queue| queue.front() == Some(ticket));
            queue.expect("the oldest of its queue").pop_front();
        }
        assert_eq!(wake.is_some(), self.count() > 0, "a wake exactly while somebody waits");
        assert!(wake.is_none_or(|wake| wake > self.now), "all that may go went");
        self.timer = wake;
        granted.len()
    }

    /// The timer, as the group set it, never lets down those that wait.
    fn sleep_until_woken(&mut self) {
        if self.count() == 0 {
            return;
        }
        let timer = self.timer.expect("somebody waits, so a timer stands");
        if timer.as_nanos() - self.now.as_nanos().min(timer.as_nanos()) > 1 << 50 {
            return;
        }
        self.now = self.now.max(timer);
        let before = self.count();
        if self.poll() == 0 {
            // A cancelled request may have been the one that the timer was for.
            assert!(self.timer.is_some_and(|next| next > timer), "{before} wait, and time goes on");
        }
    }

    fn counters_agree(&mut self) {
        let report = self.group.report(self.now);
        assert_eq!(report.members, self.members.len());
        for direction in Direction::BOTH {
            let waiting: usize =
                self.waiting.iter().filter(|(key, _)| key.1 == direction).map(|(_, queue)| queue.len()).sum();
            assert_eq!(report.counters.of(direction).queued.requests, waiting as u64);
        }
        for (member, id) in &self.members {
            let queued = self.group.member_report(id, self.now).counters.queued_requests();
            let own = Direction::BOTH
                .map(|direction| self.waiting.get(&(*member, direction)).map_or(0, VecDeque::len));
            assert_eq!(queued, (own[0] + own[1]) as u64);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_request_is_lost_doubled_overtaken_or_stranded(acts in prop::collection::vec(any_act(), 1..200)) {
        let mut witness = Witness::new();
        for act in acts {
            witness.perform(act);
            witness.counters_agree();
        }
        witness.group.set_limits(Limits::default(), witness.now);
        witness.poll();
        prop_assert_eq!(witness.count(), 0, "without limits all go");
    }
}
