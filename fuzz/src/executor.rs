//! Runs futures on this thread, in the order in which they came, for a bounded number of steps.

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use qcow2::{Host, Work};

/// Polls of a case. Storage in memory is always ready, so only work that waits for other work is
/// polled more than once.
const POLLS_MAX: u64 = 10_000_000;

thread_local! {
    static HANDED_OVER: RefCell<Vec<Work>> = const { RefCell::new(Vec::new()) };
}

/// Takes work that must run to its end.
#[derive(Debug)]
pub struct QueueHost;

impl Host for QueueHost {
    fn spawn(&self, work: Work) {
        HANDED_OVER.with_borrow_mut(|queue| queue.push(work));
    }
}

/// The host of every image that is opened in a case.
pub fn host() -> Arc<dyn Host> {
    Arc::new(QueueHost)
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `future`, and all work that was handed over, to the end.
///
/// # Panics
/// When all wait and no task is left to wake them, or nothing comes to an end.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    let mut result = None;
    // What a case left behind that ended in a panic is no business of the next one.
    HANDED_OVER.with_borrow_mut(Vec::clear);
    let mut work: Vec<Work> = Vec::new();
    for _ in 0..POLLS_MAX {
        woken.0.store(false, Ordering::Relaxed);
        if result.is_none()
            && let Poll::Ready(value) = future.as_mut().poll(&mut context)
        {
            result = Some(value);
        }
        work.retain_mut(|work| work.as_mut().poll(&mut context).is_pending());
        let mut arrived = HANDED_OVER.with_borrow_mut(std::mem::take);
        let idle = arrived.is_empty() && !woken.0.load(Ordering::Relaxed);
        work.append(&mut arrived);
        match result.take() {
            Some(value) if work.is_empty() => return value,
            kept => result = kept,
        }
        assert!(!idle, "deadlock: {} tasks wait, and nothing can wake them", work.len() + 1);
    }
    panic!("no end after {POLLS_MAX} polls");
}
