//! What passed, what waited, and for how long.

use std::time::Duration;

use crate::{Direction, Histogram, Request, Time};

/// Requests and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Number of requests.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Amount {
    fn add(&mut self, bytes: u64) {
        self.add_all(Self { requests: 1, bytes });
    }

    fn add_all(&mut self, more: Self) {
        self.requests += more.requests;
        self.bytes = self.bytes.saturating_add(more.bytes);
    }

    fn remove(&mut self, bytes: u64) {
        self.requests -= 1;
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// Figures of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// All that was let through, delayed or not.
    pub passed: Amount,
    /// Of these, what had to wait.
    pub delayed: Amount,
    /// Sum of the delays, in nanoseconds.
    pub delayed_ns: u64,
    /// The delays of those that had to wait.
    pub delays: Histogram,
    /// What waits now.
    pub queued: Amount,
}

/// Figures of a member or of a whole group since it began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    tallies: [Tally; 2],
    limit: AtLimit,
}

/// Time during which at least one request waited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct AtLimit {
    total: Duration,
    since: Option<Time>,
}

impl Counters {
    /// Figures of one direction.
    pub const fn of(&self, direction: Direction) -> &Tally {
        &self.tallies[direction.index()]
    }

    /// Requests that wait now, of both directions.
    pub fn queued_requests(&self) -> u64 {
        self.tallies.iter().map(|tally| tally.queued.requests).sum()
    }

    /// How long at least one request has been waiting, all such times together.
    pub fn time_at_limit(&self, now: Time) -> Duration {
        self.limit.total + self.limit.since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// A request went through without waiting.
    pub(crate) fn pass(&mut self, request: Request) {
        self.tallies[request.direction.index()].passed.add(request.bytes);
    }

    /// Several went through without waiting.
    pub(crate) fn pass_all(&mut self, direction: Direction, amount: Amount) {
        self.tallies[direction.index()].passed.add_all(amount);
    }

    /// A request began to wait.
    pub(crate) fn queue(&mut self, request: Request, now: Time) {
        self.tallies[request.direction.index()].queued.add(request.bytes);
        self.limit.since.get_or_insert(now);
    }

    /// A waiting request went through.
    pub(crate) fn release(&mut self, request: Request, since: Time, now: Time) {
        let delay = now.since(since);
        let tally = &mut self.tallies[request.direction.index()];
        tally.passed.add(request.bytes);
        tally.delayed.add(request.bytes);
        tally.delayed_ns = tally.delayed_ns.saturating_add(delay.as_nanos() as u64);
        tally.delays.record(delay);
        self.unqueue(request, now);
    }

    /// A waiting request is no more: it went, or it was given up.
    pub(crate) fn unqueue(&mut self, request: Request, now: Time) {
        self.tallies[request.direction.index()].queued.remove(request.bytes);
        if self.queued_requests() == 0
            && let Some(since) = self.limit.since.take()
        {
            self.limit.total += now.since(since);
        }
    }
}
