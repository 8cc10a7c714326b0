//! What ciphering needs of the program around it.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;

/// A piece of work bound to the thread that starts it.
pub type Work = Pin<Box<dyn Future<Output = ()>>>;

/// A calculation that takes long.
pub type Calculation = Box<dyn FnOnce() + Send>;

/// The program around: it has the threads.
pub trait Around: fmt::Debug + Send + Sync {
    /// Runs `work` to its end on the calling thread, soon, not inside this call.
    fn spawn(&self, work: Work);

    /// Does `calculation` and ends with it, on another thread where there is one. If the future is dropped, it may still happen.
    fn calculate(&self, calculation: Calculation) -> Work;
}

/// What `calculation` comes to, done where `around` does it.
pub(crate) async fn calculated<T: Send + 'static>(
    around: &dyn Around,
    calculation: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (done, result) = sync::oneshot::channel();
    let calculation = move || {
        // No task waits any more if the request was dropped.
        let _ = done.send(calculation());
    };
    around.calculate(Box::new(calculation)).await;
    result.await.map_err(|_| io::Error::other("the program is stopping"))
}
