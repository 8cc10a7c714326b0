//! What is refused of a disk's checkpoints, as the library's errors.

use std::path::Path;

#[cfg(feature = "s3")]
use ::checkpoints::PublishError;
use ::checkpoints::{Error as Refused, Unsealable};
use graph::NodeError;
use lineage::Error as LineageError;
use storage::LockError;

use crate::error::{Error, ErrorKind, kind_of_steps, kind_of_system, with_sources};

impl Error {
    /// Why something about the checkpoints of the disk at `path` is not done.
    pub(crate) fn of_checkpoints(path: &Path, error: &Refused) -> Self {
        let kind = kind_of(error);
        match error {
            Refused::Unsealable { why, .. } => Self::said(kind, format!("{} {why}", path.display())),
            // Its own text has the causes.
            Refused::Lineage(error) => Self::said(kind, error.to_string()),
            error => Self::said(kind, with_sources(error)),
        }
    }
}

#[cfg(feature = "s3")]
impl Error {
    /// Why a checkpoint of the disk at `path` is not published, or the disk there not made of one.
    pub(crate) fn of_publishing(path: &Path, error: &PublishError) -> Self {
        let kind = match error {
            PublishError::Lineage(error) => return Self::of_checkpoints(path, error),
            PublishError::Store { source, .. }
            | PublishError::Lost { source, .. }
            | PublishError::Search { source, .. } => kind_of_store(source),
            PublishError::Settings { source, .. } => kind_of_system(source),
            PublishError::NoCheckpoint { .. } | PublishError::NoBitmap { .. } => ErrorKind::NotFound,
            PublishError::Read { .. } | PublishError::NotBegun(_) => kind_of_steps(error),
            PublishError::NoStore { .. }
            | PublishError::OfCheckpoint { .. }
            | PublishError::InconsistentBitmap { .. }
            | PublishError::Manifest { .. }
            | PublishError::Parent(_)
            | PublishError::NotPublished { .. } => ErrorKind::Invalid,
            PublishError::Cancelled => ErrorKind::Cancelled,
        };
        Self::said(kind, with_sources(error))
    }
}

/// The kind of what a store says, or an image there.
#[cfg(feature = "s3")]
fn kind_of_store(error: &remote::chunked::Error) -> ErrorKind {
    use remote::chunked::Error as Image;
    match error {
        Image::NoImage { .. } | Image::NoCheckpoint { .. } => ErrorKind::NotFound,
        Image::Removing { .. } | Image::Pushing { .. } => ErrorKind::InUse,
        Image::Incomparable { .. }
        | Image::Encrypted { .. }
        | Image::OtherKey { .. }
        | Image::NotEncrypted { .. }
        | Image::Key(_)
        | Image::NothingToPack { .. } => ErrorKind::Invalid,
        Image::ReadOnly { .. } => ErrorKind::ReadOnly,
        Image::Manifest { .. }
        | Image::StartList { .. }
        | Image::Pack { .. }
        | Image::Missing { .. }
        | Image::Length { .. }
        | Image::Frame { .. }
        | Image::Content { .. }
        | Image::Encryption { .. }
        | Image::Delta { .. }
        | Image::Unproven { .. } => ErrorKind::Corrupt,
        error if error.is_forbidden() => ErrorKind::Denied,
        Image::Store(_) | Image::Server(_) | Image::RemovalTooLong | Image::Output(_) => ErrorKind::Io,
    }
}

fn kind_of(error: &Refused) -> ErrorKind {
    match error {
        Refused::Lineage(error) => kind_of_lineage(error),
        Refused::Unsealable { why: Unsealable::ReadOnly, .. } => ErrorKind::ReadOnly,
        Refused::Unsealable { why: Unsealable::Inactive, .. } => ErrorKind::InUse,
        Refused::Unsealable { why: Unsealable::Elsewhere(_), .. } => ErrorKind::NotFound,
        Refused::Unsealable { .. } => ErrorKind::Unsupported,
        Refused::Node(NodeError::InUse { .. }) | Refused::Moved | Refused::Refused { .. } => ErrorKind::InUse,
        Refused::NotUndone { source, .. } => kind_of(source),
        Refused::Cancelled => ErrorKind::Cancelled,
        Refused::Node(_) | Refused::Image { .. } | Refused::Switch { .. } => kind_of_steps(error),
    }
}

fn kind_of_lineage(error: &LineageError) -> ErrorKind {
    match error {
        LineageError::Io { source, .. } => kind_of_system(source),
        LineageError::Busy { source: LockError::Io(source), .. } => kind_of_system(source),
        LineageError::Busy { .. } => ErrorKind::InUse,
        LineageError::Unsupported { .. } => ErrorKind::Unsupported,
        LineageError::Corrupt { .. }
        | LineageError::Manifest { .. }
        | LineageError::Changed { .. }
        | LineageError::Missing { .. } => ErrorKind::Corrupt,
        LineageError::NoCheckpoint { .. } | LineageError::NoLineage { .. } | LineageError::NoLink { .. } => {
            ErrorKind::NotFound
        }
        LineageError::NameTaken { .. } => ErrorKind::Exists,
        LineageError::TooLong { .. } | LineageError::Invalid(_) => ErrorKind::Invalid,
        LineageError::Unfinished { source } => kind_of_lineage(source),
    }
}
