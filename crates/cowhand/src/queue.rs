//! A queue of requests with its completions, for loops that wait on descriptors.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::completions::{Completion, Done, QueueReply};
use crate::disk::Handle;
use crate::error::{Error, ErrorKind};
use crate::pending::is_loop;
use crate::request::{Request, To};

/// Requests in flight in one queue at most: as many as a virtio queue has descriptors.
const DEPTH_MAX: usize = 32768;

/// Submits requests to a disk, and collects their completions.
///
/// Made for one thread at a time and an event loop of the caller's: requests are submitted with a number of the caller's, and
/// completions are taken in batches, in the order in which requests ended; [`Queue::completion_fd`] is readable while there
/// are some. A device with several queues makes one for each ([`Disk::queue`](crate::Disk::queue)).
///
/// The disk stays open while the queue exists. Dropped with requests in flight, these still happen, and no caller learns how they
/// ended.
#[derive(Debug)]
pub struct Queue {
    disk: Arc<Handle>,
    lane: usize,
    done: Arc<Done>,
    depth: usize,
    in_flight: usize,
}

impl Queue {
    pub(crate) fn new(disk: Arc<Handle>, lane: usize, depth: usize) -> Result<Self, Error> {
        if !(1..=DEPTH_MAX).contains(&depth) {
            let text = format!("a queue's depth is {depth}; allowed: 1 to {DEPTH_MAX}");
            return Err(Error::said(ErrorKind::Invalid, text));
        }
        Ok(Self { disk, lane, done: Arc::default(), depth, in_flight: 0 })
    }

    /// Submits a request; `user_data` comes back with its completion. Costs no system call while the disk's loop is at work. A
    /// short read whose bytes are in memory is carried out here and now.
    ///
    /// # Errors
    /// With the request's bytes ([`Error::into_buffer`]): [`ErrorKind::Full`] while as many requests as the queue is deep have
    /// been submitted whose completions were not taken; [`ErrorKind::Closed`]. Every other failure comes as a completion.
    pub fn submit(&mut self, request: Request, user_data: u64) -> Result<(), Error> {
        if self.in_flight == self.depth {
            let text = format!("{} requests are in the queue, as many as it is deep", self.depth);
            return Err(request.refuse(Error::said(ErrorKind::Full, text)));
        }
        match self.disk.admit() {
            Err(error) => Err(request.refuse(error)),
            Ok(inside) => {
                let reply = QueueReply { done: Some(Arc::clone(&self.done)), user_data };
                self.in_flight += 1;
                self.disk.begin(self.lane, inside, request, To::Queue(reply));
                Ok(())
            }
        }
    }

    /// Adds the completions that are there to `into`, and gives their count. Waits until there are `min`, or as many as are in
    /// flight if these are fewer, or until `timeout` has passed. With a `min` of 0 it never waits.
    ///
    /// # Errors
    /// [`ErrorKind::WouldDeadlock`] where it would have to wait in a callback.
    pub fn completions(
        &mut self,
        into: &mut Vec<Completion>,
        min: usize,
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        self.completions_at_most(into, min, usize::MAX, timeout)
    }

    /// As [`Queue::completions`], of at most `max` completions; of those that it leaves the descriptor stays readable.
    ///
    /// # Errors
    /// As [`Queue::completions`].
    pub fn completions_at_most(
        &mut self,
        into: &mut Vec<Completion>,
        min: usize,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        let min = min.min(self.in_flight).min(max);
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.done.state.lock();
        if state.list.len() < min && is_loop() {
            return Err(Error::would_deadlock());
        }
        while state.list.len() < min {
            state.awaited = Some(min);
            match deadline {
                None => self.done.enough.wait(&mut state),
                Some(deadline) if self.done.enough.wait_until(&mut state, deadline).timed_out() => break,
                Some(_) => {}
            }
        }
        state.awaited = None;
        let count = self.done.take(&mut state, into, max);
        self.in_flight -= count;
        Ok(count)
    }

    /// Requests that were submitted and whose completions were not taken.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// An eventfd that is readable exactly while there are completions to be taken; taking them resets it, so no caller has to
    /// read it. It is made at the first call, and costs a system call for each batch of completions from then on.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn completion_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        let event = self.done.event();
        event.map(AsFd::as_fd).map_err(|error| Error::of_system("cannot make an eventfd for a queue", error))
    }
}
