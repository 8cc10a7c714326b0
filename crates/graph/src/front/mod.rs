//! The front of a disk: every request passes it, whatever it will find behind.
//!
//! Here requests are charged, so that holes, zero writes and cached bytes count like any other. Here they are
//! counted and timed. And here they wait while the disk is drained.
//!
//! While no limit is set, a read that is answered at once costs a few atomic additions in counters of its own
//! thread. Under a limit it looks at one number without a lock, and takes the group's lock to be charged.

mod ahead;
mod clock;
mod gate;
mod group;
mod groups;
mod kind;
mod latency;
mod membership;
mod pauses;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use block::pace::Pace;
use parking_lot::Mutex;
use throttle::{Direction, Histogram, MemberReport, Request, Time, Weight};

pub use self::clock::{Clock, Monotonic, Sleep};
pub use self::gate::Drained;
use self::gate::Gate;
pub use self::group::ThrottleGroup;
pub use self::groups::Groups;
pub use self::kind::Kind;
use self::latency::Chosen;
pub use self::latency::{BOUNDS_MAX, BoundsError, ChosenHistogram};
use self::membership::Membership;
pub use self::pauses::Pauses;
use crate::options::ThrottleOptions;
use crate::trace::Tap;

/// The front of one disk.
#[derive(Debug)]
pub(crate) struct Front {
    clock: Arc<dyn Clock>,
    groups: Groups,
    counting: Counting,
    gate: Gate,
    membership: ArcSwap<Membership>,
    control: Mutex<Control>,
    tap: Option<Tap>,
    /// The end of the highest write that arrived, in bytes.
    highest: AtomicU64,
}

/// What is changed by few and seldom.
#[derive(Debug)]
struct Control {
    weight: Weight,
    /// Why limits do not hold at the moment.
    drains: usize,
    pauses: Pauses,
}

/// What a request costs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Charge {
    /// Nothing.
    Free,
    /// All of it at once, before it starts.
    Whole(Request),
    /// As much, in pieces that others get between.
    Pieces(Request),
}

/// A read that is being answered at once.
#[derive(Debug)]
pub(crate) struct Inline {
    started: Started,
    /// When it began, if the clock was read.
    at: Option<Time>,
    toll: Toll,
    membership: Guard<Arc<Membership>>,
}

/// How a read that is answered at once pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Toll {
    /// There are no limits.
    None,
    /// With others, later.
    Ahead,
    /// By itself.
    Charged,
}

/// A request in flight. If it is dropped before its end, the figures do not count it.
#[derive(Debug)]
pub(crate) struct Inside<'a> {
    front: &'a Front,
    kind: Kind,
    started: Option<Started>,
    arrived: Time,
}

impl Front {
    pub(crate) fn new(groups: Groups, options: &ThrottleOptions) -> Self {
        let joined = match &options.group {
            Some(name) => groups.find_or_create(name),
            None => groups.anonymous(),
        };
        if let Some(limits) = options.limits {
            joined.set_limits(limits);
        }
        let weight = options.weight;
        Self {
            clock: Arc::clone(groups.clock()),
            groups,
            counting: Counting::default(),
            gate: Gate::default(),
            membership: ArcSwap::new(Membership::new(joined, weight)),
            control: Mutex::new(Control { weight, drains: 0, pauses: Pauses::default() }),
            tap: None,
            highest: AtomicU64::new(0),
        }
    }

    /// Requests were kept out for so long.
    pub(crate) fn note_pause(&self, pause: Duration) {
        self.control.lock().pauses.add(pause);
    }

    /// How long requests were kept out.
    pub(crate) fn pauses(&self) -> Pauses {
        self.control.lock().pauses
    }

    /// Records every request that [`Self::note`] gets.
    pub(crate) fn trace(&mut self, tap: Option<Tap>) {
        self.tap = tap;
    }

    /// The end of the highest write that arrived, in bytes; 0 if there was none.
    pub(crate) fn highest_write(&self) -> u64 {
        self.highest.load(Relaxed)
    }

    /// A request for a range has arrived. Costs a branch or two while nothing is recorded.
    #[inline]
    pub(crate) fn note(&self, kind: Kind, offset: u64, len: u64) {
        if let Some(tap) = &self.tap {
            tap.record(kind, offset, len, self.clock.now());
        }
        let end = offset.saturating_add(len);
        if matches!(kind, Kind::Write | Kind::Zero) && end > self.highest.load(Relaxed) {
            self.highest.fetch_max(end, Relaxed);
        }
    }

