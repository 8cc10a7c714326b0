//! A throttle group as requests meet it: they ask, and wait for their turn.
//!
//! [`throttle::Group`] decides; what is added here is the lock around it, the wakers, and its one timer. The
//! timer belongs to one of the waiting requests, the *keeper*: it sleeps on its own event loop, and wakes
//! exactly the requests that may go. When the keeper goes, the newest request becomes the keeper, since it
//! will wait longest. So a group needs no task of its own: a waiting request has a running loop, and no loop
//! that ends takes the timer with it.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Release};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use smallvec::SmallVec;
use throttle::{
    Amount, BucketLevel, Decision, Direction, Flow, Group, GroupReport, Limits, MemberReport, Request,
    Ticket, Time, Weight,
};

use super::ahead::{Ahead, place};
use super::clock::{Clock, Sleep};
use super::membership::Seat;

/// Disks that share limits. Everything may be called from any thread.
#[derive(Debug)]
pub struct ThrottleGroup {
    name: Option<String>,
    pub(super) clock: Arc<dyn Clock>,
    /// Some limit is set.
    limited: AtomicBool,
    /// Per direction: from when on a request need not ask first, in nanoseconds.
    opens: [AtomicU64; 2],
    /// Requests of at most so many bytes are one operation each.
    counts_once_max: AtomicU64,
    line: Mutex<Line>,
}

