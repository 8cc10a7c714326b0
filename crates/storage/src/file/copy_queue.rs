//! Copies from other files, one after another on a thread beside the loops.
//!
//! The kernel lets one copy into a file at a time: threads that wait there for each other burn their processors, and handing the next copy
//! from thread to thread costs a tenth of its time.

use std::collections::VecDeque;
use std::io;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::Advice;

use super::Shared;
use super::outcome::{Outcome, Told};

/// The copies that wait for their turn. Bounded by what the callers have in flight.
#[derive(Default)]
pub(super) struct CopyQueue(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    copies: VecDeque<Queued>,
    /// A thread is at it and looks here again before it leaves.
    draining: bool,
}

struct Queued {
    copy: Copy,
    /// The kernel was told that its source is read soon.
    announced: bool,
    outcome: Arc<Outcome<usize>>,
}

/// One call.
#[derive(Clone)]
pub(super) struct Copy {
    pub(super) source: Arc<OwnedFd>,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) len: usize,
}

impl CopyQueue {
    /// The next copy to make; `None` once there is none left, and the caller has to leave. What the others read comes into memory meanwhile.
    fn next(&self) -> Option<Queued> {
        let mut waiting = self.0.lock();
        let next = waiting.copies.pop_front();
        waiting.draining = next.is_some();
        let unheard = waiting.copies.iter_mut().filter(|queued| !queued.announced);
        let others: Vec<Copy> = unheard
            .map(|queued| {
                queued.announced = true;
                queued.copy.clone()
            })
            .collect();
        drop(waiting);
        others.iter().for_each(Copy::announce);
        next
    }
}

impl Copy {
    /// Only advice: where it is refused the copy reads.
    fn announce(&self) {
        let _ = rustix::fs::fadvise(&self.source, self.from, NonZero::new(self.len as u64), Advice::WillNeed);
    }
}

impl Shared {
    /// Copies behind the copies that wait already; gives how many bytes.
    pub(super) fn copy_queued(self: &Arc<Self>, copy: Copy) -> Told<usize> {
        let (outcome, told) = Outcome::new();
        let mut waiting = self.copies.0.lock();
        waiting.copies.push_back(Queued { copy, announced: false, outcome });
        let starts = !std::mem::replace(&mut waiting.draining, true);
        drop(waiting);
        if starts {
            let shared = Arc::clone(self);
            reactor::start_blocking(move || shared.drain_copies());
        }
        told
    }

    fn drain_copies(&self) {
        while let Some(Queued { copy, announced: _, outcome }) = self.copies.next() {
            let Copy { source, mut from, mut to, len } = copy;
            let target = self.file.fd();
            let copied = rustix::fs::copy_file_range(&source, Some(&mut from), target, Some(&mut to), len);
            outcome.tell(copied.map_err(io::Error::from));
        }
    }
}