    /// Admits a read of `bytes` bytes that is answered at once or not at all. `None` if it would have to
    /// wait.
    #[inline]
    pub(crate) fn try_begin_read(&self, bytes: u64) -> Option<Inline> {
        let started = self.counting.start(Kind::Read);
        if self.gate.is_shut() {
            self.turn_away(Kind::Read, started);
            return None;
        }
        let membership = self.membership.load();
        let toll = match membership.group().is_limited() {
            false => Toll::None,
            true if membership.allows(Request::read(bytes)) => Toll::Ahead,
            true => Toll::Charged,
        };
        let timed = toll == Toll::Charged || self.counting.is_sampled(started);
        let at = timed.then(|| self.clock.now());
        let open = |at| membership.group().is_open(Direction::Read, at);
        if toll == Toll::Charged && !at.is_some_and(open) {
            self.turn_away(Kind::Read, started);
            return None;
        }
        Some(Inline { started, at, toll, membership })
    }

    /// The read was answered with `bytes` bytes, or was not (`None`): then it comes again as one that
    /// may wait.
    #[inline]
    pub(crate) fn end_inline(&self, inline: Inline, bytes: Option<u64>) {
        let Inline { started, at, toll, membership } = inline;
        let Some(bytes) = bytes else {
            self.turn_away(Kind::Read, started);
            return;
        };
        match (toll, at) {
            (Toll::Ahead, _) => membership.take(Request::read(bytes)),
            (Toll::Charged, Some(at)) => membership.charge(Request::read(bytes), at),
            (Toll::Charged, None) | (Toll::None, _) => {}
        }
        let (took, now) = match at {
            Some(at) if self.counting.is_sampled(started) => {
                let now = self.clock.now();
                (Some(now.since(at)), now)
            }
            Some(at) => (None, at),
            None => (None, self.clock.coarse()),
        };
        self.counting.end_inline(Kind::Read, started, bytes, took, now);
        self.gate.leave();
    }

    /// Lets a request in, when the gate is open and it has paid, and says so to `pace`.
    pub(crate) async fn begin(&self, kind: Kind, charge: Charge, pace: &impl Pace) -> Inside<'_> {
        let arrived = self.clock.now();
        let (started, now) = match self.try_enter(kind) {
            Some(started) => (started, arrived),
            None => (self.enter(kind).await, self.clock.now()),
        };
        let inside = Inside { front: self, kind, started: Some(started), arrived };
        match charge {
            Charge::Free => {}
            Charge::Whole(request) => self.pay(request, now).await,
            Charge::Pieces(request) => self.pay_in_pieces(request, now).await,
        }
        pace.admitted();
        inside
    }

    fn try_enter(&self, kind: Kind) -> Option<Started> {
        let started = self.counting.start(kind);
        if !self.gate.is_shut() {
            return Some(started);
        }
        self.turn_away(kind, started);
        None
    }

    async fn enter(&self, kind: Kind) -> Started {
        loop {
            self.gate.opened().await;
            if let Some(started) = self.try_enter(kind) {
                return started;
            }
        }
    }

    fn turn_away(&self, kind: Kind, started: Started) {
        self.counting.undo(kind, started);
        self.gate.leave();
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.membership.load().group().is_limited()
    }

    /// Pays for a request that came at `now`.
    async fn pay(&self, request: Request, now: Time) {
        {
            let membership = self.membership.load();
            if !membership.group().is_limited() {
                return;
            }
            if membership.allows(request) {
                membership.take(request);
                return;
            }
        }
        let membership = self.membership.load_full();
        membership.pass(request, now).await;
    }

    async fn pay_in_pieces(&self, request: Request, mut now: Time) {
        let mut left = request.bytes;
        loop {
            let limits = self.membership.load().group().limits_if_any();
            let piece = limits.and_then(|limits| limits.piece_bytes(request.direction));
            let bytes = piece.map_or(left, |piece| left.min(piece));
            self.pay(Request { bytes, ..request }, now).await;
            left -= bytes;
            if left == 0 {
                return;
            }
            now = self.clock.now();
        }
    }

    /// The figures now.
    pub(crate) fn statistics(&self) -> Statistics {
        self.counting.snapshot(self.clock.coarse())
    }

    pub(crate) fn set_latency_bounds(
        &self,
        kind: Kind,
        bounds_ns: Option<&[u64]>,
    ) -> Result<(), BoundsError> {
        self.counting.choose_bounds(kind, bounds_ns)
    }

    /// The group that the disk is in.
    pub(crate) fn group(&self) -> Arc<ThrottleGroup> {
        Arc::clone(self.membership.load().group())
    }

    /// Moves the disk to another group: the one called `name`, or one of its own without limits. What
    /// waits in the old one goes at once, uncharged.
    pub(crate) fn set_group(&self, name: Option<&str>) {
        let control = self.control.lock();
        let old = self.membership.load_full();
        if name.is_some() && old.group().name() == name {
            return;
        }
        let group = name.map_or_else(|| self.groups.anonymous(), |name| self.groups.find_or_create(name));
        let new = Membership::new(group, control.weight);
        if control.drains > 0 {
            new.drain();
        }
        self.membership.store(new);
        // Requests that hold it pass; it ends with the last of them.
        old.drain();
    }

    pub(crate) fn weight(&self) -> Weight {
        self.control.lock().weight
    }

    pub(crate) fn set_weight(&self, weight: Weight) {
        let mut control = self.control.lock();
        control.weight = weight;
        self.membership.load().set_weight(weight);
    }

    /// The group, and what the disk has done in it.
    pub(crate) fn report(&self) -> (Arc<ThrottleGroup>, MemberReport) {
        let membership = self.membership.load();
        (Arc::clone(membership.group()), membership.report())
    }

    /// Limits do not hold until [`Front::restore_limits`]: what waits goes.
    pub(crate) fn suspend_limits(&self) {
        let mut control = self.control.lock();
        control.drains += 1;
        if control.drains == 1 {
            self.membership.load().drain();
        }
    }

    /// Takes one [`Front::suspend_limits`] back.
    pub(crate) fn restore_limits(&self) {
        let mut control = self.control.lock();
        control.drains -= 1;
        if control.drains == 0 {
            self.membership.load().end_drain();
        }
    }

    /// The time on the clock of the limits.
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }
}