/// The requests that wait, and which of them has the timer.
#[derive(Debug)]
struct Line {
    group: Group,
    /// All members.
    seats: Vec<Arc<Seat>>,
    /// Some member may have requests granted ahead: they go without taking the lock.
    granted_ahead: bool,
    /// By ticket, in the order of arrival. A request that is not here (any more) may go.
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
        let line = Line {
            group,
            seats: Vec::new(),
            granted_ahead: false,
            waiting: BTreeMap::new(),
            timer: None,
            granted: Vec::new(),
        };
        let (limited, opens) = (AtomicBool::new(false), Default::default());
        let counts_once_max = AtomicU64::new(u64::MAX);
        Arc::new(Self { name, clock, limited, opens, counts_once_max, line: Mutex::new(line) })
    }

    /// What it is called; `None` for the group of a disk that named none.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The limits in force.
    pub fn limits(&self) -> Limits {
        *self.line.lock().group.limits()
    }

    /// Puts new limits in force for all members, and empties the buckets.
    /// Requests that wait stay in line; those that may go under the new limits do.
    pub fn set_limits(&self, limits: Limits) {
        self.change(|line, now| {
            line.group.set_limits(limits, now);
            let once = if limits.iops_size() == 0 { u64::MAX } else { limits.iops_size() };
            self.counts_once_max.store(once, Release);
            self.limited.store(!limits.is_unlimited(), Release);
        });
    }

    /// Makes buckets at least so full: what another process charged.
    pub fn raise_levels(&self, levels: &[(Flow, BucketLevel)]) {
        self.change(|line, now| line.group.raise_levels(levels, now));
    }

    /// The limits in force, if anything is limited.
    pub(super) fn limits_if_any(&self) -> Option<Limits> {
        self.is_limited().then(|| self.limits())
    }

    /// Limits, figures and levels.
    pub fn report(&self) -> GroupReport {
        let now = self.clock.now();
        let mut line = self.line.lock();
        line.collect_all(now);
        line.group.report(now)
    }

    /// Whether any limit is set. If not, requests do not consult the group.
    #[inline]
    pub(super) fn is_limited(&self) -> bool {
        self.limited.load(Acquire)
    }

    /// Whether a request in `direction` may go at once and be charged afterwards. No lock.
    #[inline]
    pub(super) fn is_open(&self, direction: Direction, now: Time) -> bool {
        now.as_nanos() >= self.opens[place(direction)].load(Acquire)
    }

    /// Whether a request of `bytes` bytes is one operation.
    #[inline]
    pub(super) fn counts_once(&self, bytes: u64) -> bool {
        bytes <= self.counts_once_max.load(Acquire)
    }

    pub(super) fn join(&self, weight: Weight) -> Arc<Seat> {
        let mut line = self.line.lock();
        let seat = Arc::new(Seat { member: line.group.join(weight), ahead: Ahead::default() });
        line.seats.push(Arc::clone(&seat));
        seat
    }

    pub(super) fn leave(&self, seat: &Arc<Seat>) {
        self.change(|line, now| {
            line.seats.retain(|other| !Arc::ptr_eq(other, seat));
            line.group.leave(&seat.member, now, &mut line.granted);
        });
    }

    pub(super) fn drain(&self, seat: &Seat) {
        self.change(|line, now| {
            line.group.drain(&seat.member, now, &mut line.granted);
        });
    }

    pub(super) fn end_drain(&self, seat: &Seat) {
        self.change(|line, _| line.group.end_drain(&seat.member));
    }

    pub(super) fn set_weight(&self, seat: &Seat, weight: Weight) {
        self.line.lock().group.set_weight(&seat.member, weight);
    }

    pub(super) fn member_report(&self, seat: &Seat) -> MemberReport {
        let now = self.clock.now();
        let mut line = self.line.lock();
        line.collect(seat, now);
        line.group.member_report(&seat.member, now)
    }

    pub(super) fn charge(&self, seat: &Seat, request: Request, now: Time) {
        let mut line = self.line.lock();
        line.collect(seat, now);
        line.group.charge(&seat.member, request, now);
        line.grant_ahead(seat, now);
        self.publish(&mut line, now);
    }

    /// Waits until `request`, which came at `now`, may go; it is charged then. Dropped meanwhile, it leaves the
    /// line.
    pub(super) async fn pass(&self, seat: &Seat, request: Request, now: Time) {
        if self.is_limited()
            && let Some(ticket) = self.ask(seat, request, now)
        {
            Waiting::new(self, ticket).await;
        }
    }

    fn ask(&self, seat: &Seat, request: Request, now: Time) -> Option<Ticket> {
        let mut line = self.line.lock();
        line.collect(seat, now);
        let ticket = match line.group.enqueue(&seat.member, request, now) {
            Decision::Now => {
                line.grant_ahead(seat, now);
                None
            }
            Decision::Queued { ticket, wake } => {
                // Grants that were given ahead are taken back: no later request overtakes this one.
                if line.granted_ahead {
                    line.collect_all(now);
                }
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
        let (look, replaced, own) = {
            let mut line = self.line.lock();
            let mut own = None;
            if line.timer.is_none_or(|timer| timer.keeper == ticket || timer.at <= now) {
                own = line.settle(now, Some(ticket), &mut wakers);
                self.publish(&mut line, now);
            }
            let (look, replaced) = line.look(ticket, waker);
            (look, replaced, own)
        };
        // What a waker brings down with it may come back here: not under the lock.
        drop((replaced, own));
        wakers.into_iter().for_each(Waker::wake);
        look
    }

    /// Removes the request with `ticket` from the line: its future was dropped.
    fn cancel(&self, ticket: Ticket) {
        let mut removed = None;
        self.change(|line, now| {
            removed = line.waiting.remove(&ticket);
            if removed.is_some() {
                line.group.cancel(ticket, now);
            }
        });
        // Not under the lock, as above.
        drop(removed);
    }

    /// Changes something, then wakes the requests that may go.
    fn change(&self, change: impl FnOnce(&mut Line, Time)) {
        let now = self.clock.now();
        let mut wakers = Wakers::new();
        {
            let mut line = self.line.lock();
            line.collect_all(now);
            change(&mut line, now);
            line.settle(now, None, &mut wakers);
            self.publish(&mut line, now);
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Publishes the time from which lock-free callers may pass.
    fn publish(&self, line: &mut Line, now: Time) {
        for direction in Direction::BOTH {
            let opens = line.group.opens(direction, now).map_or(u64::MAX, Time::as_nanos);
            self.opens[place(direction)].store(opens, Release);
        }
    }
}

impl Line {
    /// Charges the requests that a member admitted on its own, and revokes what is left of its grant.
    fn collect(&mut self, seat: &Seat, now: Time) {
        for direction in Direction::BOTH {
            seat.ahead.grant(direction, Amount::default());
            let taken = seat.ahead.collect(direction);
            self.group.charge_all(&seat.member, direction, taken, now);
        }
    }

    fn collect_all(&mut self, now: Time) {
        self.granted_ahead = false;
        let seats = std::mem::take(&mut self.seats);
        seats.iter().for_each(|seat| self.collect(seat, now));
        self.seats = seats;
    }

    /// Grants a member requests that it admits on its own, without the lock, if the buckets are far from
    /// full.
    fn grant_ahead(&mut self, seat: &Seat, now: Time) {
        for direction in Direction::BOTH {
            let granted = self.group.ahead(direction, now);
            self.granted_ahead |= granted.requests > 0;
            seat.ahead.grant(direction, granted);
        }
    }

    /// Wakes the requests that may go, and makes sure that one keeps the timer. `asking` is at work and
    /// need not be woken: it gets its waker back if it may go.
    fn settle(&mut self, now: Time, asking: Option<Ticket>, wakers: &mut Wakers) -> Option<Waker> {
        let next = self.group.poll(now, &mut self.granted);
        let mut own = None;
        for ticket in self.granted.drain(..) {
            let waker = self.waiting.remove(&ticket).flatten();
            if asking == Some(ticket) { own = waker } else { wakers.extend(waker) }
        }
        self.keep_timer(next, asking, wakers);
        own
    }

    fn keep_timer(&mut self, next: Option<Time>, asking: Option<Ticket>, wakers: &mut Wakers) {
        let Some(at) = next else {
            debug_assert!(self.waiting.is_empty(), "a request waits and the group does not know");
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

    /// Gives back the waker that is not to be woken any more.
    fn look(&mut self, ticket: Ticket, waker: &Waker) -> (Look, Option<Waker>) {
        let Some(known) = self.waiting.get_mut(&ticket) else { return (Look::Granted, None) };
        let is_known = known.as_ref().is_some_and(|known| known.will_wake(waker));
        let replaced = if is_known { None } else { known.replace(waker.clone()) };
        match self.timer {
            Some(timer) if timer.keeper == ticket => (Look::Keep(timer.at), replaced),
            _ => (Look::Wait, replaced),
        }
    }
}

/// Ends when the request may go. Dropped before, the request leaves the line.
struct Waiting<'a> {
    group: &'a ThrottleGroup,
    ticket: Ticket,
    /// While it keeps the group's timer.
    timer: Option<(Time, Sleep)>,
    granted: bool,
}

impl<'a> Waiting<'a> {
    fn new(group: &'a ThrottleGroup, ticket: Ticket) -> Self {
        Self { group, ticket, timer: None, granted: false }
    }
}

impl Future for Waiting<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match self.group.look(self.ticket, cx.waker()) {
                Look::Granted => {
                    self.granted = true;
                    self.timer = None;
                    return Poll::Ready(());
                }
                Look::Wait => {
                    self.timer = None;
                    return Poll::Pending;
                }
                Look::Keep(at) => {
                    let group = self.group;
                    let (armed, sleep) = self.timer.get_or_insert_with(|| (at, group.clock.sleep_until(at)));
                    if *armed != at {
                        (*armed, *sleep) = (at, group.clock.sleep_until(at));
                    }
                    if sleep.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    // A timer that has ended must not be polled again.
                    self.timer = None;
                }
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.granted {
            self.group.cancel(self.ticket);
        }
    }
}

impl fmt::Debug for Waiting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}
