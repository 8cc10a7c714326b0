//! Which way the loop reaches the kernel.

use crate::ring::Ring;

/// How operations are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// io_uring.
    Ring,
    /// `poll` for sockets, a small pool of blocking threads for files: where io_uring is forbidden,
    /// or not wanted.
    Threads,
}

/// The best backend that this kernel (or container) allows. Costs the set-up of one ring.
pub fn available() -> Backend {
    match Ring::new() {
        Ok(_) => Backend::Ring,
        Err(error) => {
            tracing::debug!(%error, "io_uring is not available, using threads");
            Backend::Threads
        }
    }
}