impl Inside<'_> {
    /// The request is done, and covered `bytes` of the disk if it succeeded.
    pub(crate) fn end<T, E>(mut self, result: Result<T, E>, bytes: u64) -> Result<T, E> {
        let front = self.front;
        if let Some(started) = self.started.take() {
            let now = front.clock.now();
            let ended = if result.is_ok() { Ok(bytes) } else { Err(()) };
            front.counting.end(self.kind, started, ended, now.since(self.arrived), now);
            front.gate.leave();
        }
        result
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if let Some(started) = self.started.take() {
            self.front.turn_away(self.kind, started);
        }
    }
}

/// Sets of counters: threads count in sets of their own, so that no processor waits for another's.
pub(crate) const STRIPES: usize = 8;

/// Of so many reads that are answered at once, one is timed and counts for all of them: reading the clock
/// twice costs as much as everything else that the front does.
const SAMPLE: u64 = 16;

const KINDS: usize = Kind::ALL.len();

/// Counters of one kind in one stripe.
#[derive(Debug, Default)]
struct Cells {
    started: AtomicU64,
    /// With success or without.
    ended: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
    nanos: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe {
    kinds: [Cells; KINDS],
    /// When the last request ended, in nanoseconds.
    last: AtomicU64,
}

/// The counters of one disk.
#[derive(Debug, Default)]
struct Counting {
    stripes: [Stripe; STRIPES],
    latencies: [latency::Counting; KINDS],
    chosen: [ArcSwapOption<Chosen>; KINDS],
    /// Some kind has a histogram that a user set: every request is timed.
    exact: AtomicBool,
}

/// A request that has been counted as started: the stripe and how many came before it there.
#[derive(Clone, Copy, Debug)]
struct Started {
    stripe: usize,
    number: u64,
}

impl Counting {
    /// Orders with what the caller looks at next, see [`self::gate`].
    #[inline]
    fn start(&self, kind: Kind) -> Started {
        let stripe = stripe();
        let number = self.stripes[stripe].kinds[kind.index()].started.fetch_add(1, SeqCst);
        Started { stripe, number }
    }

    /// It never was: refused at the gate, or given up.
    fn undo(&self, kind: Kind, started: Started) {
        self.stripes[started.stripe].kinds[kind.index()].started.fetch_sub(1, SeqCst);
    }

    /// Whether this one of the requests that are answered at once is timed.
    #[inline]
    fn is_sampled(&self, started: Started) -> bool {
        started.number.is_multiple_of(SAMPLE) || self.exact.load(Relaxed)
    }

    /// A request that was answered at once: `took` if it was timed.
    #[inline]
    fn end_inline(&self, kind: Kind, started: Started, bytes: u64, took: Option<Duration>, now: Time) {
        let stripe = &self.stripes[started.stripe];
        let cells = &stripe.kinds[kind.index()];
        cells.bytes.fetch_add(bytes, Relaxed);
        stripe.last.store(now.as_nanos(), Relaxed);
        if let Some(took) = took {
            let exact = self.exact.load(Relaxed);
            self.time(kind, cells, took, if exact { 1 } else { SAMPLE });
        }
        cells.ended.fetch_add(1, SeqCst);
    }

