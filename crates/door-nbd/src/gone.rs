//! Whether the client of a connection is still there to be answered.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use export::{Latch, Pace};

/// Shared by everything that works for one connection. Once the client is gone it stays gone.
#[derive(Debug, Default)]
pub(crate) struct Gone(Latch);

impl Gone {
    /// The client is gone: no answer is awaited any more.
    pub(crate) fn declare(&self) {
        self.0.set();
    }

    pub(crate) fn is_declared(&self) -> bool {
        self.0.is_set()
    }

    /// Ends when the client is gone.
    pub(crate) async fn wait(&self) {
        self.0.wait().await;
    }

    /// Runs `work` until the client is gone: then it is not polled again and goes. Costs a look at a flag a poll; with
    /// `wake` the going itself ends it, not its next step. What changes a disk, with `pace`, goes only until it is admitted there: then
    /// it may land behind what another client writes. Says whether it came to its end.
    pub(crate) async fn unless(
        self: Rc<Self>,
        wake: bool,
        pace: Option<&Pace>,
        work: impl Future<Output = ()>,
    ) -> bool {
        let mut work = pin!(work);
        let mut event = pin!(wake.then(|| self.0.listen()));
        let is_admitted = || pace.is_some_and(Pace::is_admitted);
        poll_fn(move |cx| {
            if self.is_declared() && !is_admitted() {
                return Poll::Ready(false);
            }
            if work.as_mut().poll(cx).is_ready() {
                return Poll::Ready(true);
            }
            if is_admitted() {
                return Poll::Pending;
            }
            match event.as_mut().as_pin_mut() {
                Some(event) => event.poll(cx).map(|()| false),
                None => Poll::Pending,
            }
        })
        .await
    }
}
