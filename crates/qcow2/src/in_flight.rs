//! Ranges with one owner: a request that allocates, zeroes or discards guest clusters owns them alone.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use sync::{Mutex, oneshot};

/// Ranges of numbers (guest clusters, or indices of L2 tables) that are being changed.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// Owned ranges by their start; they do not overlap.
    owned: Mutex<BTreeMap<u64, OwnedRange>>,
}

/// A range that has an owner.
#[derive(Debug)]
struct OwnedRange {
    /// The first number behind it.
    end: u64,
    /// Requests for ranges that overlap it, in the order in which they are served.
    waiting: VecDeque<Queued>,
}

/// A request that is completed when it owns its range.
#[derive(Debug)]
struct Queued {
    range: Range<u64>,
    granted: oneshot::Sender<()>,
}

/// A range owned until this is dropped.
#[derive(Debug)]
pub(crate) struct Owned<'a> {
    in_flight: &'a InFlight,
    start: u64,
}

impl InFlight {
    /// Waits until no request owns any part of `range`, and owns all of it at once (so two owners
    /// never wait for each other). Requests for the same range are served in their order, and each is woken once.
    pub(crate) async fn own(&self, range: Range<u64>) -> Owned<'_> {
        let start = range.start;
        let granted = {
            let mut owned = self.owned.lock();
            match overlapping(&mut owned, &range) {
                None => {
                    owned.insert(start, OwnedRange { end: range.end, waiting: VecDeque::new() });
                    return Owned { in_flight: self, start };
                }
                Some(held) => {
                    let (sender, granted) = oneshot::channel();
                    held.waiting.push_back(Queued { range, granted: sender });
                    granted
                }
            }
        };
        let mut turn = Turn { in_flight: self, start, granted };
        (&mut turn.granted).await.expect("a request leaves the queue when it is granted");
        Owned { in_flight: self, start }
    }

    /// Ends the ownership of the range at `start`, and grants it to the requests that waited for it, unless they overlap another.
    ///
    /// A request for the whole range takes over the queue: all others in it overlap that request too. So the cost is
    /// constant where requests are for one range, and otherwise in proportion to the queue.
    fn release(&self, start: u64) {
        let mut owned = self.owned.lock();
        let Some(OwnedRange { end, mut waiting }) = owned.remove(&start) else { return };
        while let Some(next) = waiting.pop_front() {
            if let Some(held) = overlapping(&mut owned, &next.range) {
                held.waiting.push_back(next);
            } else if next.granted.send(()).is_ok() {
                let covers_all = next.range.start <= start && next.range.end >= end;
                let inherited = if covers_all { std::mem::take(&mut waiting) } else { VecDeque::new() };
                owned.insert(next.range.start, OwnedRange { end: next.range.end, waiting: inherited });
            }
        }
    }
}

/// The last owned range that overlaps `range`.
fn overlapping<'a>(
    owned: &'a mut BTreeMap<u64, OwnedRange>,
    range: &Range<u64>,
) -> Option<&'a mut OwnedRange> {
    owned.range_mut(..range.end).next_back().map(|(_, held)| held).filter(|held| held.end > range.start)
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        self.in_flight.release(self.start);
    }
}

/// A request in a queue. Dropped early, it gives back what it was granted meanwhile.
struct Turn<'a> {
    in_flight: &'a InFlight,
    start: u64,
    granted: oneshot::Receiver<()>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.granted.close();
        if let Ok(Some(())) = self.granted.try_recv() {
            self.in_flight.release(self.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::task::{Context, Wake, Waker};

    use super::*;
    use futures_util::FutureExt;

    /// Counts how often a task is woken.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn overlapping_ranges_wait_and_others_do_not() {
        let in_flight = InFlight::default();
        let first = in_flight.own(10..20).now_or_never().unwrap();
        let neighbour = in_flight.own(20..30).now_or_never().unwrap();
        let mut overlapping = Box::pin(in_flight.own(15..25));
        assert!(overlapping.as_mut().now_or_never().is_none());
        drop(first);
        assert!(overlapping.as_mut().now_or_never().is_none());
        drop(neighbour);
        assert!(overlapping.as_mut().now_or_never().is_some());
    }

    /// 65,000 writes to one cluster took seconds: each that ended woke all the others.
    #[test]
    fn requests_for_one_range_are_served_in_order_and_woken_once() {
        let in_flight = InFlight::default();
        let owner = in_flight.own(0..4).now_or_never().unwrap();
        let wakes = [Arc::new(Wakes::default()), Arc::new(Wakes::default())];
        let [of_second, of_third] = wakes.each_ref().map(|wakes| Waker::from(Arc::clone(wakes)));
        let counts = || wakes.each_ref().map(|wakes| wakes.0.load(SeqCst));
        let mut second = Box::pin(in_flight.own(0..4));
        let mut third = Box::pin(in_flight.own(1..2));
        assert!(second.as_mut().poll(&mut Context::from_waker(&of_second)).is_pending());
        assert!(third.as_mut().poll(&mut Context::from_waker(&of_third)).is_pending());
        drop(owner);
        assert_eq!(counts(), [1, 0]);
        drop(second.as_mut().now_or_never().unwrap());
        assert_eq!(counts(), [1, 1]);
        assert!(third.as_mut().now_or_never().is_some());
    }

    #[test]
    fn a_request_dropped_while_it_waits_or_when_it_was_granted_keeps_nothing() {
        let in_flight = InFlight::default();
        let owner = in_flight.own(0..4).now_or_never().unwrap();
        let mut gone_early = Box::pin(in_flight.own(0..4));
        let mut gone_late = Box::pin(in_flight.own(0..2));
        let mut last = Box::pin(in_flight.own(0..4));
        assert!(gone_early.as_mut().now_or_never().is_none());
        assert!(gone_late.as_mut().now_or_never().is_none());
        assert!(last.as_mut().now_or_never().is_none());
        drop(gone_early);
        drop(owner);
        assert!(last.as_mut().now_or_never().is_none());
        drop(gone_late);
        assert!(last.as_mut().now_or_never().is_some());
        assert!(in_flight.owned.lock().is_empty());
    }
}
