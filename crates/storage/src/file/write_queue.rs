//! Small writes to the page cache, one after another on a thread beside the loops.
//!
//! The kernel lets one write into a file at a time, so more threads would only wait for each other. One beside
//! the loop, though, leaves it free to receive and reply while the writes are made.

use std::io;
use std::sync::Arc;

use buffer::IoVec;
use smallvec::SmallVec;

use super::Shared;
use super::buffered::{is_transient, no_progress};
use super::outcome::{Outcome, Told};
use super::turns::{TOGETHER_MAX, Turns};

/// Writes made before their callers are told: telling each alone would wake a loop that waits for
/// them once a write, which costs as much as the write.
const TOLD_TOGETHER: usize = TOGETHER_MAX;

/// The writes that wait for their turn.
pub(super) type WriteQueue = Turns<Queued>;

pub(super) struct Queued {
    offset: u64,
    data: IoVec,
    outcome: Arc<Outcome<()>>,
}

impl Shared {
    /// Writes all of `data` behind the writes that wait already. The range was checked.
    pub(super) fn write_queued(self: &Arc<Self>, offset: u64, data: IoVec) -> Told<()> {
        let (outcome, told) = Outcome::new();
        if self.queue.push(Queued { offset, data, outcome }) {
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
        while let Some(writes) = self.queue.next(TOLD_TOGETHER) {
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
