//! An event that tasks wait for, as in `event-listener`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::Mutex;

/// Something that happens again and again; each time all listeners are notified.
#[derive(Debug, Default)]
pub struct Event(Mutex<Vec<Arc<Mutex<Reported>>>>);

#[derive(Debug, Default)]
struct Reported {
    reported: bool,
    waker: Option<Waker>,
}

impl Event {
    /// No thread listens yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Listens from now on.
    pub fn listen(&self) -> EventListener {
        let state = Arc::new(Mutex::new(Reported::default()));
        self.0.lock().push(Arc::clone(&state));
        EventListener(state)
    }

    /// Tells all listeners.
    ///
    /// # Panics
    /// If `count` is not all of them: no caller wakes fewer, so that is not modelled.
    pub fn notify(&self, count: usize) {
        assert_eq!(count, usize::MAX, "waking some of the listeners is not modelled");
        let listeners = std::mem::take(&mut *self.0.lock());
        for listener in listeners {
            let mut state = listener.lock();
            state.reported = true;
            let waker = state.waker.take();
            drop(state);
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

/// Ready once the event has happened after [`Event::listen`].
#[derive(Debug)]
pub struct EventListener(Arc<Mutex<Reported>>);

impl Future for EventListener {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock();
        if state.reported {
            return Poll::Ready(());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
