//! The future of one operation.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::inner::Inner;
use crate::slots::count;
use crate::work::Work;

/// Where an operation is carried out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// By the loop's own means.
    Loop,
    /// By a thread that may block.
    Pool,
}

/// An operation that was started. Dropping it orphans the operation, never its buffers.
pub(crate) struct Op {
    inner: Rc<Inner>,
    key: Option<usize>,
}

impl Op {
    /// Starts `work` on the loop of this thread.
    pub(crate) fn start(work: Work, place: Place) -> Op {
        let inner = Inner::current();
        let key = inner.start(work, place);
        Op { inner, key: Some(key) }
    }

    /// Asks the loop to end the operation. It ends as it would have, or with ECANCELED: await it all the same.
    pub(crate) fn cancel(&self) {
        if let Some(key) = self.key {
            self.inner.cancel(key);
        }
    }
}

impl Future for Op {
    type Output = (io::Result<usize>, Work);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        #[expect(clippy::expect_used, reason = "polling a finished future is a bug of the caller")]
        let key = self.key.expect("operation polled after its end");
        let Some((work, result)) = self.inner.poll_op(key, cx) else { return Poll::Pending };
        self.key = None;
        Poll::Ready((count(result), work))
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.inner.abandon(key);
        }
    }
}
