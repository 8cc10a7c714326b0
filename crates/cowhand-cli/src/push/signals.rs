//! An upload on a terminal: the line that shows how far it is, and signals that end it.

use std::cell::RefCell;
use std::ops::ControlFlow;

use checkpoints::{Follow, PublishError};
use job::RateLimit;
use tool::failure::{Failure, warn};

use crate::copying::watch::Watch;
use crate::progress::Progress;

/// Signals of this process end the upload.
pub struct Signals<'a> {
    watch: &'a Watch,
    rate: Option<RateLimit>,
    progress: RefCell<Option<Progress>>,
}

impl<'a> Signals<'a> {
    /// Reads as fast as `rate` says.
    pub fn new(watch: &'a Watch, rate: Option<RateLimit>) -> Self {
        Self { watch, rate, progress: RefCell::default() }
    }

    /// What came of an upload that these followed.
    ///
    /// # Errors
    /// Why it failed, or that a signal ended it.
    pub fn settled<T>(&self, uploaded: Result<T, PublishError>) -> Result<T, Failure> {
        self.end_line();
        match uploaded {
            Err(PublishError::Cancelled) => self.watch.check().and(Err(PublishError::Cancelled.into())),
            uploaded => Ok(uploaded?),
        }
    }

    fn end_line(&self) {
        if let Some(mut progress) = self.progress.take() {
            progress.end();
        }
    }
}

impl Follow for Signals<'_> {
    async fn take(&self, bytes: u64) -> ControlFlow<()> {
        if let Some(rate) = &self.rate {
            rate.take(bytes).await;
        }
        ControlFlow::Continue(())
    }

    fn look(&self, done_bytes: u64, total_bytes: u64) -> ControlFlow<()> {
        let mut progress = self.progress.borrow_mut();
        let progress = progress.get_or_insert_with(|| self.watch.progress(total_bytes));
        self.watch.look(progress, done_bytes)
    }

    async fn forced(&self) {
        // It completes when what it runs is dropped.
        let _ = self.watch.within_grace(std::future::pending::<()>()).await;
    }

    fn warn(&self, what: &str) {
        self.end_line();
        warn(what);
    }
}
