//! Locks over byte ranges of one file, first come, first served.

use smallvec::SmallVec;
use sync::Event;
use sync::Mutex;

/// Shared with others of the same kind, or alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeMode {
    /// Many at a time.
    Shared,
    /// Exclusive.
    Exclusive,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    ticket: u64,
    start: u64,
    end: u64,
    mode: RangeMode,
}

impl Entry {
    fn conflicts(&self, other: &Entry) -> bool {
        let overlaps = self.start < other.end && other.start < self.end;
        overlaps && (self.mode == RangeMode::Exclusive || other.mode == RangeMode::Exclusive)
    }
}

#[derive(Debug, Default)]
struct Entries {
    /// In order of arrival, granted or waiting: an entry is granted once nothing before it conflicts.
    list: SmallVec<[Entry; 8]>,
    tickets: u64,
}

impl Entries {
    fn granted(&self, ticket: u64) -> bool {
        let Some(at) = self.list.iter().position(|entry| entry.ticket == ticket) else { return false };
        let (before, rest) = self.list.split_at(at);
        !before.iter().any(|entry| entry.conflicts(&rest[0]))
    }
}

/// Which ranges are in use, and by whom they are awaited. For storage that writes back more than it was given, so that others' bytes beside
/// a request stay what they are.
#[derive(Debug, Default)]
pub struct RangeLocks {
    entries: Mutex<Entries>,
    released: Event,
}

impl RangeLocks {
    /// Waits until `start..end` is free for `mode`. Dropping the future gives up the place.
    pub async fn acquire(&self, start: u64, end: u64, mode: RangeMode) -> RangeGuard<'_> {
        let guard = self.enqueue(start, end, mode);
        loop {
            if self.entries.lock().granted(guard.ticket) {
                return guard;
            }
            let released = self.released.listen();
            if self.entries.lock().granted(guard.ticket) {
                return guard;
            }
            released.await;
        }
    }

    fn enqueue(&self, start: u64, end: u64, mode: RangeMode) -> RangeGuard<'_> {
        let mut entries = self.entries.lock();
        entries.tickets += 1;
        let ticket = entries.tickets;
        entries.list.push(Entry { ticket, start, end, mode });
        RangeGuard { locks: self, ticket }
    }
}

/// A place in the list; a lock once granted. Released when dropped.
#[derive(Debug)]
pub struct RangeGuard<'a> {
    locks: &'a RangeLocks,
    ticket: u64,
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut entries = self.locks.entries.lock();
        entries.list.retain(|entry| entry.ticket != self.ticket);
        let awaited = !entries.list.is_empty();
        drop(entries);
        if awaited {
            self.locks.released.notify(usize::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<F: Future>(future: &mut Pin<&mut F>) -> Poll<F::Output> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn only_overlapping_exclusive_ranges_wait() {
        let locks = RangeLocks::default();
        let mut one = pin!(locks.acquire(0, 10, RangeMode::Shared));
        let mut two = pin!(locks.acquire(5, 15, RangeMode::Shared));
        let mut apart = pin!(locks.acquire(15, 20, RangeMode::Exclusive));
        let mut over = pin!(locks.acquire(9, 12, RangeMode::Exclusive));
        let Poll::Ready(one) = poll(&mut one) else { panic!() };
        let Poll::Ready(two) = poll(&mut two) else { panic!() };
        assert!(poll(&mut apart).is_ready());
        assert!(poll(&mut over).is_pending());
        drop(one);
        assert!(poll(&mut over).is_pending());
        drop(two);
        assert!(poll(&mut over).is_ready());
    }

    #[test]
    fn who_came_first_is_served_first_and_who_gives_up_stands_in_nobodys_way() {
        let locks = RangeLocks::default();
        let mut held = pin!(locks.acquire(0, 10, RangeMode::Shared));
        let Poll::Ready(held) = poll(&mut held) else { panic!() };
        let mut alone = Box::pin(locks.acquire(0, 10, RangeMode::Exclusive));
        assert!(poll(&mut alone.as_mut()).is_pending());
        let mut late = pin!(locks.acquire(0, 10, RangeMode::Shared));
        assert!(poll(&mut late).is_pending(), "a stream of shared locks would starve the exclusive one");
        drop(alone);
        assert!(poll(&mut late).is_ready());
        drop(held);
    }
}
