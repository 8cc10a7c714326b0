//! What the engine needs from the program around it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use map_cache::Budget;

use crate::tables_account::TablesAccount;

/// A piece of work bound to the thread that starts it.
pub type Work = Pin<Box<dyn Future<Output = ()>>>;

/// A calculation that takes long: as long as unpacking some ten thousand bytes.
pub type Calculation = Box<dyn FnOnce() + Send>;

/// The program around the engine.
///
/// Work that changes metadata must run to its end even if the request that caused it is dropped:
/// half of a write order is not a write order. So it is handed to the host.
pub trait Host: std::fmt::Debug + Send + Sync {
    /// Runs `work` to its end on the calling thread, soon, not inside this call.
    fn spawn(&self, work: Work);

    /// The memory that the caches of all images share; asked for once, when an image is opened.
    fn map_budget(&self) -> Arc<Budget> {
        Budget::unlimited()
    }

    /// The account of the tables that the images of one disk hold in memory; asked for once, when an image is opened.
    fn tables_account(&self) -> Arc<TablesAccount> {
        TablesAccount::unlimited()
    }

    /// Does `calculation` and ends with it, on another thread where the host has one: other
    /// tasks of the caller's thread are not held up. If the future is dropped, the calculation may still happen.
    fn calculate(&self, calculation: Calculation) -> Work {
        Box::pin(async move { calculation() })
    }
}

/// Work that the request itself drives while its caller waits. If the request is dropped, the
/// host drives it to its end: what was given to the storage may land at any time, so a request
/// must be there to see that it has.
pub(crate) struct HandedOver<'a, T: 'static> {
    host: &'a dyn Host,
    work: Option<Pin<Box<dyn Future<Output = T>>>>,
}

impl<'a, T> HandedOver<'a, T> {
    pub(crate) fn new(host: &'a dyn Host, work: impl Future<Output = T> + 'static) -> Self {
        Self { host, work: Some(Box::pin(work)) }
    }
}

impl<T> Future for HandedOver<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(work) = &mut self.work else { return Poll::Pending };
        let result = work.as_mut().poll(context);
        if result.is_ready() {
            self.work = None;
        }
        result
    }
}

impl<T> Drop for HandedOver<'_, T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.host.spawn(Box::pin(async move {
                drop(work.await);
            }));
        }
    }
}
