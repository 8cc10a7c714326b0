//! Checkpoints of disks at work: what the steps of a lineage need of a graph of disks.
//!
//! The crate `lineage` knows which files are made in which order; here the images are made, disks that are open are switched to them ([`Batch`]), layers are
//! merged under disks ([`LayerMerge`]), and two disks are compared by their maps ([`Differences`]). With the feature `s3` they are published to object stores
//! (`Publication`), and found there again (`Source`). The server and the library do the same by it.

#![forbid(unsafe_code)]

mod batch;
mod difference;
mod error;
mod layer_merge;
mod live;
mod new_image;
#[cfg(feature = "s3")]
mod published;
mod sealable;
mod sealed;

pub use crate::batch::{Batch, LastLook, Request};
pub use crate::difference::{Differences, Part, Says, differences};
pub use crate::error::Error;
pub use crate::layer_merge::{LayerMerge, first_worth, make as make_merged, worth};
pub use crate::new_image::make as make_overlay;
#[cfg(feature = "s3")]
pub use crate::published::{
    Follow, LivePush, NoParent, Outcome, Publication, PublishError, PushTarget, Sent, Session, Source,
    Target, changed,
};
pub use crate::sealable::{Unsealable, path_of, place_of, sealable};
pub use crate::sealed::{Sealed, options_of};
