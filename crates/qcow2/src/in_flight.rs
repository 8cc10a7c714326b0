//! Ranges with one owner: whoever allocates, zeroes or discards guest clusters has them alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use sync::{Event, Mutex};

/// Ranges of numbers (guest clusters, or indices of L2 tables) that are being changed.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// Start -> end (excluded) and who waits; ranges do not overlap.
    owned: Mutex<BTreeMap<u64, (u64, Arc<Event>)>>,
}

/// A range owned until this is dropped.
#[derive(Debug)]
pub(crate) struct Owned<'a> {
    in_flight: &'a InFlight,
    start: u64,
}

impl InFlight {
    /// Waits until nobody owns any part of `start..end`, and owns all of it at once (so two owners
    /// never wait for each other).
    pub(crate) async fn own(&self, start: u64, end: u64) -> Owned<'_> {
        loop {
            let freed = {
                let mut owned = self.owned.lock();
                let overlapping = owned.range(..end).next_back().filter(|(_, (its_end, _))| *its_end > start);
                match overlapping {
                    Some((_, (_, event))) => event.listen(),
                    None => {
                        owned.insert(start, (end, Arc::new(Event::new())));
                        return Owned { in_flight: self, start };
                    }
                }
            };
            freed.await;
        }
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        if let Some((_, event)) = self.in_flight.owned.lock().remove(&self.start) {
            event.notify(usize::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn overlapping_ranges_wait_and_others_do_not() {
        let in_flight = InFlight::default();
        let first = in_flight.own(10, 20).now_or_never().unwrap();
        let neighbour = in_flight.own(20, 30).now_or_never().unwrap();
        let mut overlapping = Box::pin(in_flight.own(15, 25));
        assert!(overlapping.as_mut().now_or_never().is_none());
        drop(first);
        assert!(overlapping.as_mut().now_or_never().is_none());
        drop(neighbour);
        assert!(overlapping.as_mut().now_or_never().is_some());
    }
}
