//! Waiting for a condition that another task of the same loop makes true.

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// At most one task waits at a time.
#[derive(Default)]
pub struct LocalEvent {
    waiting: Cell<Option<Waker>>,
}

impl LocalEvent {
    /// Has the waiting task look again, if there is one.
    pub fn wake(&self) {
        if let Some(waker) = self.waiting.take() {
            waker.wake();
        }
    }

    /// Ends when `condition` holds; it is looked at now and after every [`LocalEvent::wake`].
    pub async fn until(&self, condition: impl Fn() -> bool) {
        poll_fn(|cx| {
            if condition() {
                return Poll::Ready(());
            }
            self.waiting.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

impl fmt::Debug for LocalEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalEvent")
    }
}
