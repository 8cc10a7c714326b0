//! Errors of an exchange of layers.

use block::Error;
use thiserror::Error;

use crate::error::OpenError;
use crate::nodes::error::NodeError;

/// Why an exchange of layers was refused or failed. The disk has its old layers.
#[derive(Debug, Error)]
pub enum ReplaceError {
    /// There is no such node, or it has users.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The disk is not that deep.
    #[error("node {node:?} has {layers} layers, and none {at} down")]
    NoLayer {
        /// The disk's node.
        node: String,
        /// Layers above the one that was asked for.
        at: usize,
        /// Layers that there are.
        layers: usize,
    },
    /// Only an image has a backing layer.
    #[error("{layer} is a block of driver {driver}, which has no backing layer")]
    NotAnImage {
        /// The layer.
        layer: String,
        /// Its driver.
        driver: &'static str,
    },
    /// A filter's disk is changed under the filter, as a disk of its own.
    #[error("{layer} is a disk under a filter; name its own node to change what it is backed by")]
    BelowFilter {
        /// The disk under the filter.
        layer: String,
    },
    /// A disk cannot be left without a root.
    #[error("node {node:?} must be backed by a layer")]
    NoRoot {
        /// The disk's node.
        node: String,
    },
    /// The layer would lie below itself.
    #[error("{layer} would lie below itself")]
    Cycle {
        /// The layer.
        layer: String,
    },
    /// Clients rely on the disk's size, and the layer has another.
    #[error("{layer} has {found} bytes, and the disk {needed}")]
    OtherSize {
        /// The layer.
        layer: String,
        /// Its size.
        found: u64,
        /// The disk's.
        needed: u64,
    },
    /// The disk is open for writing, and its new root is read-only.
    #[error("{layer} is open for reading, and the disk is written")]
    ReadOnly {
        /// The layer.
        layer: String,
    },
    /// What is read as a backing layer must not change.
    #[error("{layer} is open for writing; open it with read-only to put it below an image")]
    Writable {
        /// The layer.
        layer: String,
    },
    /// What is put over a layer has another one below it already.
    #[error("{layer} has a backing layer of its own; open it with an empty backing")]
    HasBacking {
        /// The layer.
        layer: String,
    },
    /// A filter has no file that could be opened in another way.
    #[error(
        "{layer} is a filter of driver {driver}, which is not opened for reading or writing; name the layer below it"
    )]
    NoFile {
        /// The layer.
        layer: String,
        /// Its driver.
        driver: &'static str,
    },
    /// A filter over the layer would keep using its old file.
    #[error("a filter of driver {driver} is over {layer}, which keeps its file as long as that is there")]
    UnderFilter {
        /// The layer.
        layer: String,
        /// The filter's driver.
        driver: &'static str,
    },
    /// Only bytes that nothing else follows from are found in another file again.
    #[error("{layer} cannot switch to another file: {reason}")]
    FileStays {
        /// The layer.
        layer: String,
        /// Why.
        reason: &'static str,
    },
    /// What is to be put there does not open.
    #[error(transparent)]
    Open(Box<OpenError>),
    /// The disk has its new layers, but the old ones could not be closed: their files are as after a crash.
    #[error("the disk is not backed by {layer} any more, which could not be closed")]
    Close {
        /// The layer.
        layer: String,
        /// Why.
        source: Error,
    },
    /// What must be done before the exchange failed.
    #[error("nothing is exchanged")]
    Before(#[source] Error),
}
