//! What passed a front, counted cheaply enough to stay on.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use throttle::{Histogram, Time};

use super::kind::Kind;
use super::latency::{self, BoundsError, Chosen, ChosenHistogram};

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
pub(super) struct Counting {
    stripes: [Stripe; STRIPES],
    latencies: [latency::Counting; KINDS],
    chosen: [ArcSwapOption<Chosen>; KINDS],
    /// Some kind has a histogram that a user set: every request is timed.
    exact: AtomicBool,
}

/// A request that has been counted as started: the stripe and how many came before it there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Started {
    stripe: usize,
    number: u64,
}

impl Counting {
    /// Orders with what the caller looks at next, see [`super::gate`].
    #[inline]
    pub(super) fn start(&self, kind: Kind) -> Started {
        let stripe = stripe();
        let number = self.stripes[stripe].kinds[kind.index()].started.fetch_add(1, SeqCst);
        Started { stripe, number }
    }

    /// It never was: refused at the gate, or given up.
    pub(super) fn undo(&self, kind: Kind, started: Started) {
        self.stripes[started.stripe].kinds[kind.index()].started.fetch_sub(1, SeqCst);
    }

    /// Whether this one of the requests that are answered at once is timed.
    #[inline]
    pub(super) fn is_sampled(&self, started: Started) -> bool {
        started.number.is_multiple_of(SAMPLE) || self.exact.load(Relaxed)
    }

    /// A request that was answered at once: `took` if it was timed.
    #[inline]
    pub(super) fn end_inline(
        &self,
        kind: Kind,
        started: Started,
        bytes: u64,
        took: Option<Duration>,
        now: Time,
    ) {
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
    pub(super) fn end(
        &self,
        kind: Kind,
        started: Started,
        result: Result<u64, ()>,
        took: Duration,
        now: Time,
    ) {
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
    pub(super) fn in_flight(&self) -> u64 {
        // Ends first: a request that starts and ends in between is seen as in flight.
        let sum = |of: fn(&Cells) -> &AtomicU64| -> u64 {
            let all = self.stripes.iter().flat_map(|stripe| &stripe.kinds);
            all.map(|cells| of(cells).load(SeqCst)).fold(0, u64::wrapping_add)
        };
        let ended = sum(|cells| &cells.ended);
        sum(|cells| &cells.started).saturating_sub(ended)
    }

    /// Counts latencies of `kind` between `bounds_ns` from now on, or no more.
    pub(super) fn choose_bounds(&self, kind: Kind, bounds_ns: Option<&[u64]>) -> Result<(), BoundsError> {
        let chosen = bounds_ns.map(Chosen::new).transpose()?;
        self.chosen[kind.index()].store(chosen.map(Arc::new));
        self.exact.store(self.chosen.iter().any(|chosen| chosen.load().is_some()), Relaxed);
        Ok(())
    }

    pub(super) fn snapshot(&self, now: Time) -> Statistics {
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
