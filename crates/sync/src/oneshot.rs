//! One value from one task or thread to one that waits for it, without naming a runtime.
//!
//! The lock is held for a few instructions and never across a call of others, so that it is the same in tests that explore interleavings.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// The sender was dropped and sent nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Canceled;

/// The half that sends.
pub struct Sender<T>(Arc<Mutex<State<T>>>);

/// The half that waits: a future of the value.
pub struct Receiver<T>(Arc<Mutex<State<T>>>);

struct State<T> {
    value: Option<T>,
    /// The task that waits.
    waker: Option<Waker>,
    /// Nothing is sent any more: the sender is gone, or has sent.
    sent: bool,
    /// Nothing is received any more.
    closed: bool,
}

/// The two halves.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = State { value: None, waker: None, sent: false, closed: false };
    let state = Arc::new(Mutex::new(state));
    (Sender(Arc::clone(&state)), Receiver(state))
}

impl<T> Sender<T> {
    /// Sends `value` and wakes the task that waits for it.
    ///
    /// # Errors
    /// With the value, if the receiver is gone or closed.
    pub fn send(self, value: T) -> Result<(), T> {
        let mut state = self.0.lock();
        if state.closed {
            return Err(value);
        }
        state.value = Some(value);
        Ok(())
        // Dropped here, which wakes.
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.0.lock();
            state.sent = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Receiver<T> {
    /// From now on nothing can be sent. What was sent before can still be taken.
    pub fn close(&mut self) {
        self.0.lock().closed = true;
    }

    /// What was sent, without waiting for it; `None` if nothing was yet.
    ///
    /// # Errors
    /// When nothing will be: the sender is gone, or this half is closed.
    pub fn try_recv(&mut self) -> Result<Option<T>, Canceled> {
        let mut state = self.0.lock();
        match state.value.take() {
            Some(value) => Ok(Some(value)),
            None if state.sent || state.closed => Err(Canceled),
            None => Ok(None),
        }
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, Canceled>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.lock();
        match state.value.take() {
            Some(value) => Poll::Ready(Ok(value)),
            None if state.sent || state.closed => Poll::Ready(Err(Canceled)),
            None => {
                if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                    state.waker = Some(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let dropped = {
            let mut state = self.0.lock();
            state.closed = true;
            (state.value.take(), state.waker.take())
        };
        drop(dropped);
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    fn poll<T>(receiver: &mut Receiver<T>, wakes: &Arc<Wakes>) -> Poll<Result<T, Canceled>> {
        let waker = Waker::from(Arc::clone(wakes));
        Pin::new(receiver).poll(&mut Context::from_waker(&waker))
    }

    #[test]
    fn a_value_is_received_once_and_wakes_once() {
        let wakes = Arc::new(Wakes::default());
        let (sender, mut receiver) = channel();
        assert!(poll(&mut receiver, &wakes).is_pending());
        assert!(poll(&mut receiver, &wakes).is_pending());
        assert_eq!(sender.send(7), Ok(()));
        assert_eq!(wakes.0.load(SeqCst), 1);
        assert_eq!(poll(&mut receiver, &wakes), Poll::Ready(Ok(7)));
        assert_eq!(receiver.try_recv(), Err(Canceled));
    }

    #[test]
    fn a_sender_that_is_dropped_wakes_and_says_so() {
        let wakes = Arc::new(Wakes::default());
        let (sender, mut receiver) = channel::<u8>();
        assert!(poll(&mut receiver, &wakes).is_pending());
        assert_eq!(receiver.try_recv(), Ok(None));
        drop(sender);
        assert_eq!(wakes.0.load(SeqCst), 1);
        assert_eq!(poll(&mut receiver, &wakes), Poll::Ready(Err(Canceled)));
    }

    /// A request that is dropped gives back what it was granted meanwhile: close first, then look.
    #[test]
    fn what_was_sent_before_the_close_is_taken_and_what_comes_after_goes_back() {
        let (sender, mut receiver) = channel();
        assert_eq!(sender.send(1), Ok(()));
        receiver.close();
        assert_eq!(receiver.try_recv(), Ok(Some(1)));
        let (sender, mut receiver) = channel();
        receiver.close();
        assert_eq!(sender.send(2), Err(2));
        assert_eq!(receiver.try_recv(), Err(Canceled));
        let (sender, receiver) = channel();
        drop(receiver);
        assert_eq!(sender.send(3), Err(3));
    }
}
