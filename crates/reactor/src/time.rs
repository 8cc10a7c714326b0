//! Waiting for a moment.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::inner::Inner;
use crate::timers::TimerKey;

/// Ends at a moment. Bound to the loop that first polls it.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep {
    deadline: Instant,
    armed: Option<(Rc<Inner>, TimerKey)>,
}

/// Ends after `duration`, counted from now; one so long that the clock cannot say it never ends.
pub fn sleep(duration: Duration) -> Sleep {
    /// As good as never: thirty years.
    const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    let now = Instant::now();
    sleep_until(now.checked_add(duration.min(NEVER)).unwrap_or(now))
}

/// Ends at `deadline`; at once if that has passed.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline, armed: None }
}

/// What `work` gives; `None` after `limit` without an end, counted from the first look at it. A timer is made only for work that has to wait.
pub fn within<F: Future>(limit: Duration, work: F) -> Within<F> {
    Within { work, limit, timer: None }
}

/// Ends with its work, or at the limit. It is as large as the work, which an async function would have twice.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Within<F> {
    work: F,
    limit: Duration,
    timer: Option<Sleep>,
}

impl<F: Future> Future for Within<F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<F::Output>> {
        // SAFETY: `work` is not moved out of it.
        let Self { work, limit, timer } = unsafe { self.get_unchecked_mut() };
        // SAFETY: `self` is pinned, and so is its `work`, which nothing else gets a reference to.
        if let Poll::Ready(output) = unsafe { Pin::new_unchecked(work) }.poll(cx) {
            return Poll::Ready(Some(output));
        }
        Pin::new(timer.get_or_insert_with(|| sleep(*limit))).poll(cx).map(|()| None)
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.deadline {
            self.disarm();
            return Poll::Ready(());
        }
        if let Some((inner, key)) = &self.armed
            && inner.timers.borrow_mut().update(*key, cx.waker())
        {
            return Poll::Pending;
        }
        let inner = Inner::current();
        let key = inner.timers.borrow_mut().insert(self.deadline, cx.waker().clone());
        self.armed = Some((inner, key));
        Poll::Pending
    }
}

impl Sleep {
    fn disarm(&mut self) {
        if let Some((inner, key)) = self.armed.take() {
            let waker = inner.timers.borrow_mut().remove(key);
            // Dropping a waker may drop a task: not under the borrow.
            drop(waker);
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.disarm();
    }
}
