//! Whether what memory holds can be trusted, and so be written.

use sync::atomic::{AtomicBool, Ordering};

/// Reasons to write no more. Each is noticed once and stays for as long as the image is open.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Metadata was caught lying.
    corrupt: AtomicBool,
    /// The medium may have another header than memory.
    stopped: AtomicBool,
}

impl Health {
    /// Whether metadata was caught lying.
    pub(crate) fn is_corrupt(&self) -> bool {
        self.corrupt.load(Ordering::Relaxed)
    }

    pub(crate) fn set_corrupt(&self) {
        self.corrupt.store(true, Ordering::Relaxed);
    }

    /// Whether the medium may have another header than memory.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(crate) fn set_stopped(&self) {
        self.stopped.store(true, Ordering::Release);
    }
}
