//! Who writes parts of sectors. A sector is ciphered as a whole, so such a write changes the cipher text of its neighbours too: a
//! read that meets it half-way must look again.

use std::sync::atomic::{AtomicU64, Ordering};

/// Writes of parts of sectors.
#[derive(Debug, Default)]
pub(crate) struct Rewrites {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// One of them, at work.
pub(crate) struct Rewriting<'a>(&'a Rewrites);

/// The moment at which a read began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment(u64);

impl Rewrites {
    /// Announces one, until it is dropped.
    pub(crate) fn begin(&self) -> Rewriting<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Rewriting(self)
    }

    /// Now, if none is at work.
    pub(crate) fn quiet(&self) -> Option<Moment> {
        let ended = self.ended.load(Ordering::SeqCst);
        (self.begun.load(Ordering::SeqCst) == ended).then_some(Moment(ended))
    }

    /// Whether none has begun since then.
    pub(crate) fn quiet_since(&self, moment: Moment) -> bool {
        self.begun.load(Ordering::SeqCst) == moment.0
    }
}

impl Drop for Rewriting<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}
