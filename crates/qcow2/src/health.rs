//! Whether what memory holds can be trusted, and so be written.

use sync::atomic::AtomicBool;

/// Reasons to write no more. Each is noticed once and stays for as long as the image is open.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Metadata was caught lying.
    pub(crate) corrupt: AtomicBool,
    /// The medium may have another header than memory.
    pub(crate) stopped: AtomicBool,
}
