//! Why a check could not be carried through.

use std::io;

use qcow2_layout::{GeometryError, HeaderError};
use thiserror::Error;

/// Why a check could not be carried through. What is merely wrong with the image is a finding, not an error.
#[derive(Debug, Error)]
pub enum CheckError {
    /// The header is not one; nothing else can be found.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The header contradicts itself.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The file failed under the header or under a repair.
    #[error("cannot {doing} at {offset:#x} of {name}")]
    Io {
        /// Which file.
        name: String,
        /// What was being done.
        doing: &'static str,
        /// Where.
        offset: u64,
        /// Why it failed.
        source: io::Error,
    },
    /// A repair was asked for, but nothing can be written.
    #[error("{name} is opened read-only and cannot be repaired")]
    ReadOnly {
        /// Which file.
        name: String,
    },
    /// There is no memory for what the image holds many of.
    #[error("no memory for {what}")]
    NoMemory {
        /// What it was for.
        what: &'static str,
    },
    /// Counting needs more memory than references in a file of this size can need.
    #[error(
        "counting references needs more than {limit} bytes of memory, which no image with {allocated} bytes of content needs"
    )]
    TooManyReferences {
        /// Bytes allowed.
        limit: u64,
        /// Bytes that the file holds.
        allocated: u64,
    },
}
