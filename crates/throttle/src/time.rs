//! A moment on the caller's clock.

use std::time::Duration;

/// Nanoseconds since a moment that the caller chose. The clock should be monotonic; a step back
/// counts as no time passed. 64 bits last 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The moment `nanos` nanoseconds after the clock's beginning.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's beginning.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The moment `wait` later, or the end of time.
    pub fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long ago `earlier` was; zero if it is yet to come.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
