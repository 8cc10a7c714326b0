//! What requests in flight may hold: requests and bytes, for each client and for all together.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use event_listener::Event;
use futures_util::future::select;

use crate::limits::{
    CLIENT_BYTES_MAX, FIRST_REQUEST_BYTES_MAX, PROCESS_BYTES_MAX, REQUEST_OVERHEAD_BYTES,
    REQUESTS_IN_FLIGHT_MAX, RESERVED_FOR_SMALL_BYTES, SMALL_REQUEST_BYTES_MAX,
};
use crate::local_event::LocalEvent;

/// Bytes that all clients of a process share.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    used: AtomicU64,
    /// The most that was ever used.
    most: AtomicU64,
    freed: Event,
}

/// The part of the limit that is kept for small requests: a quarter.
const RESERVED_PART: u64 = PROCESS_BYTES_MAX / RESERVED_FOR_SMALL_BYTES;

impl Budget {
    /// At most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self { limit, used: AtomicU64::new(0), most: AtomicU64::new(0), freed: Event::new() }
    }

    /// Takes `bytes` for a client that holds `held` already, if that leaves others as much as it would hold then. Who
    /// holds nothing gets what is there; a first request of a few KiB is never refused.
    fn try_take(&self, held: u64, bytes: u64) -> bool {
        let reserved = if bytes > SMALL_REQUEST_BYTES_MAX { self.limit / RESERVED_PART } else { 0 };
        let grow = |used: u64| {
            let free = self.limit.saturating_sub(used).saturating_sub(reserved);
            let first = held == 0 && bytes <= FIRST_REQUEST_BYTES_MAX;
            (first || held + bytes <= free).then_some(used + bytes)
        };
        let taken = self.used.try_update(Ordering::Relaxed, Ordering::Relaxed, grow);
        taken.map(|before| self.most.fetch_max(before + bytes, Ordering::Relaxed)).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        // All waiting tasks look again: the first one may need more than was freed.
        self.freed.notify(usize::MAX);
    }

    /// Bytes that are held now.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The most that it ever was.
    pub fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    /// What it may be.
    pub fn limit(&self) -> u64 {
        self.limit
    }
}

/// What one client has in flight. It lives on the client's loop.
#[derive(Debug)]
pub struct InFlight {
    budget: Arc<Budget>,
    requests: Cell<u32>,
    bytes: Cell<u64>,
    changed: LocalEvent,
}

impl InFlight {
    /// Nothing yet, out of `budget`.
    pub fn new(budget: Arc<Budget>) -> Rc<Self> {
        Rc::new(Self { budget, requests: Cell::new(0), bytes: Cell::new(0), changed: LocalEvent::default() })
    }

    /// A place for a request with `payload` bytes, if there is one now.
    pub fn try_admit(self: &Rc<Self>, payload: u64) -> Option<Permit> {
        let (held, bytes) = (self.bytes.get(), payload + REQUEST_OVERHEAD_BYTES);
        let fits = held == 0 || held + bytes <= CLIENT_BYTES_MAX;
        if self.requests.get() >= REQUESTS_IN_FLIGHT_MAX || !fits || !self.budget.try_take(held, bytes) {
            return None;
        }
        self.requests.set(self.requests.get() + 1);
        self.bytes.set(held + bytes);
        Some(Permit { in_flight: Rc::clone(self), bytes })
    }

    /// A place for a request with `payload` bytes, when there is one. One task waits at a time.
    pub async fn admit(self: &Rc<Self>, payload: u64) -> Permit {
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

    /// Requests that have a place now.
    pub fn requests(&self) -> u32 {
        self.requests.get()
    }

    /// Ends when nothing is in flight.
    pub async fn drained(&self) {
        self.changed.until(|| self.requests.get() == 0).await;
    }
}

/// A place of one request; given back by dropping.
#[derive(Debug)]
pub struct Permit {
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

    /// What NBD's clients ask for at most.
    const LARGEST_BYTES: u64 = 32 * MIB;

    fn greedy(budget: &Arc<Budget>) -> (Rc<InFlight>, Vec<Permit>) {
        let connection = InFlight::new(Arc::clone(budget));
        let permits = std::iter::from_fn(|| connection.try_admit(MIB)).collect();
        (connection, permits)
    }

    #[test]
    fn one_client_holds_no_more_than_its_bound() {
        let budget = Arc::new(Budget::new(1 << 40));
        let (connection, permits) = greedy(&budget);
        assert_eq!(permits.len() as u64, CLIENT_BYTES_MAX / (MIB + REQUEST_OVERHEAD_BYTES));
        drop(permits);
        assert_eq!((connection.bytes.get(), budget.used()), (0, 0));

        let small: Vec<_> = std::iter::from_fn(|| connection.try_admit(0)).collect();
        assert_eq!(small.len(), REQUESTS_IN_FLIGHT_MAX as usize);
    }

    #[test]
    fn a_request_of_any_size_gets_in_alone() {
        let connection = InFlight::new(Arc::new(Budget::new(PROCESS_BYTES_MAX)));
        let largest = LARGEST_BYTES;
        let alone = connection.try_admit(largest).expect("nothing else is in flight");
        assert!(connection.try_admit(largest).is_none());
        drop(alone);
        assert!(connection.try_admit(largest).is_some());
    }

    /// Sixteen clients asked for 32 MiB each and read nothing: 528 MiB, in a server whose bound was 256.
    #[test]
    fn no_number_of_greedy_connections_gets_beyond_the_limit_nor_keeps_small_requests_out() {
        let budget = Arc::new(Budget::new(PROCESS_BYTES_MAX));
        let largest = LARGEST_BYTES;
        let held: Vec<_> = (0..100)
            .map(|_| {
                let connection = InFlight::new(Arc::clone(&budget));
                let permits: Vec<_> = std::iter::from_fn(|| connection.try_admit(largest)).collect();
                (connection, permits)
            })
            .collect();
        assert!(held.iter().any(|(_, permits)| !permits.is_empty()));
        assert!(budget.used() <= PROCESS_BYTES_MAX - RESERVED_FOR_SMALL_BYTES, "{}", budget.used());
        let small: Vec<_> = (0..1000)
            .map(|_| {
                let connection = InFlight::new(Arc::clone(&budget));
                (connection.try_admit(64 << 10).expect("a first request of a few KiB"), connection)
            })
            .collect();
        assert!(small.len() == 1000 && budget.used() <= PROCESS_BYTES_MAX + 1000 * FIRST_REQUEST_BYTES_MAX);
        drop((held, small));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn greedy_connections_leave_something_for_the_next() {
        let budget = Arc::new(Budget::new(64 * MIB));
        let held: Vec<_> = (0..8).map(|_| greedy(&budget)).collect();
        let counts: Vec<usize> = held.iter().map(|(_, permits)| permits.len()).collect();
        assert!(counts[..4].iter().all(|&count| count >= 1), "{counts:?}");
        assert!(budget.used() <= 48 * MIB, "{}", budget.used());
        let next = InFlight::new(Arc::clone(&budget));
        assert!(next.try_admit(MIB / 4).is_some());
    }

    #[test]
    fn who_waits_for_the_budget_is_woken_by_another_connection() {
        let budget = Arc::new(Budget::new(4 * MIB));
        let (_hog, permits) = greedy(&budget);
        assert!(!permits.is_empty());
        let waiting = InFlight::new(Arc::clone(&budget));
        let first = waiting.try_admit(0).expect("the first one is free");
        assert!(waiting.try_admit(2 * MIB).is_none());
        let mut admit = pin!(waiting.admit(2 * MIB));
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
