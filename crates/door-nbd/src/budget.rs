//! What requests in flight may hold: requests and bytes, for each connection and for all together.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use event_listener::Event;
use futures_util::future::select;

use crate::limits::{CONNECTION_BYTES_MAX, REQUEST_OVERHEAD_BYTES, REQUESTS_IN_FLIGHT_MAX};
use crate::local_event::LocalEvent;

/// Bytes that all connections of a process share.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    used: AtomicU64,
    freed: Event,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, used: AtomicU64::new(0), freed: Event::new() }
    }

    /// Takes `bytes` for somebody who holds `held` already, if that leaves others as much as it
    /// would hold then. Who holds nothing always gets it: a greedy neighbour slows down, never stops.
    fn try_take(&self, held: u64, bytes: u64) -> bool {
        let grow = |used: u64| {
            let free = self.limit.saturating_sub(used);
            (held == 0 || held + bytes <= free).then_some(used + bytes)
        };
        self.used.try_update(Ordering::Relaxed, Ordering::Relaxed, grow).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        // Everybody looks again: whoever is first may need more than was freed.
        self.freed.notify(usize::MAX);
    }

    #[cfg(test)]
    fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

/// What one connection has in flight.
#[derive(Debug)]
pub(crate) struct InFlight {
    budget: Arc<Budget>,
    requests: Cell<u32>,
    bytes: Cell<u64>,
    changed: LocalEvent,
}

impl InFlight {
    pub(crate) fn new(budget: Arc<Budget>) -> Rc<Self> {
        Rc::new(Self { budget, requests: Cell::new(0), bytes: Cell::new(0), changed: LocalEvent::default() })
    }

    /// A place for a request with `payload` bytes, if there is one now.
    pub(crate) fn try_admit(self: &Rc<Self>, payload: u64) -> Option<Permit> {
        let (held, bytes) = (self.bytes.get(), payload + REQUEST_OVERHEAD_BYTES);
        let fits = held == 0 || held + bytes <= CONNECTION_BYTES_MAX;
        if self.requests.get() >= REQUESTS_IN_FLIGHT_MAX || !fits || !self.budget.try_take(held, bytes) {
            return None;
        }
        self.requests.set(self.requests.get() + 1);
        self.bytes.set(held + bytes);
        Some(Permit { in_flight: Rc::clone(self), bytes })
    }

    /// A place for a request with `payload` bytes, when there is one. One task waits at a time.
    pub(crate) async fn admit(self: &Rc<Self>, payload: u64) -> Permit {
        loop {
            let freed = self.budget.freed.listen();
            let before = self.requests.get();
            if let Some(permit) = self.try_admit(payload) {
                return permit;
            }
            let own = pin!(self.changed.until(|| self.requests.get() < before));
            select(own, freed).await;
        }
    }

    /// Ends when nothing is in flight.
    pub(crate) async fn drained(&self) {
        self.changed.until(|| self.requests.get() == 0).await;
    }
}

/// A place of one request; given back by dropping.
#[derive(Debug)]
pub(crate) struct Permit {
    in_flight: Rc<InFlight>,
    bytes: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let in_flight = &self.in_flight;
        in_flight.requests.set(in_flight.requests.get() - 1);
        in_flight.bytes.set(in_flight.bytes.get() - self.bytes);
        in_flight.budget.give_back(self.bytes);
        in_flight.changed.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn greedy(budget: &Arc<Budget>) -> (Rc<InFlight>, Vec<Permit>) {
        let connection = InFlight::new(Arc::clone(budget));
        let permits = std::iter::from_fn(|| connection.try_admit(MIB)).collect();
        (connection, permits)
    }

    #[test]
    fn one_connection_holds_no_more_than_its_bound() {
        let budget = Arc::new(Budget::new(1 << 40));
        let (connection, permits) = greedy(&budget);
        assert_eq!(permits.len() as u64, CONNECTION_BYTES_MAX / (MIB + REQUEST_OVERHEAD_BYTES));
        drop(permits);
        assert_eq!((connection.bytes.get(), budget.used()), (0, 0));

        let small: Vec<_> = std::iter::from_fn(|| connection.try_admit(0)).collect();
        assert_eq!(small.len(), REQUESTS_IN_FLIGHT_MAX as usize);
    }

    #[test]
    fn a_request_of_any_size_gets_in_alone() {
        let connection = InFlight::new(Arc::new(Budget::new(MIB)));
        let alone = connection.try_admit(CONNECTION_BYTES_MAX * 2).expect("nothing else is in flight");
        assert!(connection.try_admit(0).is_none());
        drop(alone);
        assert!(connection.try_admit(0).is_some());
    }

    #[test]
    fn greedy_connections_leave_something_for_the_next() {
        let budget = Arc::new(Budget::new(64 * MIB));
        let held: Vec<_> = (0..8).map(|_| greedy(&budget)).collect();
        let counts: Vec<usize> = held.iter().map(|(_, permits)| permits.len()).collect();
        assert!(counts.iter().all(|&count| count >= 1), "{counts:?}");
        assert!(budget.used() <= 72 * MIB + 8 * MIB, "{}", budget.used());
        let next = InFlight::new(Arc::clone(&budget));
        assert!(next.try_admit(MIB).is_some());
    }

    #[test]
    fn who_waits_for_the_budget_is_woken_by_another_connection() {
        let budget = Arc::new(Budget::new(4 * MIB));
        let (_hog, permits) = greedy(&budget);
        assert!(!permits.is_empty());
        let waiting = InFlight::new(Arc::clone(&budget));
        let first = waiting.try_admit(MIB).expect("the first one is free");
        assert!(waiting.try_admit(2 * MIB).is_none());
        let mut admit = pin!(waiting.admit(MIB));
        let woken = Arc::new(Woken::default());
        let waker = std::task::Waker::from(Arc::clone(&woken));
        let mut cx = std::task::Context::from_waker(&waker);
        assert!(admit.as_mut().poll(&mut cx).is_pending());
        drop(permits);
        assert!(woken.0.load(Ordering::SeqCst) > 0);
        assert!(admit.as_mut().poll(&mut cx).is_ready());
        drop(first);
    }

    #[derive(Default)]
    struct Woken(AtomicU64);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}
