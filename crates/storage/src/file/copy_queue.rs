//! Copies from other files, one after another on a thread beside the loops.
//!
//! The kernel lets one copy into a file at a time: threads that wait there for each other burn their processors, and handing the next copy
//! from thread to thread costs a tenth of its time.

use std::io;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::Advice;

use super::Shared;
use super::outcome::{Outcome, Reported};
use super::turns::Turns;

/// The copies that wait for their turn.
pub(super) type CopyQueue = Turns<Queued>;

pub(super) struct Queued {
    copy: Copy,
    /// The kernel was informed that its source is read soon.
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

impl Copy {
    /// Only advice: where it is refused the copy reads.
    fn announce(&self) {
        let _ = rustix::fs::fadvise(&self.source, self.from, NonZero::new(self.len as u64), Advice::WillNeed);
    }
}

impl Shared {
    /// Copies behind the copies that wait already; gives how many bytes.
    pub(super) fn copy_queued(self: &Arc<Self>, copy: Copy) -> Reported<usize> {
        let (outcome, reported) = Outcome::new();
        if self.copies.push(Queued { copy, announced: false, outcome }) {
            let shared = Arc::clone(self);
            reactor::start_blocking(move || shared.drain_copies());
        }
        reported
    }

    fn drain_copies(&self) {
        while let Some(next) = self.copies.next(1) {
            self.announce_waiting();
            for Queued { copy, announced: _, outcome } in next {
                let Copy { source, mut from, mut to, len } = copy;
                let target = self.file.fd();
                let copied =
                    rustix::fs::copy_file_range(&source, Some(&mut from), target, Some(&mut to), len);
                outcome.tell(copied.map_err(io::Error::from));
            }
        }
    }

    /// What those that wait read comes into memory while others copy.
    fn announce_waiting(&self) {
        let mut unheard = Vec::new();
        self.copies.look(|queued| {
            if !std::mem::replace(&mut queued.announced, true) {
                unheard.push(queued.copy.clone());
            }
        });
        unheard.iter().for_each(Copy::announce);
    }
}
