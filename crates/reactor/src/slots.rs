//! The operations in flight, by key.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::task::{Context, Waker};

use crate::work::Work;

/// The address lists of a vectored operation: the kernel reads them until it has completed.
pub(crate) type Vectors = Vec<libc::iovec>;

/// What the kernel or a pool thread is working on.
struct Flight {
    /// None while a pool thread has it.
    work: Option<Work>,
    vectors: Option<Vectors>,
    waker: Option<Waker>,
    orphaned: bool,
}

enum Slot {
    Free { next: Option<usize> },
    Flying(Flight),
    Landed { work: Work, result: i32 },
}

/// What is left to do, outside of any borrow, when an operation has landed.
#[derive(Default)]
pub(crate) struct Landing {
    pub(crate) waker: Option<Waker>,
    garbage: Option<Work>,
    /// Of the garbage.
    result: i32,
}

impl Landing {
    fn of_orphan(work: Work, result: i32) -> Self {
        close_accepted(&work, result);
        Self { waker: None, garbage: Some(work), result }
    }

    /// Drops operations that are not awaited any more, after the callbacks that they have were called.
    pub(crate) fn clear(&mut self) {
        if let Some(Work::Sync { reported: Some(reported), .. }) = self.garbage.take() {
            reported(count(self.result).map(drop));
        }
    }
}

/// A slab: keys are indices, reused once an operation has landed and its result was taken.
///
/// A key is reused only after its completion was seen, so that a completion (or a cancellation,
/// which travels in order with submissions) never meets a stranger.
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Option<usize>,
    flying: usize,
    flying_files: usize,
}

impl Slots {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), free: None, flying: 0, flying_files: 0 }
    }

    /// Operations whose completion has not been seen.
    pub(crate) fn flying(&self) -> usize {
        self.flying
    }

    /// Of those, the ones that wait for no peer.
    pub(crate) fn flying_files(&self) -> usize {
        self.flying_files
    }

    /// Keys of all operations whose completion has not been seen.
    pub(crate) fn flying_keys(&self) -> Vec<usize> {
        let flying = |(key, slot): (usize, &Slot)| matches!(slot, Slot::Flying(_)).then_some(key);
        self.slots.iter().enumerate().filter_map(flying).collect()
    }

    pub(crate) fn insert(&mut self, work: Work) -> usize {
        self.flying += 1;
        self.flying_files += usize::from(!work.waits_for_peer());
        let slot = Slot::Flying(Flight { work: Some(work), vectors: None, waker: None, orphaned: false });
        let Some(key) = self.free else {
            self.slots.push(slot);
            return self.slots.len() - 1;
        };
        match std::mem::replace(&mut self.slots[key], slot) {
            Slot::Free { next } => self.free = next,
            Slot::Flying(_) | Slot::Landed { .. } => unreachable!("slot {key} is on the free list"),
        }
        key
    }

    /// The work behind `key`, and the place for the address lists it needs.
    pub(crate) fn work(&mut self, key: usize) -> Option<(&mut Work, &mut Option<Vectors>)> {
        match self.slots.get_mut(key)? {
            Slot::Flying(flight) => Some((flight.work.as_mut()?, &mut flight.vectors)),
            Slot::Free { .. } | Slot::Landed { .. } => None,
        }
    }

    /// Takes the work away to another thread; [`Slots::land`] brings it back.
    pub(crate) fn lend(&mut self, key: usize) -> Option<Work> {
        match self.slots.get_mut(key)? {
            Slot::Flying(flight) => flight.work.take(),
            Slot::Free { .. } | Slot::Landed { .. } => None,
        }
    }

    /// Notes the completion of `key`; `returned` is the work if it was lent.
    pub(crate) fn land(&mut self, key: usize, result: i32, returned: Option<Work>) -> Landing {
        let Some(Slot::Flying(flight)) = self.slots.get_mut(key) else {
            debug_assert!(false, "completion of {key}, which is not in flight");
            return Landing { waker: None, garbage: returned, result };
        };
        self.flying -= 1;
        let waker = flight.waker.take();
        let orphaned = flight.orphaned;
        let work = flight.work.take().or(returned).unwrap_or(Work::Called);
        self.flying_files -= usize::from(!work.waits_for_peer());
        if orphaned {
            self.release(key);
            return Landing::of_orphan(work, result);
        }
        self.slots[key] = Slot::Landed { work, result };
        Landing { waker, ..Landing::default() }
    }

    /// Ends every operation that no thread of the pool has with EIO. The kernel may still use what they own: that
    /// stays in memory for ever, and the waiting task gets other buffers back.
    pub(crate) fn fail_all(&mut self) -> Vec<Landing> {
        let mut landings = Vec::new();
        for key in 0..self.slots.len() {
            let Slot::Flying(flight) = &mut self.slots[key] else { continue };
            let Some(mut work) = flight.work.take() else { continue };
            flight.work = Some(work.substitute());
            std::mem::forget((work, flight.vectors.take()));
            landings.push(self.land(key, -libc::EIO, None));
        }
        landings
    }

    /// The result of `key`, or leaves a waker there. The key ends with its result.
    pub(crate) fn poll(&mut self, key: usize, cx: &Context<'_>) -> Option<(Work, i32)> {
        match &mut self.slots[key] {
            Slot::Flying(flight) => {
                match &mut flight.waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    empty => *empty = Some(cx.waker().clone()),
                }
                None
            }
            Slot::Landed { .. } => {
                let Slot::Landed { work, result } = self.release(key) else { return None };
                Some((work, result))
            }
            Slot::Free { .. } => None,
        }
    }

    /// The future of `key` is gone. Says whether the operation should be cancelled; gives what to drop.
    pub(crate) fn abandon(&mut self, key: usize) -> (bool, Landing) {
        match &mut self.slots[key] {
            Slot::Flying(flight) => {
                flight.orphaned = true;
                let cancel = flight.work.as_ref().is_some_and(Work::waits_for_peer);
                (cancel, Landing { waker: flight.waker.take(), ..Landing::default() })
            }
            Slot::Landed { .. } => {
                let Slot::Landed { work, result } = self.release(key) else {
                    return (false, Landing::default());
                };
                (false, Landing::of_orphan(work, result))
            }
            Slot::Free { .. } => (false, Landing::default()),
        }
    }

    fn release(&mut self, key: usize) -> Slot {
        let slot = std::mem::replace(&mut self.slots[key], Slot::Free { next: self.free });
        self.free = Some(key);
        slot
    }
}

