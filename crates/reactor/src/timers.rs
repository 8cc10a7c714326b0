//! Who is to be woken when.

use std::collections::BTreeMap;
use std::task::Waker;
use std::time::Instant;

/// Names a waiting timer.
pub(crate) type TimerKey = (Instant, u64);

/// Waiting timers by deadline.
#[derive(Default)]
pub(crate) struct Timers {
    waiting: BTreeMap<TimerKey, Waker>,
    serial: u64,
}

impl Timers {
    pub(crate) fn insert(&mut self, deadline: Instant, waker: Waker) -> TimerKey {
        self.serial += 1;
        let key = (deadline, self.serial);
        self.waiting.insert(key, waker);
        key
    }

    /// Replaces the waker of `key`; false if it has fired.
    pub(crate) fn update(&mut self, key: TimerKey, waker: &Waker) -> bool {
        self.waiting.get_mut(&key).map(|old| old.clone_from(waker)).is_some()
    }

    pub(crate) fn remove(&mut self, key: TimerKey) -> Option<Waker> {
        self.waiting.remove(&key)
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    /// Takes out one timer that is due at `now`.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<Waker> {
        let entry = self.waiting.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn timers_fire_in_order_of_deadline_and_none_early() {
        let start = Instant::now();
        let mut timers = Timers::default();
        let late = timers.insert(start + Duration::from_secs(2), Waker::noop().clone());
        timers.insert(start + Duration::from_secs(1), Waker::noop().clone());
        assert_eq!(timers.next(), Some(start + Duration::from_secs(1)));
        assert!(timers.expire(start).is_none());
        assert!(timers.expire(start + Duration::from_secs(1)).is_some());
        assert!(timers.expire(start + Duration::from_secs(1)).is_none());
        assert!(timers.update(late, Waker::noop()));
        assert!(timers.remove(late).is_some());
        assert!(!timers.update(late, Waker::noop()));
        assert_eq!(timers.next(), None);
    }
}
