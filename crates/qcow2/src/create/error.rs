//! Why an image was not made.

use std::io;

use qcow2_layout::{HeaderError, RefcountError};
use storage::Storage;
use thiserror::Error;

/// Why an image was not made.
#[derive(Debug, Error)]
pub enum CreateError {
    /// Two options that do not go together.
    #[error("{option} cannot be combined with {other}: {reason}")]
    Conflict {
        /// One option with its value.
        option: String,
        /// The other one.
        other: &'static str,
        /// Why not.
        reason: &'static str,
    },
    /// An option that is nothing without another one.
    #[error("{option} needs {needs}")]
    Needs {
        /// The option given.
        option: &'static str,
        /// What must be given with it.
        needs: &'static str,
    },
    /// A value out of range.
    #[error("{option} is {found}; allowed: {allowed}")]
    OutOfRange {
        /// Which option.
        option: &'static str,
        /// Its value.
        found: u64,
        /// Its limits.
        allowed: &'static str,
    },
    /// The disk is too large for the cluster size.
    #[error(
        "a disk of {size} bytes is too large for clusters of {cluster_size} bytes: {what} would need {needed} bytes, at most {allowed} are allowed"
    )]
    TooLarge {
        /// Size asked for.
        size: u64,
        /// Cluster size asked for.
        cluster_size: u64,
        /// What would outgrow its limit.
        what: &'static str,
        /// Bytes of it.
        needed: u64,
        /// Its limit.
        allowed: u64,
    },
    /// A name without a handle, or a handle without a name.
    #[error("{}", if *.named { "data_file is named but was not opened" } else { "a data file was opened but data_file is not named" })]
    DataFileHandle {
        /// Whether the options name a data file.
        named: bool,
    },
    /// A device cannot grow.
    #[error("{name} has {found} bytes and cannot grow; {needed} are needed")]
    MediumTooSmall {
        /// Which device.
        name: String,
        /// Its length.
        found: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// Names do not fit the first cluster, or hold what a name cannot.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// A refcount outside its block: a bug.
    #[error(transparent)]
    Refcount(#[from] RefcountError),
    /// The key slot was not made.
    #[error(transparent)]
    Encryption(#[from] block::Error),
    /// The file failed.
    #[error("cannot {doing} in {name}")]
    Io {
        /// Which file.
        name: String,
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl CreateError {
    /// Turns what a medium said into an error that names it.
    pub(super) fn io(medium: &dyn Storage, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { name: medium.name().to_owned(), doing, source }
    }
}