/// A connection that was accepted for a task that is gone is closed.
fn close_accepted(work: &Work, result: i32) {
    if matches!(work, Work::Accept { .. }) && result >= 0 {
        // SAFETY: a completed accept gives a fresh descriptor, and its only taker has gone.
        drop(unsafe { OwnedFd::from_raw_fd(result) });
    }
}

/// The kernel's result: a count, or a negative errno.
pub(crate) fn count(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(result.wrapping_neg()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_orphans_key_is_not_reused_before_its_completion() {
        let mut slots = Slots::new();
        let orphan = slots.insert(Work::Called);
        slots.abandon(orphan);
        let other = slots.insert(Work::Called);
        assert_ne!(orphan, other);
        assert!(slots.land(orphan, 0, None).garbage.is_some());
        assert_eq!(slots.insert(Work::Called), orphan);
        assert_eq!(slots.flying(), 2);
    }
    /// A ring failed while a sync was in flight that was not awaited any more. Its callback was never called, and
    /// every later flush of that file waited for ever.
    #[test]
    fn a_sync_that_fails_with_its_ring_tells_of_its_end() {
        let mut slots = Slots::new();
        let (tell, reported) = std::sync::mpsc::channel();
        let fd = std::sync::Arc::new(std::fs::File::open("/dev/null").unwrap().into());
        let tell = Box::new(move |result: std::io::Result<()>| tell.send(result).unwrap());
        let key = slots.insert(Work::Sync { fd, data_only: true, reported: Some(tell) });
        slots.abandon(key);
        slots.fail_all().iter_mut().for_each(Landing::clear);
        assert_eq!(reported.try_recv().unwrap().unwrap_err().raw_os_error(), Some(libc::EIO));
    }
}
