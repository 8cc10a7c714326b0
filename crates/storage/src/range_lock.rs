//! Locks over byte ranges of one file, first come, first served.

use std::fmt;

use event_listener::Event;
use parking_lot::Mutex;
use smallvec::SmallVec;

/// Shared with others of the same kind, or alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// With others that share.
    Shared,
    /// With nobody.
    Exclusive,
}

#[derive(Clone, Copy)]
struct Entry {
    ticket: u64,
    start: u64,
    end: u64,
    mode: Mode,
}

impl Entry {
    fn conflicts(&self, other: &Entry) -> bool {
        let overlaps = self.start < other.end && other.start < self.end;
        overlaps && (self.mode == Mode::Exclusive || other.mode == Mode::Exclusive)
    }
}

#[derive(Default)]
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

/// Which ranges are in use, and by whom they are awaited.
#[derive(Default)]
pub struct RangeLocks {
    entries: Mutex<Entries>,
    released: Event,
}

impl fmt::Debug for RangeLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RangeLocks").finish_non_exhaustive()
    }
}

impl RangeLocks {
    /// Waits until `start..end` is free for `mode`. Dropping the future gives up the place.
    pub async fn acquire(&self, start: u64, end: u64, mode: Mode) -> RangeGuard<'_> {
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

    fn enqueue(&self, start: u64, end: u64, mode: Mode) -> RangeGuard<'_> {
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
        let mut one = pin!(locks.acquire(0, 10, Mode::Shared));
        let mut two = pin!(locks.acquire(5, 15, Mode::Shared));
        let mut apart = pin!(locks.acquire(15, 20, Mode::Exclusive));
        let mut over = pin!(locks.acquire(9, 12, Mode::Exclusive));
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
        let mut held = pin!(locks.acquire(0, 10, Mode::Shared));
        let Poll::Ready(held) = poll(&mut held) else { panic!() };
        let mut alone = Box::pin(locks.acquire(0, 10, Mode::Exclusive));
        assert!(poll(&mut alone.as_mut()).is_pending());
        let mut late = pin!(locks.acquire(0, 10, Mode::Shared));
        assert!(poll(&mut late).is_pending(), "a stream of shared locks would starve the exclusive one");
        drop(alone);
        assert!(poll(&mut late).is_ready());
        drop(held);
    }
}
