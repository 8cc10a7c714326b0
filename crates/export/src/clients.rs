//! The clients of a door, counted.

use std::sync::atomic::{AtomicUsize, Ordering};

use event_listener::Event;

/// How many there are, and when one leaves.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    count: AtomicUsize,
    /// One has left.
    left: Event,
}

impl Clients {
    pub(crate) fn enter(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
        self.left.notify(usize::MAX);
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Ends when there are fewer than `most`.
    pub(crate) async fn fewer_than(&self, most: usize) {
        loop {
            let left = self.left.listen();
            if self.count() < most.max(1) {
                return;
            }
            left.await;
        }
    }
}
