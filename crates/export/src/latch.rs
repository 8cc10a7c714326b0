//! What happens once, and what any number wait for.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use event_listener::{Event, EventListener};

/// Not set at first; once set it stays so. Of any thread.
#[derive(Debug, Default)]
pub struct Latch {
    is_set: AtomicBool,
    event: Event,
}

impl Latch {
    /// Sets it. Once is enough, more do no harm.
    pub fn set(&self) {
        if !self.is_set.swap(true, SeqCst) {
            self.event.notify(usize::MAX);
        }
    }

    /// Whether it is set. Costs a load.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.is_set.load(SeqCst)
    }

    /// Hears of it, unless it is set already: look after this.
    pub fn listen(&self) -> EventListener {
        self.event.listen()
    }

    /// Ends when it is set.
    pub async fn wait(&self) {
        while !self.is_set() {
            let event = self.listen();
            if !self.is_set() {
                event.await;
            }
        }
    }
}
