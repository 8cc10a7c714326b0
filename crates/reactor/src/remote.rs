//! What other threads hand to a loop, and how they wake it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Wake;

use async_task::Runnable;
use parking_lot::Mutex;
use rustix::event::EventfdFlags;

use crate::work::Work;

/// The loop is at work and looks at the inbox before it sleeps.
const RUNNING: u32 = 0;
/// The loop sleeps, or is about to: a thread that finds this writes the eventfd.
const PARKED: u32 = 1;
/// Something is in the inbox, and the loop knows or has been woken.
const NOTIFIED: u32 = 2;

/// An operation that a pool thread has finished.
pub(crate) struct Returned {
    pub(crate) key: usize,
    pub(crate) result: i32,
    pub(crate) work: Work,
}

#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) runnables: Vec<Runnable>,
    pub(crate) returned: Vec<Returned>,
    closed: bool,
}

/// The part of a loop that other threads see.
pub(crate) struct Remote {
    state: AtomicU32,
    inbox: Mutex<Inbox>,
    event: Arc<OwnedFd>,
}

impl Remote {
    pub(crate) fn new() -> io::Result<Self> {
        // Blocking: io_uring answers a read of a non-blocking one at once with EAGAIN.
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Self { state: AtomicU32::new(RUNNING), inbox: Mutex::default(), event: Arc::new(event) })
    }

    /// Readable once the sleeping loop is to wake.
    pub(crate) fn event(&self) -> &Arc<OwnedFd> {
        &self.event
    }

    /// Hands over a task that is ready.
    pub(crate) fn push_runnable(&self, runnable: Runnable) {
        let mut inbox = self.inbox.lock();
        if inbox.closed {
            drop(inbox);
            // A local task may neither run nor be dropped on a foreign thread, and its own loop has
            // gone after dropping its future: what leaks is the empty shell of a task.
            std::mem::forget(runnable);
            return;
        }
        inbox.runnables.push(runnable);
        drop(inbox);
        self.notify();
    }

    /// Hands back an operation that a pool thread has finished.
    pub(crate) fn push_returned(&self, returned: Returned) {
        self.inbox.lock().returned.push(returned);
        self.notify();
    }

    /// Makes the loop look at its inbox. A system call only if it sleeps.
    pub(crate) fn notify(&self) {
        if self.state.swap(NOTIFIED, Ordering::AcqRel) == PARKED {
            // The counter cannot overflow: one write a sleep.
            let _ = rustix::io::write(&*self.event, &1u64.to_ne_bytes());
        }
    }

    /// What arrived since the last call; nothing (and one atomic load) if nothing was sent.
    pub(crate) fn take(&self) -> Option<Inbox> {
        if self.state.load(Ordering::Acquire) != NOTIFIED {
            return None;
        }
        // Before looking: who pushes from here on notifies again.
        self.state.swap(RUNNING, Ordering::AcqRel);
        let mut inbox = self.inbox.lock();
        let closed = inbox.closed;
        Some(std::mem::replace(&mut *inbox, Inbox { closed, ..Inbox::default() }))
    }

    /// Whether something has arrived since the last look.
    pub(crate) fn is_notified(&self) -> bool {
        self.state.load(Ordering::Acquire) == NOTIFIED
    }

    /// Announces that the loop is about to sleep; false if something arrived first.
    pub(crate) fn park(&self) -> bool {
        self.state.compare_exchange(RUNNING, PARKED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The loop is awake, and no longer needs the eventfd.
    pub(crate) fn unpark(&self) {
        let _ = self.state.compare_exchange(PARKED, RUNNING, Ordering::AcqRel, Ordering::Acquire);
    }

    /// No task arrives any more; gives those that had.
    pub(crate) fn close(&self) -> Vec<Runnable> {
        let mut inbox = self.inbox.lock();
        inbox.closed = true;
        std::mem::take(&mut inbox.runnables)
    }
}

/// The waker of the future that `run` was called with.
pub(crate) struct MainWaker {
    remote: Arc<Remote>,
    woken: AtomicBool,
}

impl MainWaker {
    pub(crate) fn new(remote: Arc<Remote>) -> Self {
        Self { remote, woken: AtomicBool::new(true) }
    }

    /// Whether the future was woken since the last call.
    pub(crate) fn take(&self) -> bool {
        self.woken.load(Ordering::Acquire) && self.woken.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn woken(&self) -> bool {
        self.woken.load(Ordering::Acquire)
    }
}

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.remote.notify();
        }
    }
}
