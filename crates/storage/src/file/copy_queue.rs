//! Copies from other files, one after another on a thread beside the loops.
//!
//! The kernel lets one copy into a file at a time: threads that wait there for each other burn their processors, and handing the next copy
//! from thread to thread costs a tenth of its time.

use std::io;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::Advice;
use smallvec::SmallVec;

use super::Shared;
use super::outcome::{Outcome, Reported};
use super::turns::{TOGETHER_MAX, Turns};
use crate::medium::Answer;

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

    /// Bytes of this copy and of the copies in `next` that continue it, up to the first that does not.
    fn len_with(&self, next: &[Queued]) -> usize {
        let mut len = self.len;
        for Queued { copy, .. } in next {
            let (from, to) = (self.from + len as u64, self.to + len as u64);
            if !Arc::ptr_eq(&copy.source, &self.source) || (copy.from, copy.to) != (from, to) {
                break;
            }
            len += copy.len;
        }
        len
    }
}

/// Reports the result of one call to the copies it reached, and removes these: bytes copied in their order, an error to the first alone.
fn report(queued: &mut SmallVec<[Queued; TOGETHER_MAX]>, copied: io::Result<usize>) {
    let mut left = match copied {
        Ok(left) => left,
        Err(error) => return queued.remove(0).outcome.tell(Err(error)),
    };
    loop {
        let Queued { copy, outcome, .. } = queued.remove(0);
        let its = left.min(copy.len);
        left -= its;
        outcome.tell(Ok(its));
        if left == 0 {
            return;
        }
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
        // What is shared is neither read nor written: a call costs little more for being longer.
        let shares = self.asked.shares_extents == Answer::Yes;
        while let Some(mut next) = self.copies.next(if shares { TOGETHER_MAX } else { 1 }) {
            if !shares {
                self.announce_waiting();
            }
            while let Some(first) = next.first() {
                let len = first.copy.len_with(&next[1..]);
                let Copy { source, mut from, mut to, .. } = first.copy.clone();
                let target = self.file.fd();
                let copied =
                    rustix::fs::copy_file_range(&source, Some(&mut from), target, Some(&mut to), len);
                report(&mut next, copied.map_err(io::Error::from));
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

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    type Told = Vec<Reported<usize>>;

    /// Copies as (from, to, length) of one file, or of the other where the length is odd.
    fn queued(copies: &[(u64, u64, usize)]) -> (SmallVec<[Queued; TOGETHER_MAX]>, Told) {
        let files = [(); 2].map(|()| Arc::new(OwnedFd::from(File::open("/dev/null").expect("a file"))));
        copies
            .iter()
            .map(|&(from, to, len)| {
                let (outcome, reported) = Outcome::new();
                let copy = Copy { source: Arc::clone(&files[len % 2]), from, to, len };
                (Queued { copy, announced: false, outcome }, reported)
            })
            .unzip()
    }

    fn results(told: Told) -> Vec<Option<Result<usize, io::ErrorKind>>> {
        use futures_util::FutureExt;
        told.into_iter().map(|told| Some(told.now_or_never()?.map_err(|error| error.kind()))).collect()
    }

    #[test]
    fn one_call_covers_the_copies_that_continue_the_first() {
        let len = |copies: &[(u64, u64, usize)]| {
            let (queued, _told) = queued(copies);
            queued[0].copy.len_with(&queued[1..])
        };
        assert_eq!(len(&[(0, 100, 10), (10, 110, 20), (30, 130, 2)]), 32);
        assert_eq!(len(&[(0, 100, 10), (10, 110, 21), (31, 131, 2)]), 10, "another file");
        assert_eq!(
            len(&[(0, 100, 10), (20, 110, 10), (10, 110, 10)]),
            10,
            "another place, before the one that continues"
        );
        assert_eq!(len(&[(0, 100, 10), (10, 120, 10)]), 10);
    }

    #[test]
    fn the_bytes_of_a_call_are_reported_to_the_copies_it_reached_and_an_error_to_the_first() {
        let all = [(0, 100, 10), (10, 110, 20), (30, 130, 2)];
        for (copied, expected, left) in [
            (32, [Some(Ok(10)), Some(Ok(20)), Some(Ok(2))], 0),
            (30, [Some(Ok(10)), Some(Ok(20)), None], 1),
            (15, [Some(Ok(10)), Some(Ok(5)), None], 1),
            (0, [Some(Ok(0)), None, None], 2),
        ] {
            let (mut queued, told) = queued(&all);
            report(&mut queued, Ok(copied));
            assert_eq!((results(told), queued.len()), (expected.to_vec(), left), "{copied}");
        }
        let (mut queued, told) = queued(&all);
        report(&mut queued, Err(io::ErrorKind::StorageFull.into()));
        assert_eq!(results(told), [Some(Err(io::ErrorKind::StorageFull)), None, None]);
        assert_eq!(queued.len(), 2);
    }
}
