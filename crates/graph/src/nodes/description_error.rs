//! Why options of blockdev-add describe no node.

use thiserror::Error;

use crate::drivers;

/// Why options do not describe a node.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DescriptionError {
    /// It cannot do without.
    #[error("argument '{argument}' is missing")]
    Missing {
        /// The option.
        argument: &'static str,
    },
    /// Nothing opens it.
    #[error("there is no driver {found:?}; known: {}", drivers::names().collect::<Vec<_>>().join(", "))]
    UnknownDriver {
        /// As given.
        found: String,
    },
    /// Something else than a file stands where a file must.
    #[error("argument '{member}' must be a node of driver file")]
    NotAFile {
        /// The option of the node over it.
        member: String,
    },
    /// The node over a file opens it.
    #[error(
        "argument '{member}.{option}' is true, but not that of the node over it, which opens the file; give it there"
    )]
    OfNodeOver {
        /// The option of the node over it.
        member: String,
        /// What is said of the file.
        option: &'static str,
    },
    /// A file sees no guest's writes.
    #[error("argument '{member}.detect-zeroes' means nothing to a file; give it to the node over it")]
    DetectZeroes {
        /// The option of the node over it.
        member: String,
    },
    /// A list is longer than what is made of it can have.
    #[error("argument '{argument}' has {found} members; allowed: 1 to {max}")]
    TooMany {
        /// The argument.
        argument: &'static str,
        /// How many there are.
        found: usize,
        /// How many there may be.
        max: usize,
    },
    /// Filters have few options.
    #[error("argument '{argument}' means nothing to a {driver} node; give it to the node under it")]
    NotOfThisFilter {
        /// The option.
        argument: String,
        /// The filter's driver.
        driver: &'static str,
    },
    /// A filter put over existing nodes takes node names only.
    #[error("argument '{member}' must be the name of a node")]
    NotANode {
        /// The option.
        member: &'static str,
    },
    /// A chain relies on what is below.
    #[error("node {name:?} is open for writing; add it with read-only to use it as backing")]
    BackingIsWritable {
        /// The node.
        name: String,
    },
    /// The backing layer's content has changed since its overlay was made.
    #[error("node {name:?} is over a disk that is written, and cannot be the backing of another one")]
    BackingIsOverWritable {
        /// The node.
        name: String,
    },
    /// Options are JSON, which has no other texts.
    #[error("the options of node {name:?} are not UTF-8; give them instead of its name")]
    NotUtf8 {
        /// The node.
        name: String,
    },
}
