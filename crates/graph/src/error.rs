//! Why a disk cannot be opened.

use std::path::PathBuf;

use qcow2::cache_sizes::CacheSizesError;
use thiserror::Error;

use crate::format::FormatError;
use crate::names::Refused;
use crate::options::OptionError;
use crate::secrets::SecretError;

/// Failure to open a disk, with the file it is about.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The file cannot be found or its properties cannot be read.
    #[error("cannot open {}: {source}", .path.display())]
    Find {
        /// As the user gave it.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file cannot serve as storage.
    #[error(transparent)]
    Storage(#[from] storage::OpenError),
    /// The file is locked by another user.
    #[error("{}: {source}", .path.display())]
    Lock {
        /// The file.
        path: PathBuf,
        /// The lock that is in the way.
        source: storage::LockError,
    },
    /// The format is not known or not what was asked for.
    #[error("{}: {source}", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Why.
        source: FormatError,
    },
    /// What works on an image itself was given filters over it.
    #[error("{}: the drive has filters, and this works on the image itself; name that", .path.display())]
    Filters {
        /// The image.
        path: PathBuf,
    },
    /// An option does not go with the image.
    #[error("{}: {source}", .path.display())]
    Options {
        /// The file.
        path: PathBuf,
        /// Why.
        source: OptionError,
    },
    /// Its password is not there.
    #[error("{}: {source}", .path.display())]
    Secret {
        /// The file.
        path: PathBuf,
        /// Why.
        source: SecretError,
    },
    /// Cache sizes contradict each other or the image.
    #[error("{}: {source}", .path.display())]
    Caches {
        /// The file.
        path: PathBuf,
        /// Why.
        source: CacheSizesError,
    },
    /// A name inside the image is not followed.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A backing file is one of its own overlays.
    #[error("the backing chain is a circle: {}, {down} images down, is image {at} of the chain again", .path.display())]
    Cycle {
        /// The file that was met again.
        path: PathBuf,
        /// How many images are above it.
        down: usize,
        /// Which image it was before; 0 is the active one.
        at: usize,
    },
    /// The overlay says that its backing file has a format that is not known: its content does not decide then.
    #[error("{}: the backing file's format is given as {found:?}; allowed: {}", .path.display(), allowed)]
    BackingFormat {
        /// The overlay.
        path: PathBuf,
        /// What it says.
        found: String,
        /// Names of the formats that there are.
        allowed: String,
    },
    /// The image names itself as the file of its data.
    #[error("{}: the image names itself as its data file", .path.display())]
    DataIsImage {
        /// The image.
        path: PathBuf,
    },
    /// The chain does not end.
    #[error("the backing chain is longer than {max} images, which is the most that is opened")]
    ChainTooLong {
        /// The limit.
        max: usize,
    },
    /// The image does not open.
    #[error(transparent)]
    Image(#[from] qcow2::Error),
    /// The image was not closed, and its repair failed.
    #[error("{}: the image was not closed and cannot be repaired: {reason}", .path.display())]
    Repair {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}
