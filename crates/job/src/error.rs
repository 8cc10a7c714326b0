//! Why a copy ended early.

use std::fmt;

use thiserror::Error;

/// Which of the two blocks failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// What is copied.
    Source,
    /// What is written.
    Target,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Target => "target",
        })
    }
}

/// What was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Asking a map.
    Status,
    /// Reading data.
    Read,
    /// Writing data.
    Write,
    /// Making a range read as zeroes.
    Zero,
    /// Making everything durable.
    Flush,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Status => "reading the map",
            Self::Read => "reading",
            Self::Write => "writing",
            Self::Zero => "zeroing",
            Self::Flush => "flushing",
        })
    }
}

/// Why a copy ended early. The target holds a part of what it should.
#[derive(Clone, Debug, Error)]
pub enum Error {
    /// A request failed.
    #[error("{action} {side} {name} failed at offset {offset}")]
    Request {
        /// Whose request.
        side: Side,
        /// What the block is called.
        name: String,
        /// What was asked of it.
        action: Action,
        /// First byte of the request, in that block.
        offset: u64,
        /// Why.
        source: block::Error,
    },
    /// The range does not lie inside the block.
    #[error("{side} {name} has {size} bytes; {end} are needed")]
    TooSmall {
        /// Which block.
        side: Side,
        /// What it is called.
        name: String,
        /// Its size in bytes.
        size: u64,
        /// Where the range ends in it.
        end: u64,
    },
    /// A guest's write to both sides was dropped half-way.
    #[error("a write was given up half-way that may still reach {name}: it cannot be trusted")]
    Dropped {
        /// What the target is called.
        name: String,
    },
    /// The bitmap of the job could not be changed.
    #[error("the bitmap of the job cannot be changed")]
    Bitmap(#[source] block::Error),
    /// The caller gave it up ([`crate::Counters::cancel`]).
    #[error("it was cancelled")]
    Cancelled,
}

impl Error {
    /// Makes an error of a failed request on `block`. Costs nothing before one fails.
    pub(crate) fn request(
        side: Side,
        block: &dyn block::Block,
        action: Action,
        offset: u64,
    ) -> impl FnOnce(block::Error) -> Self {
        move |source| Self::Request { side, name: block.name().to_owned(), action, offset, source }
    }

    /// Whether there was no room left: in the target, or in what keeps something for the source.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::Request { source, .. } if source.is_no_space())
    }
}
