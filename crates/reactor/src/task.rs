//! Tasks of one loop.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_task::Runnable;

use crate::inner::Inner;

/// A task that was spawned; awaiting it gives its output. Dropping it cancels the task,
/// `detach` lets it go on alone, `cancel().await` also waits until its future is dropped.
pub type Task<T> = async_task::Task<T>;

/// Runs `future` on the loop of this thread, from its next turn on.
///
/// # Panics
/// Outside of [`crate::Reactor::run`].
pub fn spawn<F>(future: F) -> Task<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let (runnable, task) = prepare(future);
    runnable.schedule();
    task
}

/// Runs `future` on the loop of this thread, from this very moment on: as far as it gets without
/// waiting before this ends.
///
/// # Panics
/// Outside of [`crate::Reactor::run`]; if `future` does.
pub fn spawn_now<F>(future: F) -> Task<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let (runnable, task) = prepare(future);
    runnable.run();
    task
}

fn prepare<F>(future: F) -> (Runnable, Task<F::Output>)
where
    F: Future + 'static,
    F::Output: 'static,
{
    let inner = Inner::current();
    let slot = Rc::new(Cell::new(usize::MAX));
    let alive = Alive { inner: Rc::clone(&inner), slot: Rc::clone(&slot) };
    let tracked = async move {
        let _alive = alive;
        future.await
    };
    let remote = Arc::clone(&inner.remote);
    let schedule = move |runnable| match Inner::current_of(&remote) {
        Some(inner) => inner.ready.borrow_mut().push_back(runnable),
        None => remote.push_runnable(runnable),
    };
    let (runnable, task) = async_task::spawn_local(tracked, schedule);
    slot.set(inner.tasks.borrow_mut().insert(runnable.waker()));
    (runnable, task)
}

/// Removes a task from the list of those that the loop has to cancel at its end.
struct Alive {
    inner: Rc<Inner>,
    slot: Rc<Cell<usize>>,
}

impl Drop for Alive {
    fn drop(&mut self) {
        let waker = self.inner.tasks.borrow_mut().remove(self.slot.get());
        drop(waker);
    }
}

/// The tasks that are alive, by slot.
#[derive(Default)]
pub(crate) struct Tasks {
    wakers: Vec<Option<std::task::Waker>>,
    free: Vec<usize>,
}

impl Tasks {
    fn insert(&mut self, waker: std::task::Waker) -> usize {
        match self.free.pop() {
            Some(slot) => {
                self.wakers[slot] = Some(waker);
                slot
            }
            None => {
                self.wakers.push(Some(waker));
                self.wakers.len() - 1
            }
        }
    }

    fn remove(&mut self, slot: usize) -> Option<std::task::Waker> {
        let waker = self.wakers.get_mut(slot)?.take();
        if waker.is_some() {
            self.free.push(slot);
        }
        waker
    }

    /// Wakers of all tasks: a task that is woken comes to the queue, where it can be dropped.
    pub(crate) fn wakers(&self) -> Vec<std::task::Waker> {
        self.wakers.iter().flatten().cloned().collect()
    }
}

/// Lets the other tasks that are ready, and the completions that have arrived, go first.
pub fn yield_now() -> impl Future<Output = ()> {
    Yield { yielded: false }
}

struct Yield {
    yielded: bool,
}

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
