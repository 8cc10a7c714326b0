//! One flush of a file at a time, its outcome shared by all requests that wait for it.
//!
//! The kernel reports an error of writeback once for each open file, to whichever flush asks first, and drops the
//! pages: a flush that runs beside that one succeeds, and so does every later one. Hence no two run at the same time, and
//! a failure is remembered before any request is answered, for good.

use std::io;
use std::sync::Arc;

use event_listener::Event;
use parking_lot::Mutex;

/// The flushes of one open file. A driver hands it the call that does the work.
#[derive(Debug, Default)]
pub struct Flushes {
    state: Mutex<State>,
    /// A sync has ended.
    ended: Event,
}

#[derive(Debug, Default)]
struct State {
    /// Syncs that have begun.
    begun: u64,
    /// The latest of them that has succeeded, counted from 1.
    succeeded: u64,
    running: bool,
    /// The error of the first that failed: the kernel then may have dropped dirty pages, and says so only
    /// once. A later success would be a lie.
    failure: Option<i32>,
}

/// Where the result of a sync goes. Dropped without one, the sync counts as failed: how it ended is unknown.
#[derive(Debug)]
pub struct SyncEnd {
    flushes: Option<Arc<Flushes>>,
    number: u64,
}

enum Turn {
    Done(io::Result<()>),
    Wait,
    Start(SyncEnd),
}

impl Flushes {
    /// Whether every flush so far has succeeded.
    ///
    /// # Errors
    /// The first failure, for ever.
    pub fn check(&self) -> io::Result<()> {
        match self.state.lock().failure {
            None => Ok(()),
            Some(errno) => {
                let first = io::Error::from_raw_os_error(errno);
                let message = format!(
                    "an earlier flush failed ({first}); what was written since the last good one may be lost"
                );
                Err(io::Error::new(first.kind(), message))
            }
        }
    }

    /// Makes durable what has completed before this call: by a sync that begins after it, which may be one that
    /// others wait for too, never by one that is running. `sync` begins one and returns at once; it has to run to its
    /// end also when no task awaits it any more, because it may be the one that is notified of an error.
    pub fn flush<'a>(
        self: &'a Arc<Self>,
        sync: impl Fn(SyncEnd) + 'a,
    ) -> impl Future<Output = io::Result<()>> + 'a {
        let before = self.check();
        let target = self.state.lock().begun + 1;
        let turn = move || self.turn(target);
        if before.is_ok()
            && let Turn::Start(end) = turn()
        {
            sync(end);
        }
        async move {
            before?;
            loop {
                let ended = self.ended.listen();
                match turn() {
                    Turn::Done(result) => return result,
                    Turn::Start(end) => sync(end),
                    Turn::Wait => ended.await,
                }
            }
        }
    }

    fn turn(self: &Arc<Self>, target: u64) -> Turn {
        let mut state = self.state.lock();
        if let Some(errno) = state.failure {
            return Turn::Done(Err(io::Error::from_raw_os_error(errno)));
        }
        if state.succeeded >= target {
            return Turn::Done(Ok(()));
        }
        if state.running {
            return Turn::Wait;
        }
        state.running = true;
        state.begun += 1;
        Turn::Start(SyncEnd { flushes: Some(Arc::clone(self)), number: state.begun })
    }
}

impl SyncEnd {
    /// The sync has ended so. One that was interrupted has not happened: one of the waiting requests begins another.
    pub fn tell(mut self, result: io::Result<()>) {
        self.note(result);
    }

    fn note(&mut self, result: io::Result<()>) {
        let Some(flushes) = self.flushes.take() else { return };
        {
            let mut state = flushes.state.lock();
            state.running = false;
            match result {
                Ok(()) => state.succeeded = state.succeeded.max(self.number),
                Err(error) if was_not_made(&error) => {}
                Err(error) => {
                    state.failure.get_or_insert(error.raw_os_error().unwrap_or(libc::EIO));
                }
            }
        }
        flushes.ended.notify(usize::MAX);
    }
}

impl Drop for SyncEnd {
    fn drop(&mut self) {
        self.note(Err(io::Error::from_raw_os_error(libc::EIO)));
    }
}

fn was_not_made(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::ECANCELED))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    fn eio() -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EIO))
    }

    /// Two clients of a raw disk flushed at once. The kernel reported the first sync that writeback had failed and the
    /// second that all was well, and the second client's data was gone.
    #[test]
    fn of_two_flushes_at_once_none_is_acknowledged_when_one_gets_an_error() {
        let flushes = Arc::new(Flushes::default());
        let syncs = RefCell::new(Vec::new());
        let begin = |end| syncs.borrow_mut().push(end);
        let mut first = pin!(flushes.flush(begin));
        let mut second = pin!(flushes.flush(begin));
        assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        assert_eq!(syncs.borrow().len(), 1, "the second waits for the first to end");
        syncs.borrow_mut().remove(0).tell(eio());
        assert_eq!(second.now_or_never().unwrap().unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(first.now_or_never().unwrap().unwrap_err().raw_os_error(), Some(libc::EIO));
        assert!(syncs.borrow().is_empty(), "nobody asks the kernel again: it would say that all is well");
    }

    #[test]
    fn a_flush_is_never_answered_by_a_sync_that_began_before_it_and_shares_the_next() {
        let flushes = Arc::new(Flushes::default());
        let syncs = RefCell::new(Vec::new());
        let begin = |end| syncs.borrow_mut().push(end);
        let mut first = pin!(flushes.flush(begin));
        let mut others = [0; 3].map(|_| Box::pin(flushes.flush(begin)));
        syncs.borrow_mut().remove(0).tell(Ok(()));
        assert!(first.as_mut().now_or_never().unwrap().is_ok());
        assert!(others.iter_mut().all(|other| other.as_mut().now_or_never().is_none()));
        assert_eq!(syncs.borrow().len(), 1, "one for all of them");
        syncs.borrow_mut().remove(0).tell(Ok(()));
        assert!(others.into_iter().all(|other| other.now_or_never().unwrap().is_ok()));
    }

    #[test]
    fn after_one_failure_every_flush_fails_and_names_the_first_reason() {
        let flushes = Arc::new(Flushes::default());
        let full = || io::Error::from_raw_os_error(libc::ENOSPC);
        assert!(flushes.flush(|end| end.tell(Err(full()))).now_or_never().unwrap().is_err());
        for _ in 0..2 {
            let said = flushes.flush(|_| panic!("the kernel is not asked again")).now_or_never().unwrap();
            let said = said.unwrap_err();
            assert_eq!(said.kind(), io::ErrorKind::StorageFull);
            assert!(said.to_string().contains("earlier flush"), "{said}");
        }
    }

    #[test]
    fn an_interrupted_sync_is_made_again_and_a_lost_one_has_failed() {
        let flushes = Arc::new(Flushes::default());
        let results = RefCell::new(vec![Ok(()), Err(io::Error::from_raw_os_error(libc::EINTR))]);
        let again = |end: SyncEnd| end.tell(results.borrow_mut().pop().unwrap());
        assert!(flushes.flush(again).now_or_never().unwrap().is_ok());
        assert!(flushes.flush(drop).now_or_never().unwrap().is_err());
        assert!(flushes.check().is_err());
    }

    #[test]
    fn a_flush_that_nobody_waits_for_any_more_still_tells_of_its_error() {
        let flushes = Arc::new(Flushes::default());
        let syncs = RefCell::new(Vec::new());
        drop(flushes.flush(|end| syncs.borrow_mut().push(end)));
        syncs.borrow_mut().remove(0).tell(eio());
        assert!(flushes.check().is_err());
    }
}
