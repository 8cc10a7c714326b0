//! What the engine needs from the program around it.

use std::future::Future;
use std::pin::Pin;

/// A piece of work bound to the thread that starts it.
pub type Work = Pin<Box<dyn Future<Output = ()>>>;

/// The program around the engine.
///
/// Work that changes metadata must run to its end even if the request that caused it is dropped:
/// half of a write order is not a write order. So it is handed to the host.
pub trait Host: std::fmt::Debug + Send + Sync {
    /// Runs `work` to its end on the calling thread, soon, not inside this call.
    fn spawn(&self, work: Work);
}
