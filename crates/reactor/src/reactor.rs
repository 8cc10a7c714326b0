//! The event loop as its thread sees it.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::backend::Backend;
use crate::inner::{Inner, Stats};
use crate::remote::MainWaker;

/// An event loop, bound to the thread that made it.
///
/// Dropping it drops every task, then waits for every operation in flight.
pub struct Reactor {
    inner: Rc<Inner>,
}

impl Reactor {
    /// A loop over `backend`. Where the kernel refuses it a ring (a filter of system calls, a sysctl, a limit on
    /// locked memory), it runs over threads, and a warning names the cause.
    ///
    /// # Errors
    /// For want of descriptors or memory.
    pub fn new(backend: Backend) -> io::Result<Self> {
        Ok(Self { inner: Rc::new(Inner::new(backend)?) })
    }

    /// What it runs over now.
    pub fn backend(&self) -> Backend {
        self.inner.backend()
    }

    /// Runs `future` and all tasks of this loop, until `future` is done. Tasks that are not done by
    /// then rest until the next `run`.
    ///
    /// # Panics
    /// If a loop runs on this thread already; if a task panics.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        assert!(!Inner::is_entered(), "a reactor already runs on this thread");
        let inner = &self.inner;
        let _entered = inner.enter();
        let main = Arc::new(MainWaker::new(Arc::clone(&inner.remote)));
        let waker = Waker::from(Arc::clone(&main));
        let mut cx = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            inner.take_remote();
            if main.take()
                && let Poll::Ready(output) = future.as_mut().poll(&mut cx)
            {
                return output;
            }
            inner.run_ready();
            inner.expire();
            let idle = inner.ready.borrow().is_empty() && !main.woken();
            inner.turn(idle);
        }
    }

    /// What this loop has done so far.
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        let _entered = self.inner.enter();
        self.inner.cancel_tasks();
        if let Err(error) = self.inner.drain() {
            tracing::error!(%error, "operations in flight cannot be awaited; their memory is kept");
            self.inner.leak();
        }
    }
}

impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reactor").field("backend", &self.backend()).field("stats", &self.stats()).finish()
    }
}

/// What the loop of this thread has done so far.
///
/// # Panics
/// Outside of [`Reactor::run`].
pub fn stats() -> Stats {
    Inner::current().stats()
}

/// What the loop of this thread runs over.
///
/// # Panics
/// Outside of [`Reactor::run`].
pub fn backend() -> Backend {
    Inner::current().backend()
}
