//! Where the result of a request goes that a thread beside the loops makes.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// The thread's side.
pub(super) struct Outcome<T>(Mutex<State<T>>);

struct State<T> {
    result: Option<io::Result<T>>,
    waker: Option<Waker>,
}

/// The end of a queued request. Dropping it leaves the request in the queue: it still happens.
pub(super) struct Reported<T>(Arc<Outcome<T>>);

impl<T> Outcome<T> {
    pub(super) fn new() -> (Arc<Self>, Reported<T>) {
        let outcome = Arc::new(Self(Mutex::new(State { result: None, waker: None })));
        (Arc::clone(&outcome), Reported(outcome))
    }

    pub(super) fn tell(&self, result: io::Result<T>) {
        let mut state = self.0.lock();
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Reported<T> {
    type Output = io::Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.0.lock();
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