    /// A request has ended: with its bytes, or with an error.
    fn end(&self, kind: Kind, started: Started, result: Result<u64, ()>, took: Duration, now: Time) {
        let stripe = &self.stripes[started.stripe];
        let cells = &stripe.kinds[kind.index()];
        match result {
            Ok(bytes) => cells.bytes.fetch_add(bytes, Relaxed),
            Err(()) => cells.failed.fetch_add(1, Relaxed),
        };
        stripe.last.store(now.as_nanos(), Relaxed);
        self.time(kind, cells, took, 1);
        cells.ended.fetch_add(1, SeqCst);
    }

    fn time(&self, kind: Kind, cells: &Cells, took: Duration, weight: u64) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        cells.nanos.fetch_add(nanos.saturating_mul(weight), Relaxed);
        self.latencies[kind.index()].record(nanos, weight);
        if let Some(chosen) = &*self.chosen[kind.index()].load() {
            chosen.record(nanos);
        }
    }

    /// Requests that have started and not ended, of all kinds; never fewer than there are.
    fn in_flight(&self) -> u64 {
        // Ends first: a request that starts and ends in between is seen as in flight.
        let sum = |of: fn(&Cells) -> &AtomicU64| -> u64 {
            let all = self.stripes.iter().flat_map(|stripe| &stripe.kinds);
            all.map(|cells| of(cells).load(SeqCst)).fold(0, u64::wrapping_add)
        };
        let ended = sum(|cells| &cells.ended);
        sum(|cells| &cells.started).saturating_sub(ended)
    }

    /// Counts latencies of `kind` between `bounds_ns` from now on, or no more.
    fn choose_bounds(&self, kind: Kind, bounds_ns: Option<&[u64]>) -> Result<(), BoundsError> {
        let chosen = bounds_ns.map(Chosen::new).transpose()?;
        self.chosen[kind.index()].store(chosen.map(Arc::new));
        self.exact.store(self.chosen.iter().any(|chosen| chosen.load().is_some()), Relaxed);
        Ok(())
    }

    fn snapshot(&self, now: Time) -> Statistics {
        let last = self.stripes.iter().map(|stripe| stripe.last.load(Relaxed)).max().unwrap_or(0);
        Statistics {
            kinds: Kind::ALL.map(|kind| self.snapshot_of(kind)),
            idle: (last > 0).then(|| now.since(Time::from_nanos(last))),
        }
    }

    fn snapshot_of(&self, kind: Kind) -> KindStatistics {
        let sum = |of: fn(&Cells) -> &AtomicU64| -> u64 {
            let cells = self.stripes.iter().map(|stripe| &stripe.kinds[kind.index()]);
            cells.map(|cells| of(cells).load(SeqCst)).fold(0, u64::wrapping_add)
        };
        let failed = sum(|cells| &cells.failed);
        let ended = sum(|cells| &cells.ended);
        KindStatistics {
            requests: ended.saturating_sub(failed),
            failed,
            bytes: sum(|cells| &cells.bytes),
            total_ns: sum(|cells| &cells.nanos),
            in_flight: sum(|cells| &cells.started).saturating_sub(ended),
            latencies: self.latencies[kind.index()].snapshot(),
            histogram: self.chosen[kind.index()].load().as_ref().map(|chosen| chosen.snapshot()),
        }
    }
}

/// Figures of the requests that a disk's front has admitted since the disk was opened, at about one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistics {
    kinds: [KindStatistics; KINDS],
    /// Time since the last request ended, to some milliseconds; `None` if there was none.
    pub idle: Option<Duration>,
}

impl Statistics {
    /// Figures of one kind.
    pub fn of(&self, kind: Kind) -> &KindStatistics {
        &self.kinds[kind.index()]
    }
}

/// Figures of one kind of request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindStatistics {
    /// Requests that ended with success.
    pub requests: u64,
    /// Requests that ended with an error.
    pub failed: u64,
    /// Bytes of the disk that those with success covered.
    pub bytes: u64,
    /// Time from arrival to end, waiting for a limit included, of all requests together. Of reads that
    /// are answered at once every sixteenth is timed, and counts for sixteen.
    pub total_ns: u64,
    /// Requests in flight, including those that wait for a limit.
    pub in_flight: u64,
    /// How long requests took, sampled like `total_ns`.
    pub latencies: Histogram,
    /// Between chosen bounds, if there are some: every request since they were chosen.
    pub histogram: Option<ChosenHistogram>,
}

/// The set of counters of this thread.
#[inline]
pub(crate) fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    OWN.with(|own| match own.get() {
        usize::MAX => {
            own.set(NEXT.fetch_add(1, Relaxed) % STRIPES);
            own.get()
        }
        stripe => stripe,
    })
}
