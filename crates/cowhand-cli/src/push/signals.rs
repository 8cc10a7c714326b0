//! An upload on a terminal: the line that shows how far it is, signals that end it, and what a failure means to the user.

use std::cell::RefCell;
use std::ops::ControlFlow;

use checkpoints::{Follow, PublishError};
use job::RateLimit;
use storage_chunked::Error;
use storage_s3::StoreError;

use crate::copying::watch::Watch;
use crate::failure::{Failure, warn};
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

impl From<PublishError> for Failure {
    fn from(error: PublishError) -> Self {
        let hint = hint(&error);
        let failure = match error {
            PublishError::Lineage(error) => error.into(),
            error => Self::because(error.to_string(), &error),
        };
        match hint {
            Some(hint) => failure.with_hint(hint),
            None => failure,
        }
    }
}

/// What the user can do about it.
fn hint(error: &PublishError) -> Option<&'static str> {
    let (of_store, of_search) = match error {
        PublishError::Store { source, .. } => (Some(&**source), None),
        PublishError::Search { source, .. } => (None, Some(&**source)),
        _ => (None, None),
    };
    match (error, of_store, of_search) {
        (_, Some(Error::Store(StoreError::Unconditional { .. })), _) => {
            Some("--force writes without that; no other process may write to this name meanwhile")
        }
        (_, Some(Error::Removing { .. }), _) => Some(
            "try again when that has ended; if it was killed, its object counts for a day, or until it is removed",
        ),
        (_, Some(Error::Store(StoreError::Exists { .. } | StoreError::Changed { .. })), _) => {
            Some("another process uploaded to this name; do it again if that is to be replaced")
        }
        (_, _, Some(Error::Encrypted { .. })) => Some(
            "this lineage is encrypted in the folder; --parent none publishes the checkpoint without a key",
        ),
        (PublishError::InconsistentBitmap { .. }, ..) => {
            Some("without a bitmap everything is read and compared")
        }
        (PublishError::NotPublished { .. }, ..) => {
            Some("--full copies it as it is now; cowhand publish uploads a checkpoint that stays")
        }
        _ => None,
    }
}
