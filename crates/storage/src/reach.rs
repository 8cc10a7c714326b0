//! How far writes have reached into a medium, and who wants to hear of it: a logical volume is made longer in time.

use sync::Event;
use sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// The end of the highest write since the device was opened, and an end beyond which a write is an event.
#[derive(Debug, Default)]
pub struct Reach {
    highest: AtomicU64,
    /// 0: no event is wanted.
    threshold: AtomicU64,
    /// The end of the write that went beyond it.
    beyond: AtomicU64,
    /// How often a threshold was set.
    times: AtomicU64,
    changed: Event,
}

impl Reach {
    /// A write to `end` begins. Costs two loads as long as nothing is new.
    #[inline]
    pub(crate) fn note(&self, end: u64) {
        if end > self.highest.load(Relaxed) {
            self.highest.fetch_max(end, Relaxed);
        }
        let threshold = self.threshold.load(Relaxed);
        if threshold != 0 && end > threshold {
            self.pass(threshold, end);
        }
    }

    #[cold]
    fn pass(&self, threshold: u64, end: u64) {
        // Of several writes one tells.
        if self.threshold.compare_exchange(threshold, 0, SeqCst, SeqCst).is_ok() {
            self.beyond.store(end, SeqCst);
            self.changed.notify(usize::MAX);
        }
    }

    /// The end of the highest write, in bytes; 0 if there was none.
    pub fn highest(&self) -> u64 {
        self.highest.load(Relaxed)
    }

    /// The threshold that no write has gone beyond yet; 0 if there is none.
    pub fn threshold(&self) -> u64 {
        self.threshold.load(SeqCst)
    }

    /// Sets a threshold in bytes, in the place of any; 0 takes it away. Gives its number, for [`Reach::passed`].
    pub fn set_threshold(&self, threshold: u64) -> u64 {
        let number = self.times.fetch_add(1, SeqCst) + 1;
        self.threshold.store(threshold, SeqCst);
        self.changed.notify(usize::MAX);
        number
    }

    /// Waits until a write goes beyond the threshold with this number: the end of the write; `None` if another one takes its place before.
    pub async fn passed(&self, number: u64) -> Option<u64> {
        loop {
            let changed = self.changed.listen();
            if self.times.load(SeqCst) != number {
                return None;
            }
            if self.threshold() == 0 {
                match self.beyond.load(SeqCst) {
                    // Taken away, and the end is on its way.
                    0 => {}
                    end => {
                        self.beyond.store(0, SeqCst);
                        return Some(end);
                    }
                }
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_write_beyond_the_threshold_is_reported_once() {
        let reach = Reach::default();
        reach.note(4096);
        let number = reach.set_threshold(8192);
        let mut passed = Box::pin(reach.passed(number));
        assert!(passed.as_mut().now_or_never().is_none());
        reach.note(8192);
        assert!(passed.as_mut().now_or_never().is_none());
        reach.note(8704);
        reach.note(9216);
        assert_eq!(passed.now_or_never(), Some(Some(8704)));
        assert_eq!((reach.highest(), reach.threshold()), (9216, 0));
        let old = reach.set_threshold(1 << 20);
        let mut waits = Box::pin(reach.passed(old));
        assert!(waits.as_mut().now_or_never().is_none());
        reach.set_threshold(0);
        assert_eq!(waits.now_or_never(), Some(None));
    }
}
