//! A throttle group as requests meet it: they ask, and wait for their turn.
//!
//! [`throttle::Group`] decides; what is added here is the lock around it, the wakers, and its one timer. The timer
//! belongs to one of the requests that wait, the *keeper*: it sleeps on the loop on which it waits, and lets go
//! whoever's turn has come. When the keeper goes, the one who came last takes over, since it will wait longest. So
//! a group needs no task of its own: wherever somebody waits, there is a loop that runs, and no loop that
//! ends takes the timer with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Release};
use std::task::Waker;

use parking_lot::Mutex;
use smallvec::SmallVec;
use throttle::{
    Decision, Direction, Group, GroupReport, Limits, MemberId, MemberReport, Request, Ticket, Time, Weight,
};

use super::clock::Clock;
use super::waiting::Waiting;

/// Disks that share limits. Everything may be called from any thread.
#[derive(Debug)]
pub struct ThrottleGroup {
    name: Option<String>,
    pub(super) clock: Arc<dyn Clock>,
    /// Some limit is set.
    limited: AtomicBool,
    /// Per direction: from when on a request need not ask first, in nanoseconds.
    opens: [AtomicU64; 2],
    line: Mutex<Line>,
}

/// Who waits, and who has the timer.
#[derive(Debug)]
struct Line {
    group: Group,
    /// By ticket, so that who came last is last. Who is not here (any more) may go.
    waiting: BTreeMap<Ticket, Option<Waker>>,
    timer: Option<Timer>,
    granted: Vec<Ticket>,
}

#[derive(Clone, Copy, Debug)]
struct Timer {
    keeper: Ticket,
    at: Time,
}

/// To be woken when the lock is free again.
type Wakers = SmallVec<[Waker; 8]>;

/// What a request that waits finds when it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// It may go.
    Granted,
    /// It waits.
    Wait,
    /// It waits, and is to look again at this time on behalf of all.
    Keep(Time),
}

impl ThrottleGroup {
    pub(super) fn new(name: Option<String>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let group = Group::new(Limits::default(), clock.now());
        let line = Line { group, waiting: BTreeMap::new(), timer: None, granted: Vec::new() };
        let (limited, opens) = (AtomicBool::new(false), Default::default());
        Arc::new(Self { name, clock, limited, opens, line: Mutex::new(line) })
    }

    /// What it is called; `None` for the group of a disk that named none.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The limits in force.
    pub fn limits(&self) -> Limits {
        *self.line.lock().group.limits()
    }

    /// Puts new limits in force for all members, whoever set the old ones, and empties the buckets.
    /// Requests that wait stay in line; those that may go under the new limits do.
    pub fn set_limits(&self, limits: Limits) {
        self.change(|line, now| {
            line.group.set_limits(limits, now);
            self.limited.store(!limits.is_unlimited(), Release);
        });
    }

    /// The limits in force, if anything is limited.
    pub(super) fn limits_if_any(&self) -> Option<Limits> {
        self.is_limited().then(|| self.limits())
    }

    /// Limits, figures and levels.
    pub fn report(&self) -> GroupReport {
        self.line.lock().group.report(self.clock.now())
    }

    /// Whether any limit is set: if not, nobody asks.
    #[inline]
    pub(super) fn is_limited(&self) -> bool {
        self.limited.load(Acquire)
    }

    /// Whether a request in `direction` may go at once and be charged afterwards. No lock.
    #[inline]
    pub(super) fn is_open(&self, direction: Direction, now: Time) -> bool {
        now.as_nanos() >= self.opens[place(direction)].load(Acquire)
    }

    pub(super) fn join(&self, weight: Weight) -> MemberId {
        self.line.lock().group.join(weight)
    }

    pub(super) fn leave(&self, member: &MemberId) {
        self.change(|line, now| {
            line.group.leave(member, now, &mut line.granted);
        });
    }

    pub(super) fn drain(&self, member: &MemberId) {
        self.change(|line, now| {
            line.group.drain(member, now, &mut line.granted);
        });
    }

    pub(super) fn end_drain(&self, member: &MemberId) {
        self.line.lock().group.end_drain(member);
    }

    pub(super) fn set_weight(&self, member: &MemberId, weight: Weight) {
        self.line.lock().group.set_weight(member, weight);
    }

    pub(super) fn member_report(&self, member: &MemberId) -> MemberReport {
        self.line.lock().group.member_report(member, self.clock.now())
    }

    pub(super) fn charge(&self, member: &MemberId, request: Request, now: Time) {
        let mut line = self.line.lock();
        line.group.charge(member, request, now);
        self.publish(&mut line, now);
    }

