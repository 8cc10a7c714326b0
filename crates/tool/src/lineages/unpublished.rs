//! Why nothing was uploaded, and what the user can do about it.

use checkpoints::PublishError;
use remote::chunked::Error;
use remote::s3::StoreError;

use crate::failure::Failure;

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
