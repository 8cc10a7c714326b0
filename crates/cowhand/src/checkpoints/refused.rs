//! What is refused of a disk's checkpoints, as the library's errors.

use std::path::Path;

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

fn kind_of(error: &Refused) -> ErrorKind {
    match error {
        Refused::Lineage(error) => kind_of_lineage(error),
        Refused::Unsealable { why: Unsealable::ReadOnly, .. } => ErrorKind::ReadOnly,
        Refused::Unsealable { why: Unsealable::Inactive, .. } => ErrorKind::InUse,
        Refused::Unsealable { .. } => ErrorKind::Unsupported,
        Refused::Node(NodeError::InUse { .. }) | Refused::Moved => ErrorKind::InUse,
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
        LineageError::NoCheckpoint { .. } | LineageError::NoLineage { .. } => ErrorKind::NotFound,
        LineageError::NameTaken { .. } => ErrorKind::Exists,
        LineageError::TooLong { .. } | LineageError::Invalid(_) => ErrorKind::Invalid,
        LineageError::Unfinished { source } => kind_of_lineage(source),
    }
}
