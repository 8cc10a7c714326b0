//! The wish to stop, heard on every loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::latch::Latch;

/// Shared by the code that may ask for the end and the tasks that react to it.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    asked: Latch,
    hands_over: AtomicBool,
}

impl Shutdown {
    /// Not asked for yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for the end. From any thread; once is enough, more do no harm.
    pub fn trigger(&self) {
        self.shared.asked.set();
    }

    /// Asks for an end after which another process serves the clients: who can be given to it is not hung up on. Of no effect after
    /// [`Shutdown::trigger`].
    pub fn hand_over(&self) {
        if !self.is_triggered() {
            self.shared.hands_over.store(true, Ordering::SeqCst);
        }
        self.trigger();
    }

    /// Whether clients go to another process.
    pub fn hands_over(&self) -> bool {
        self.shared.hands_over.load(Ordering::SeqCst)
    }

    /// Whether the end was asked for.
    pub fn is_triggered(&self) -> bool {
        self.shared.asked.is_set()
    }

    /// Ends when the end was asked for.
    pub async fn wait(&self) {
        self.shared.asked.wait().await;
    }
}
