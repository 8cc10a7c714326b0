//! Why something about a lineage is not done.

use std::io;
use std::path::{Path, PathBuf};

use storage::LockError;

use crate::checkpoint_name::CheckpointRef;
use crate::layer_id::LayerId;

/// What, where, found against allowed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system refused.
    #[error("{path}: {action}: {source}", path = .path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another command changes the lineage, or another process uses the image.
    #[error("{path}: {source}", path = .path.display())]
    Busy {
        /// The lock file, or the image.
        path: PathBuf,
        /// Names the holder, as far as the system shows it.
        source: LockError,
    },
    /// The image is one that a lineage cannot have.
    #[error("{path}: {reason}", path = .path.display())]
    Unsupported {
        /// The image.
        path: PathBuf,
        /// What it has, and what to do.
        reason: String,
    },
    /// The image's header contradicts itself.
    #[error("{path}: {reason}", path = .path.display())]
    Corrupt {
        /// The image.
        path: PathBuf,
        /// How.
        reason: String,
    },
    /// The manifest cannot be used.
    #[error("{path}: {reason}", path = .path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A sealed layer is not what it was when it was sealed.
    #[error("{path}: a sealed layer has changed since it was sealed: {reason}", path = .path.display())]
    Changed {
        /// The layer's file.
        path: PathBuf,
        /// What differs.
        reason: String,
    },
    /// A layer that others need has no file.
    #[error("layer {id} is missing: {path} is backed by it", path = .path.display())]
    Missing {
        /// The layer.
        id: LayerId,
        /// What needs it.
        path: PathBuf,
    },
    /// There is no such checkpoint.
    #[error("{disk} has no checkpoint {wanted}", disk = .disk.display())]
    NoCheckpoint {
        /// The disk.
        disk: PathBuf,
        /// What was looked for.
        wanted: CheckpointRef,
    },
    /// The disk has a checkpoint of this name.
    #[error("{disk} has a checkpoint {name} already", disk = .disk.display())]
    NameTaken {
        /// The disk.
        disk: PathBuf,
        /// The name.
        name: String,
    },
    /// The chain would be too long.
    #[error("{disk} is backed by {found} images; a chain has up to {max}, those that the command adds included: have `cowhand forget` merge layers, or convert the disk into one image", disk = .disk.display())]
    TooLong {
        /// The disk.
        disk: PathBuf,
        /// Its backing files now.
        found: usize,
        /// Images of a chain.
        max: usize,
    },
    /// The directory is one whose link is missing: it was copied by what leaves links out.
    #[error("{link}, a link to \".\", is missing: a copy may have left it out; `ln -s . {link}` makes it", link = .link.display())]
    NoLink {
        /// The link.
        link: PathBuf,
    },
    /// The directory is no lineage.
    #[error("{directory} is no lineage: no disk in it has a checkpoint", directory = .directory.display())]
    NoLineage {
        /// The directory.
        directory: PathBuf,
    },
    /// What was given cannot be done.
    #[error("{0}")]
    Invalid(String),
    /// The change has happened; its last steps failed.
    #[error(
        "the change has happened, but is not recorded yet (the next command on the lineage completes it): {source}"
    )]
    Unfinished {
        /// Why not.
        source: Box<Error>,
    },
}

impl Error {
    /// `action` on `path` failed.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
