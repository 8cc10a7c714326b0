//! How long exchanges of a disk's layers kept its requests out.

use std::time::Duration;

/// The pauses of a disk since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pauses {
    /// How many there were.
    pub count: u64,
    /// All together.
    pub total: Duration,
    /// The longest one.
    pub longest: Duration,
    /// The last one.
    pub last: Duration,
}

impl Pauses {
    pub(super) fn add(&mut self, pause: Duration) {
        self.count += 1;
        self.total = self.total.saturating_add(pause);
        self.longest = self.longest.max(pause);
        self.last = pause;
    }
}
