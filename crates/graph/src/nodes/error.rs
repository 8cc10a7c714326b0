//! Why the graph stays as it is.

use std::path::PathBuf;

use thiserror::Error;

use super::description_error::DescriptionError;
use super::name::NAME_BYTES_MAX;
use super::replace::ReplaceError;
use super::user::User;
use crate::drive::DriveError;
use crate::error::OpenError;
use crate::fd_sets::FdSetError;
use crate::options::OptionError;
use crate::runtime::ReopenError;

/// What was asked of the graph and not done.
#[derive(Debug, Error)]
pub enum NodeError {
    /// Nothing has that name.
    #[error("there is no device or node {name:?}")]
    Unknown {
        /// As asked for.
        name: String,
    },
    /// Something has that name.
    #[error("there is a node named {name:?} already")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// Nothing may have that name.
    #[error(
        "{name:?} is no node name: a letter, then letters, digits, '-', '.', '_', at most {NAME_BYTES_MAX} in all"
    )]
    BadName {
        /// As given.
        name: String,
    },
    /// The node has a user.
    #[error("node {name:?} is in use by {by}")]
    InUse {
        /// The node.
        name: String,
        /// That user.
        by: User,
    },
    /// A disk was asked for.
    #[error("node {name:?} is a bare file that another node uses; name that one")]
    BareFile {
        /// The node.
        name: String,
    },
    /// A disk was asked for.
    #[error("node {name:?} is a filter, not a disk")]
    Filter {
        /// The node.
        name: String,
    },
    /// A disk was asked for.
    #[error(
        "node {name:?} became a layer of a disk, left it or went with it, and is closed; blockdev-del it, and add it anew to use it"
    )]
    TakenOut {
        /// The node.
        name: String,
    },
    /// A layer is read by its own name, and nothing else.
    #[error(
        "node {name:?} is a layer of node {of:?}: by its own name it is read and copied, not changed; name {of:?}"
    )]
    Layer {
        /// The layer.
        name: String,
        /// The disk's node.
        of: String,
    },
    /// Only files of this machine are watched.
    #[error(
        "node {name:?} is no file of this machine, of which the highest write is known; name the node of the file"
    )]
    NoReach {
        /// As asked for.
        name: String,
    },
    /// Only a filter over a list of disks can have more or fewer of them.
    #[error("node {name:?} is no filter over a list of disks: none can be added or taken away")]
    NoList {
        /// As asked for.
        name: String,
    },
    /// It is not below the filter.
    #[error("node {name:?} has no disk {child:?} below it")]
    NoChild {
        /// The filter.
        name: String,
        /// As asked for.
        child: String,
    },
    /// There is no such throttle group.
    #[error("there is no throttle group {name:?}")]
    NoGroup {
        /// As asked for.
        name: String,
    },
    /// A filter names the throttle group, which a user made as an object.
    #[error("object {name:?} is in use by {by}")]
    GroupInUse {
        /// The group.
        name: String,
        /// The filter.
        by: User,
    },
    /// The options of a node do not say what it is.
    #[error(transparent)]
    Description(#[from] DescriptionError),
    /// The options of a node cannot be read.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// An option has a value that it cannot have, or is unknown.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The name of a file leads to a set of descriptors that cannot be used.
    #[error(transparent)]
    FdSet(#[from] FdSetError),
    /// The name of a file leads nowhere.
    #[error("cannot find {path}")]
    Find {
        /// As given.
        path: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The disk does not open.
    #[error("cannot open {}", .path.display())]
    Open {
        /// The image.
        path: PathBuf,
        /// Why.
        source: Box<OpenError>,
    },
    /// What the disk left unwritten cannot be written. Its node is gone all the same.
    #[error("cannot close {}", .path.display())]
    Close {
        /// The image.
        path: PathBuf,
        /// Why.
        source: block::Error,
    },
    /// The option is one that stays.
    #[error(
        "option {option} of node {name:?} cannot change while the disk is open; remove the node and add it anew"
    )]
    Fixed {
        /// The node.
        name: String,
        /// The option.
        option: String,
    },
    /// The disk is on its old file, and all other options are as they were.
    #[error("node {name:?} stays on its file")]
    NotMoved {
        /// The node.
        name: String,
        /// Why.
        source: Box<ReplaceError>,
    },
    /// It is over what it was over. All other options are in force.
    #[error("node {name:?} stays over its backing file")]
    NewBacking {
        /// The node.
        name: String,
        /// Why.
        source: Box<ReplaceError>,
    },
    /// It is open as it was.
    #[error("node {name:?} cannot be opened for writing")]
    Access {
        /// The node.
        name: String,
        /// Why.
        source: Box<ReplaceError>,
    },
    /// It is as active as it was.
    #[error("node {name:?} cannot be made {}", if *.active { "active" } else { "inactive" })]
    Activity {
        /// The node.
        name: String,
        /// What it was to become.
        active: bool,
        /// Why.
        source: Box<ReplaceError>,
    },
    /// A filter stays over its disk.
    #[error("options driver and file of node {name:?} cannot change: they are throttle and {child:?}")]
    FixedFilter {
        /// The filter.
        name: String,
        /// The disk's node.
        child: String,
    },
    /// The disks below a filter do not go together with it.
    #[error("cannot make the filter {name}")]
    Filtered {
        /// The filter.
        name: String,
        /// Why.
        source: block::Error,
    },
    /// Something that cannot be below a filter.
    #[error("node {name:?} cannot be put below {of:?}: {why}")]
    NotBelow {
        /// What was to be put there.
        name: String,
        /// The filter.
        of: String,
        /// Why not.
        why: String,
    },
    /// A drive line has filters in it.
    #[error(
        "the options of {name:?} cannot change: its drive has filters; blockdev-add the disk and its filters as nodes to change them"
    )]
    FilterReopened {
        /// The node.
        name: String,
    },
    /// Nothing of it changes while it is open.
    #[error("node {name:?} of driver {driver} cannot be reopened: remove it and add it anew")]
    NeverReopened {
        /// The node.
        name: String,
        /// Its driver.
        driver: &'static str,
    },
    /// A part of a node has no options of its own.
    #[error("node {name:?} is a part of node {of:?}: its options are among those")]
    PartReopened {
        /// The part.
        name: String,
        /// The node.
        of: String,
    },
    /// An image below a disk is asked for other options.
    #[error(
        "only the file of node {name:?} can change while it is below {of:?}; its other options must be what they are"
    )]
    FixedBelow {
        /// The node.
        name: String,
        /// The node over it.
        of: String,
    },
    /// The disk does not take the options.
    #[error("cannot reopen {name}")]
    Reopen {
        /// The node.
        name: String,
        /// Why.
        source: ReopenError,
    },
}
