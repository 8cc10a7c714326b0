//! Which way the loop reaches the kernel.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// How operations are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// io_uring; threads where a loop cannot have it.
    Ring,
    /// `poll` for sockets, a small pool of blocking threads for files: where io_uring is forbidden,
    /// or not wanted.
    Threads,
}

/// Says why a loop has no ring: once a process as a warning, since the cause is mostly the same for all.
pub(crate) fn warn_of_fallback(error: &io::Error) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if WARNED.swap(true, Ordering::Relaxed) {
        tracing::debug!(%error, "io_uring is not available to one more loop, it uses threads");
    } else {
        tracing::warn!(%error, "io_uring is not available, using threads");
    }
}
