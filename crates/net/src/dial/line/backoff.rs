//! Pauses between attempts.

use std::time::Duration;

/// Pauses, each twice as long as the one before, up to a longest one.
#[derive(Clone, Debug)]
pub struct Backoff {
    /// The next one.
    pub next: Duration,
    /// The longest one.
    pub longest: Duration,
}

impl Backoff {
    /// The pause after an attempt that has failed.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let [next, longest] = [20, 100].map(Duration::from_millis);
        let mut pauses = Backoff { next, longest };
        assert_eq!([(); 5].map(|()| pauses.pause().as_millis()), [20, 40, 80, 100, 100]);
    }
}