    /// Waits until `request` may go; it is charged then. Dropped meanwhile, it leaves the line.
    pub(super) async fn pass(&self, member: &MemberId, request: Request) {
        if self.is_limited()
            && let Some(ticket) = self.ask(member, request)
        {
            Waiting::new(self, ticket).await;
        }
    }

    fn ask(&self, member: &MemberId, request: Request) -> Option<Ticket> {
        let now = self.clock.now();
        let mut line = self.line.lock();
        let ticket = match line.group.enqueue(member, request, now) {
            Decision::Now => None,
            Decision::Queued { ticket, wake } => {
                line.waiting.insert(ticket, None);
                // It looks as soon as it is polled, and takes the timer then.
                if line.timer.is_none_or(|timer| wake < timer.at) {
                    line.timer = Some(Timer { keeper: ticket, at: wake });
                }
                Some(ticket)
            }
        };
        self.publish(&mut line, now);
        ticket
    }

    /// Looks on behalf of the request with `ticket`, which `waker` wakes.
    pub(super) fn look(&self, ticket: Ticket, waker: &Waker) -> Look {
        let now = self.clock.now();
        let mut wakers = Wakers::new();
        let look = {
            let mut line = self.line.lock();
            if line.timer.is_none_or(|timer| timer.keeper == ticket || timer.at <= now) {
                line.settle(now, Some(ticket), &mut wakers);
                self.publish(&mut line, now);
            }
            line.look(ticket, waker)
        };
        wakers.into_iter().for_each(Waker::wake);
        look
    }

    /// The request with `ticket` waits no more, because nobody wants it.
    pub(super) fn cancel(&self, ticket: Ticket) {
        self.change(|line, now| {
            if line.waiting.remove(&ticket).is_some() {
                line.group.cancel(ticket, now);
            }
        });
    }

    /// Changes something, then lets go whoever may go.
    fn change(&self, change: impl FnOnce(&mut Line, Time)) {
        let now = self.clock.now();
        let mut wakers = Wakers::new();
        {
            let mut line = self.line.lock();
            change(&mut line, now);
            line.settle(now, None, &mut wakers);
            self.publish(&mut line, now);
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Tells those who do not ask first from when on they may go.
    fn publish(&self, line: &mut Line, now: Time) {
        for direction in Direction::BOTH {
            let opens = line.group.opens(direction, now).map_or(u64::MAX, Time::as_nanos);
            self.opens[place(direction)].store(opens, Release);
        }
    }
}

impl Line {
    /// Lets go whoever may go, and sees to it that somebody keeps the timer. `asking` is at work and
    /// need not be woken.
    fn settle(&mut self, now: Time, asking: Option<Ticket>, wakers: &mut Wakers) {
        let next = self.group.poll(now, &mut self.granted);
        for ticket in self.granted.drain(..) {
            let waker = self.waiting.remove(&ticket).flatten();
            wakers.extend(waker.filter(|_| asking != Some(ticket)));
        }
        let Some(at) = next else {
            debug_assert!(self.waiting.is_empty(), "somebody waits and the group does not know");
            self.timer = None;
            return;
        };
        let keeper = self.timer.filter(|timer| self.waiting.contains_key(&timer.keeper));
        match keeper {
            Some(timer) if asking == Some(timer.keeper) => self.timer = Some(Timer { at, ..timer }),
            // It looks too early once, and knows better then.
            Some(timer) if timer.at <= at => {}
            Some(timer) => self.hand_timer_to(timer.keeper, at, wakers),
            None => {
                let successor = asking.filter(|asking| self.waiting.contains_key(asking));
                let last = || self.waiting.last_key_value().map(|(&ticket, _)| ticket);
                match successor {
                    Some(keeper) => self.timer = Some(Timer { keeper, at }),
                    None => last().into_iter().for_each(|keeper| self.hand_timer_to(keeper, at, wakers)),
                }
            }
        }
    }

    fn hand_timer_to(&mut self, keeper: Ticket, at: Time, wakers: &mut Wakers) {
        self.timer = Some(Timer { keeper, at });
        wakers.extend(self.waiting.get(&keeper).and_then(Clone::clone));
    }

    fn look(&mut self, ticket: Ticket, waker: &Waker) -> Look {
        let Some(known) = self.waiting.get_mut(&ticket) else { return Look::Granted };
        match known {
            Some(known) => known.clone_from(waker),
            None => *known = Some(waker.clone()),
        }
        match self.timer {
            Some(timer) if timer.keeper == ticket => Look::Keep(timer.at),
            _ => Look::Wait,
        }
    }
}

fn place(direction: Direction) -> usize {
    match direction {
        Direction::Read => 0,
        Direction::Write => 1,
    }
}
