//! Requests that a thread beside the loops makes one after another.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;

/// Requests that are taken together at most.
pub(super) const TOGETHER_MAX: usize = 8;

/// The requests that wait for their turn. Bounded by what the callers have in flight.
pub(super) struct Turns<T> {
    waiting: Mutex<Waiting<T>>,
    /// [`Waiting::draining`], without the lock.
    busy: AtomicBool,
}

struct Waiting<T> {
    requests: VecDeque<T>,
    /// A thread is at it and looks here again before it leaves.
    draining: bool,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        let waiting = Waiting { requests: VecDeque::new(), draining: false };
        Self { waiting: Mutex::new(waiting), busy: AtomicBool::new(false) }
    }
}

impl<T> Turns<T> {
    /// Whether a thread is at work, or is about to be. It may have changed since.
    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// Puts a request behind those that wait already. Says whether the caller has to start a thread that makes them.
    #[must_use]
    pub(super) fn push(&self, request: T) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.requests.push_back(request);
        // From now on, so that the last of several that came together does not go ahead of the others.
        self.busy.store(true, Ordering::Relaxed);
        !std::mem::replace(&mut waiting.draining, true)
    }

    /// The next requests, up to `most` and [`TOGETHER_MAX`]; `None` once there are none left, and the thread has to leave.
    pub(super) fn next(&self, most: usize) -> Option<SmallVec<[T; TOGETHER_MAX]>> {
        let mut waiting = self.waiting.lock();
        let count = waiting.requests.len().min(most).min(TOGETHER_MAX);
        waiting.draining = count > 0;
        self.busy.store(waiting.draining, Ordering::Relaxed);
        waiting.draining.then(|| waiting.requests.drain(..count).collect())
    }

    /// Looks at each request that waits.
    pub(super) fn look(&self, look: impl FnMut(&mut T)) {
        self.waiting.lock().requests.iter_mut().for_each(look);
    }
}
