//! Why an image was not made smaller.

use thiserror::Error;

use crate::check::CheckError;

/// Why an image was not made smaller, or not as much as it could be.
#[derive(Debug, Error)]
pub enum CompactError {
    /// Metadata could not be read, or the file failed under a change.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// What refers to what is not known.
    #[error(
        "the image has {corruptions} corruptions and {check_errors} parts that cannot be read; nothing of it is moved before `cowhand check -r all` has repaired it"
    )]
    NotSound {
        /// Contradictions.
        corruptions: u64,
        /// Metadata that could not be read.
        check_errors: u64,
    },
    /// A contradiction was met.
    #[error("the image is marked corrupt; repair it with `cowhand check -r all` first")]
    MarkedCorrupt,
    /// Encrypted data belongs to its place in the file.
    #[error(
        "the image is encrypted: each cluster is encrypted for its place and cannot be moved without the password (encrypt.key-secret=ID)"
    )]
    Encrypted,
    /// The watcher ended it.
    #[error("interrupted; what was moved has moved, and the rest has not")]
    Interrupted,
}
