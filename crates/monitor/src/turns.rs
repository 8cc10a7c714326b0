//! Long answers, which leave the loop of the main thread to others in between.

use std::time::{Duration, Instant};

/// How long one answer has the loop: another request waits for it as long at most, and longer than handing the loop over takes.
const TURN: Duration = Duration::from_millis(1);

/// What one task has of the loop's time.
#[derive(Debug)]
pub struct Turn {
    begun: Instant,
}

impl Turn {
    /// Begins now.
    pub fn begin() -> Self {
        Self { begun: Instant::now() }
    }

    /// Lets others go first, if the turn is over. The caller has no lock, and no reference to a disk that is to be closed.
    pub async fn pass(&mut self) {
        if self.begun.elapsed() >= TURN {
            reactor::yield_now().await;
            self.begun = Instant::now();
        }
    }
}
