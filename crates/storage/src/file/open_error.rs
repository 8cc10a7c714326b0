//! Why a file is not opened.

use std::io;

use rustix::io::Errno;

/// Why a file cannot serve as storage.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// The path as given.
        path: String,
        /// What was tried: "open", "create".
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// O_DIRECT was asked for in vain.
    #[error(
        "cache.direct=on needs O_DIRECT, which the file system of {path} refuses; \
         use cache=writeback, cache=writethrough or cache=unsafe there"
    )]
    NoDirect {
        /// The path as given.
        path: String,
    },
    /// A device that is to be written, and takes no writes.
    #[error("the device {path} is read-only; open it so: read-only=on")]
    ReadOnlyDevice {
        /// The path as given.
        path: String,
    },
    /// A layer that checkpoints are made of.
    #[error(
        "{path} is a sealed layer of checkpoints and stays as it is; for a disk that can be written, fork the checkpoint (cowhand fork); \
         cowhand forget merges and removes layers"
    )]
    SealedLayer {
        /// The path as given.
        path: String,
    },
    /// A directory, a pipe, a terminal.
    #[error("{path} is a {found}; storage must be a regular file or a block device")]
    NotStorage {
        /// The path as given.
        path: String,
        /// What it is.
        found: &'static str,
    },
}

impl OpenError {
    /// The system's error, where that was the reason.
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            OpenError::Io { source, .. } => Some(source),
            OpenError::NoDirect { .. }
            | OpenError::ReadOnlyDevice { .. }
            | OpenError::SealedLayer { .. }
            | OpenError::NotStorage { .. } => None,
        }
    }
}

pub(super) fn failed(name: &str, action: &'static str, errno: Errno) -> OpenError {
    OpenError::Io { path: name.to_owned(), action, source: errno.into() }
}
