//! The wish to stop, heard on every loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use event_listener::Event;

/// Shared by the code that may ask for the end and the tasks that react to it.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    asked: AtomicBool,
    event: Event,
}

impl Shutdown {
    /// Not asked for yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for the end. From any thread; once is enough, more do no harm.
    pub fn trigger(&self) {
        self.shared.asked.store(true, Ordering::SeqCst);
        self.shared.event.notify(usize::MAX);
    }

    /// Whether the end was asked for.
    pub fn is_triggered(&self) -> bool {
        self.shared.asked.load(Ordering::SeqCst)
    }

    /// Ends when the end was asked for.
    pub async fn wait(&self) {
        while !self.is_triggered() {
            let listener = self.shared.event.listen();
            if !self.is_triggered() {
                listener.await;
            }
        }
    }
}
