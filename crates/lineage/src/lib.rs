//! Checkpoints: a directory of sealed layers, the disks over them, and a manifest.
//!
//! ```text
//! DIR/disk.qcow2              a disk: its path always names its active layer
//! DIR/layers/ID.qcow2         a sealed layer: plain qcow2 that is not written any more
//! DIR/layers/layers -> .      a name that begins with layers/ leads to the same file from DIR and from DIR/layers
//! DIR/layers/lineage.json     parent, time, name and labels of each layer; rebuilt from the images when it is lost
//! DIR/layers/lock             locked by the command that changes the lineage
//! DIR/layers/merge.lock       locked by the command that makes one layer of several, which takes long: others go on meanwhile
//! ```
//!
//! A checkpoint links the active layer as `layers/ID.qcow2` and then renames a new overlay over the disk's path. The active layer names its parent
//! `layers/PARENT.qcow2`; through the link `layers/layers` that name is right before and after. Then one sector of the sealed layer's header is written: its
//! backing name becomes `PARENT.qcow2`, since a chain of such links would be as deep as the chain. All names are relative: the directory can be copied and moved.
//!
//! Every change is a list of [`Step`]s, which a crash may end after each one (docs/internals/write-order.md, "Lineages"). [`Change`] runs them; how an
//! overlay is made, and how a disk that is being served is switched to it, is the caller's ([`Host`]).

#![forbid(unsafe_code)]

mod action;
mod change;
mod checkpoint_name;
mod deliberate;
mod entry;
mod error;
mod files;
mod forget;
mod image;
mod keep;
mod kept;
mod labels;
mod layer_id;
mod lock;
mod manifest;
mod merging;
mod place;
mod plan;
mod recover;
#[cfg(test)]
mod simulated;
mod steps;
mod survey;

pub use crate::action::{Action, AsSealed, check_sealable, fork_paths};
pub use crate::change::{Change, Host, Outcome, Prepared};
pub use crate::checkpoint_name::{CheckpointName, CheckpointRef, NameError};
pub use crate::entry::{Entry, Seal};
pub use crate::error::Error;
pub use crate::files::FileFacts;
pub use crate::forget::{Forgetting, Forgotten, Merge, forget};
pub use crate::image::{Backing, ImageFacts, Shape};
pub use crate::keep::{Keep, Policy};
pub use crate::labels::Labels;
pub use crate::layer_id::LayerId;
pub use crate::lock::{Lock, PATIENCE};
pub use crate::manifest::{MANIFEST_VERSION, Manifest};
pub use crate::merging::Merging;
pub use crate::place::{DiskPlace, LAYERS, Place};
pub use crate::plan::{CHAIN_MAX, FORKS_MAX, NewCheckpoint, Plan};
pub use crate::recover::{Recovered, recover};
pub use crate::steps::{MergedLayer, NewOverlay, Step, Switched};
pub use crate::survey::{Disk, Layer, Survey, Unread};
