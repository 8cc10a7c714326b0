//! What is under way: to be awaited, waited for, or notified of.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};

use crate::error::Error;

thread_local! {
    /// This thread is one of our loops: waiting here for what the loop does would be for ever.
    static IS_LOOP: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as a loop.
pub(crate) fn become_loop() {
    IS_LOOP.set(true);
}

/// Whether this thread is a loop, which must not wait.
pub(crate) fn is_loop() -> bool {
    IS_LOOP.get()
}

/// A request, or another piece of work, that a disk's loop carries out.
///
/// It is under way already. Its end is learned in one of three ways: `.await` in any executor, [`Pending::wait`] on any thread,
/// or [`Pending::on_completion`]. Dropping it changes nothing but that no caller learns of the end: the request still happens,
/// and its bytes are freed then.
#[must_use = "what is under way may fail; await it, wait for it, or give it a callback"]
pub struct Pending<T> {
    slot: Arc<Slot<T>>,
}

struct Slot<T> {
    state: Mutex<State<T>>,
    done: Condvar,
}

enum State<T> {
    Running(Reported<T>),
    Done(Result<T, Error>),
    /// The result was given away.
    Over,
}

/// Who is notified of the end.
enum Reported<T> {
    Nobody,
    Task(Waker),
    Callback(Callback<T>),
}

type Callback<T> = Box<dyn FnOnce(Result<T, Error>) + Send>;

impl<T> Pending<T> {
    /// Something to be waited for, and the means to end it.
    pub(crate) fn new() -> (Reply<T>, Self) {
        let slot =
            Arc::new(Slot { state: Mutex::new(State::Running(Reported::Nobody)), done: Condvar::new() });
        (Reply { slot: Some(Arc::clone(&slot)) }, Self { slot })
    }

    /// What has ended before it began.
    pub(crate) fn ended(result: Result<T, Error>) -> Self {
        Self { slot: Arc::new(Slot { state: Mutex::new(State::Done(result)), done: Condvar::new() }) }
    }

    /// Blocks this thread until the end.
    ///
    /// # Errors
    /// What the work ended with; [`ErrorKind::WouldDeadlock`](crate::ErrorKind::WouldDeadlock) in a callback that runs on a
    /// disk's loop, where waiting would be for ever (the work goes on).
    pub fn wait(self) -> Result<T, Error> {
        if is_loop() && matches!(*self.slot.state.lock(), State::Running(_)) {
            return Err(Error::would_deadlock());
        }
        self.wait_anywhere()
    }

    /// As [`Pending::wait`], for what another loop does.
    pub(crate) fn wait_anywhere(self) -> Result<T, Error> {
        let mut state = self.slot.state.lock();
        loop {
            match std::mem::replace(&mut *state, State::Over) {
                State::Done(result) => return result,
                State::Over => return Err(Error::taken()),
                running @ State::Running(_) => *state = running,
            }
            self.slot.done.wait(&mut state);
        }
    }

    /// Has `callback` called with the result: on the loop that does the work, or on this thread, before this returns, if it
    /// has ended already.
    ///
    /// The loop serves no client while the callback runs: it should be short and must not wait. It may submit requests, and drop
    /// or close disks. A callback that panics is reported to the log.
    pub fn on_completion(self, callback: impl FnOnce(Result<T, Error>) + Send + 'static) {
        let mut state = self.slot.state.lock();
        match std::mem::replace(&mut *state, State::Over) {
            State::Running(_) => *state = State::Running(Reported::Callback(Box::new(callback))),
            State::Done(result) => {
                drop(state);
                callback(result);
            }
            State::Over => {
                drop(state);
                callback(Err(Error::taken()));
            }
        }
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.slot.state.lock();
        match std::mem::replace(&mut *state, State::Over) {
            State::Running(_) => {
                *state = State::Running(Reported::Task(cx.waker().clone()));
                Poll::Pending
            }
            State::Done(result) => Poll::Ready(result),
            State::Over => Poll::Ready(Err(Error::taken())),
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_running = matches!(*self.slot.state.lock(), State::Running(_));
        write!(f, "Pending({})", if is_running { "under way" } else { "ended" })
    }
}

/// The duty to end what a caller waits for. Dropped, it says that the loop has ended.
pub(crate) struct Reply<T> {
    slot: Option<Arc<Slot<T>>>,
}

impl<T> Reply<T> {
    pub(crate) fn send(mut self, result: Result<T, Error>) {
        if let Some(slot) = self.slot.take() {
            slot.end(result);
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            slot.end(Err(Error::loop_ended()));
        }
    }
}

impl<T> Slot<T> {
    fn end(&self, result: Result<T, Error>) {
        let mut state = self.state.lock();
        let reported = match std::mem::replace(&mut *state, State::Over) {
            State::Running(Reported::Callback(callback)) => {
                drop(state);
                return call(callback, result);
            }
            State::Running(reported) => reported,
            State::Done(_) | State::Over => Reported::Nobody,
        };
        *state = State::Done(result);
        drop(state);
        self.done.notify_all();
        if let Reported::Task(waker) = reported {
            waker.wake();
        }
    }
}

/// A caller's panic is not to end the loop of others.
fn call<T>(callback: Callback<T>, result: Result<T, Error>) {
    if catch_unwind(AssertUnwindSafe(|| callback(result))).is_err() {
        tracing::error!("a callback of a request panicked");
    }
}
