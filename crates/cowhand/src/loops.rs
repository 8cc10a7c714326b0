//! Threads with an event loop each, and what other threads hand to them.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use reactor::{Backend, Reactor};

use crate::error::Error;
use crate::pending::{Pending, Reply, become_loop};
use crate::request::Job;

/// Threads that carry out the requests of disks, an event loop each.
///
/// A disk has a loop of its own unless it is opened on these ([`OpenOptions::loops`](crate::OpenOptions::loops)): many disks may
/// share a few loops, and one disk may use several, which its handles and queues are dealt to in turn. Clones are handles of
/// the same threads, which end when no handle and no disk is left.
#[derive(Clone, Debug)]
pub struct Loops {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    lanes: Vec<Arc<Lane>>,
    next: AtomicUsize,
}

/// What one loop is to do, as other threads see it.
#[derive(Default)]
struct Lane {
    inbox: Mutex<Inbox>,
}

#[derive(Default)]
struct Inbox {
    jobs: Vec<Job>,
    /// Of the loop, while it has nothing to do: the submitter that takes it wakes the loop, once for all that comes meanwhile.
    waker: Option<Waker>,
    /// No handle is left that could send anything.
    is_ending: bool,
    /// The loop has ended.
    is_closed: bool,
}

impl Loops {
    /// `count` threads (at least one). Returns when they run.
    ///
    /// # Errors
    /// When the system refuses a thread or what its event loop needs.
    pub fn new(count: usize) -> Result<Self, Error> {
        Self::over(count, Backend::Ring)
    }

    /// The same over `backend`.
    pub(crate) fn over(count: usize, backend: Backend) -> Result<Self, Error> {
        let lanes = (0..count.max(1)).map(|_| Arc::default()).collect();
        // From here on an error ends those that run already.
        let loops = Self { inner: Arc::new(Inner { lanes, next: AtomicUsize::new(0) }) };
        let started: Result<Vec<_>, _> =
            loops.inner.lanes.iter().map(|lane| start(Arc::clone(lane), backend)).collect();
        started?.into_iter().try_for_each(Pending::wait_anywhere)?;
        Ok(loops)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.inner.lanes.len()
    }

    /// The number of the loop whose turn it is to have another user.
    pub(crate) fn deal(&self) -> usize {
        self.inner.next.fetch_add(1, Ordering::Relaxed) % self.count()
    }

    /// Has loop number `index` do `job`; where it has ended, the job learns that.
    pub(crate) fn send(&self, index: usize, job: Job) {
        match self.inner.lanes.get(index) {
            Some(lane) => lane.send(job),
            None => job.refuse(),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for lane in &self.lanes {
            let mut inbox = lane.inbox.lock();
            inbox.is_ending = true;
            let waker = inbox.waker.take();
            drop(inbox);
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

fn start(lane: Arc<Lane>, backend: Backend) -> Result<Pending<()>, Error> {
    let (reply, started) = Pending::new();
    let thread = std::thread::Builder::new().name("cowhand-disk".to_owned());
    let spawned = thread.spawn(move || run(&lane, backend, reply));
    spawned.map_err(|error| Error::of_system("cannot start a thread for an event loop", error))?;
    Ok(started)
}

/// The life of a loop's thread.
fn run(lane: &Arc<Lane>, backend: Backend, started: Reply<()>) {
    become_loop();
    // Also when a fault of ours unwinds through here.
    let _closed = CloseOnDrop(lane);
    match Reactor::new(backend) {
        Ok(reactor) => {
            started.send(Ok(()));
            reactor.run(lane.work());
        }
        Err(error) => started.send(Err(Error::of_system("cannot start an event loop", error))),
    }
}

struct CloseOnDrop<'a>(&'a Lane);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        let mut inbox = self.0.inbox.lock();
        inbox.is_closed = true;
        let jobs = std::mem::take(&mut inbox.jobs);
        drop(inbox);
        jobs.into_iter().for_each(Job::refuse);
    }
}

impl Lane {
    fn send(&self, job: Job) {
        let mut inbox = self.inbox.lock();
        if inbox.is_closed {
            drop(inbox);
            return job.refuse();
        }
        inbox.jobs.push(job);
        let waker = inbox.waker.take();
        drop(inbox);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Starts what arrives, until no handle is left that could send anything.
    async fn work(&self) {
        let mut jobs = Vec::new();
        while self.take(&mut jobs).await {
            jobs.drain(..).for_each(Job::start);
            if self.has_more() {
                // What was started goes first.
                reactor::yield_now().await;
            }
        }
    }

    /// Fills `jobs`, which is empty, with all that has arrived; waits until something has. False at the end.
    async fn take(&self, jobs: &mut Vec<Job>) -> bool {
        poll_fn(|cx| {
            let mut inbox = self.inbox.lock();
            if !inbox.jobs.is_empty() {
                std::mem::swap(&mut inbox.jobs, jobs);
                return Poll::Ready(true);
            }
            if inbox.is_ending {
                return Poll::Ready(false);
            }
            inbox.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn has_more(&self) -> bool {
        !self.inbox.lock().jobs.is_empty()
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lane({} jobs)", self.inbox.lock().jobs.len())
    }
}
