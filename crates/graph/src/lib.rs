//! Disks and their names: the user's options, the images' headers, the rules between the two, and the graph
//! of nodes.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as graph;

// The drivers stand in a crate over this one. Tests of this one compile them as a part of it, so that they open real disks.
#[cfg(test)]
#[path = "../../catalog/src/lib.rs"]
pub mod catalog;

mod background;
mod bitmaps_file;
pub mod cache_mode;
mod chain;
mod child;
mod disk;
pub mod drive;
pub mod drivers;
mod error;
mod extents;
pub mod fd_sets;
mod file;
mod filtered;
mod format;
pub mod front;
mod header_name;
mod layers;
mod limits;
mod links;
mod locks_ahead;
mod map_memory;
pub mod names;
mod new_file;
mod node_files;
mod node_storage;
mod nodes;
mod open;
mod open_rules;
pub mod options;
pub mod probe;
mod read_ahead;
mod resize_raw;
mod runtime;
mod secrets;
mod shared_files;
pub mod size;
pub mod trace;
mod upkeep;
mod window;

pub use crate::background::{BackgroundTasks, OnLoop};
pub use crate::bitmaps_file::{bitmaps_of, raw_of};
pub use crate::chain::{ChainWalk, FoundImage, GUESSED};
pub use crate::disk::{Disk, DiskEnd};
pub use crate::error::OpenError;
pub use crate::extents::{DataFiles, ExtentFile, VmdkFiles};
pub use crate::file::LoopClock;
pub use crate::front::Drained;
pub use crate::header_name::{file_name, part_name};
pub use crate::layers::{OpenedLayers, RemovedLayers};
pub use crate::limits::ThrottleReport;
pub use crate::locks_ahead::{LockAhead, LocksAhead};
pub use crate::map_memory::{MAP_MEMORY_MIN, default_map_memory, memory_of_process};
pub use crate::new_file::{MadeFile, make_file};
pub use crate::node_files::NodeFiles;
pub use crate::nodes::{
    AtRest, BeforeExchange, Change, ChildChange, CommitError, DescriptionError, DiskNode, Edge, Ends,
    FileToFill, FilterNode, Graph, Hold, JobFilter, JobHost, JobOwner, KeySlots, LayerAccess, LayerView,
    MadeNames, Node, NodeError, NodeKind, NodeName, Overlay, Put, PutOver, Removed, ReplaceError, Replaced,
    StepError, Under, User, present_image, tracking_unit,
};
pub use crate::open::{BareImage, at_snapshot, open, open_bare, open_luks_header};
pub use crate::open_rules::{CHAIN_MAX_DEFAULT, OpenRules};
pub use crate::resize_raw::resize_raw;
pub use crate::runtime::{OpenedAs, ReopenError, RuntimeOptions};
pub use crate::secrets::{Ask, SECRET_BYTES_MAX, SecretError, SecretOptions, Secrets};
pub use crate::shared_files::SharedFiles;
pub use crate::window::of_raw;
