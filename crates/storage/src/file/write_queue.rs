//! Small writes to the page cache, one after another on a thread beside the loops.
//!
//! The kernel lets one write into a file at a time, so more threads would only wait for each other. One beside
//! the loop, though, leaves it free to receive and reply while the writes are made.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buffer::IoVec;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::Shared;
use super::buffered::{is_transient, no_progress};
use super::outcome::{Outcome, Told};

/// Writes made before their callers are told: telling each alone would wake a loop that waits for
/// them once a write, which costs as much as the write.
const TOLD_TOGETHER: usize = 8;

/// The writes that wait for their turn. Bounded by what the callers have in flight.
#[derive(Default)]
pub(super) struct WriteQueue {
    waiting: Mutex<Waiting>,
    /// Somebody is writing: a hint, without the lock.
    busy: AtomicBool,
}

#[derive(Default)]
struct Waiting {
    writes: VecDeque<Queued>,
    /// A thread is at it and looks here again before it leaves.
    draining: bool,
}

struct Queued {
    offset: u64,
    data: IoVec,
    outcome: Arc<Outcome<()>>,
}

/// Keeps others from writing on their own threads meanwhile.
pub(super) struct Alone<'a>(&'a AtomicBool);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl WriteQueue {
    /// Whether nobody is writing: then the caller may, until it drops what it is given.
    pub(super) fn enter_alone(&self) -> Option<Alone<'_>> {
        (!self.busy.swap(true, Ordering::Relaxed)).then(|| Alone(&self.busy))
    }

    /// The next writes to make; None once there are none left, and the caller has to leave.
    fn next(&self) -> Option<SmallVec<[Queued; TOLD_TOGETHER]>> {
        let mut waiting = self.waiting.lock();
        let count = waiting.writes.len().min(TOLD_TOGETHER);
        if count == 0 {
            waiting.draining = false;
            self.busy.store(false, Ordering::Relaxed);
            return None;
        }
        self.busy.store(true, Ordering::Relaxed);
        Some(waiting.writes.drain(..count).collect())
    }
}

impl Shared {
    /// Writes all of `data` behind the writes that wait already. The range was checked.
    pub(super) fn write_queued(self: &Arc<Self>, offset: u64, data: IoVec) -> Told<()> {
        let (outcome, told) = Outcome::new();
        let write = Queued { offset, data, outcome };
        let mut waiting = self.queue.waiting.lock();
        waiting.writes.push_back(write);
        let starts = !std::mem::replace(&mut waiting.draining, true);
        // From now on, so that the last of several that came together does not go ahead of the others.
        self.queue.busy.store(true, Ordering::Relaxed);
        drop(waiting);
        if starts {
            let shared = Arc::clone(self);
            reactor::start_blocking(move || shared.drain_writes());
        }
        told
    }

    /// Writes all of `data`, going on after short writes.
    fn write_all(&self, offset: u64, data: &IoVec) -> io::Result<()> {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let written = match done {
                0 => self.write_timed(at, data),
                _ => self.write_timed(at, &data.slice(done, data.len())),
            };
            match written {
                Ok(0) => return Err(no_progress(at)),
                Ok(count) => done += count,
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn drain_writes(&self) {
        while let Some(writes) = self.queue.next() {
            let done: SmallVec<[_; TOLD_TOGETHER]> = writes
                .into_iter()
                .map(|write| (write.outcome, self.write_all(write.offset, &write.data)))
                .collect();
            for (outcome, result) in done {
                outcome.tell(result);
            }
        }
    }
}
