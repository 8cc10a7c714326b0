//! Why an image does not get to a store, or no disk begins as one that is there.

use std::io;

use remote::chunked::{Error as ImageError, ManifestError};

use crate::error::Error;

/// What, where, and why not.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The name means nothing that can be written.
    #[error("cannot {doing} {image}; allowed: s3://BUCKET/FOLDER/NAME, or the same with gs or az")]
    NoStore {
        /// The verb.
        doing: &'static str,
        /// The name.
        image: String,
    },
    /// The name is that of one checkpoint, for ever.
    #[error(
        "cannot {doing} {image}: NAME@ID stays the checkpoint ID, which cowhand publish CHECKPOINT NAME makes"
    )]
    OfCheckpoint {
        /// The verb.
        doing: &'static str,
        /// The name.
        image: String,
    },
    /// What is known of the store, its credentials, or the key of the image.
    #[error("cannot {doing} {image}")]
    Settings {
        /// The verb.
        doing: &'static str,
        /// The name.
        image: String,
        /// What is wrong with it.
        source: io::Error,
    },
    /// The store, or an image there.
    #[error("cannot {doing} {image}")]
    Store {
        /// The verb.
        doing: &'static str,
        /// The name.
        image: String,
        /// Why not.
        source: Box<ImageError>,
    },
    /// The store has lost an object of the image of which chunks are taken, or it is damaged.
    #[error(
        "cannot {doing} {image}, of whose parent an object is lost; cowhand publish --parent none reads all of the disk, and makes what is missing"
    )]
    Lost {
        /// The verb.
        doing: &'static str,
        /// The name.
        image: String,
        /// What is missing.
        source: Box<ImageError>,
    },
    /// What is there of the lineage, of which unchanged chunks could be taken, cannot be looked at.
    #[error("cannot {doing} {image}")]
    Search {
        /// The verb.
        doing: &'static str,
        /// The name.
        image: String,
        /// Why not.
        source: Box<ImageError>,
    },
    /// No image can be of this disk.
    #[error("cannot {doing} {image}")]
    Manifest {
        /// The verb.
        doing: &'static str,
        /// The name.
        image: String,
        /// Why not.
        source: ManifestError,
    },
    /// The disk cannot be read.
    #[error("cannot read {disk}")]
    Read {
        /// Its name.
        disk: String,
        /// Why not.
        source: block::Error,
    },
    /// The disk has no such bitmap.
    #[error("the disk has no bitmap {bitmap:?}; it has: {known}")]
    NoBitmap {
        /// Its name.
        bitmap: String,
        /// Names of the bitmaps of the disk.
        known: String,
    },
    /// A bitmap missed changes.
    #[error("bitmap {bitmap:?} is inconsistent: it does not say what was changed")]
    InconsistentBitmap {
        /// Its name.
        bitmap: String,
    },
    /// No filter could be put over the disk.
    #[error("the push is not begun")]
    NotBegun(#[from] graph::ReplaceError),
    /// No chunks are taken of the image that was named for that.
    #[error("parent: {0}")]
    Parent(#[from] NoParent),
    /// The image is not one that stays what it is.
    #[error("{image} was pushed, not published: {}", match at {
        Some(_) => "it has no checkpoints",
        None => "it may be replaced by the next push, and the disk would change",
    })]
    NotPublished {
        /// The name.
        image: String,
        /// The checkpoint that was asked for.
        at: Option<String>,
    },
    /// None of the checkpoints that were published to the name is called so.
    #[error("{image} has no checkpoint {at}; it has: {known}")]
    NoCheckpoint {
        /// The name.
        image: String,
        /// The name or id that was asked for.
        at: String,
        /// Names of those that are there.
        known: String,
    },
    /// The lineage, or an image of it.
    #[error(transparent)]
    Lineage(#[from] Error),
    /// It was ended.
    #[error("cancelled")]
    Cancelled,
}

/// Why an image is not the one of which chunks are taken.
#[derive(Debug, thiserror::Error)]
pub enum NoParent {
    /// Its chunks are others.
    #[error("chunks of {0} have another size or key, or are compressed and those of the new image are not")]
    Unlike(String),
    /// It is of another disk.
    #[error("the lineage has no checkpoint of {0}")]
    OfAnotherLineage(String),
    /// It is elsewhere.
    #[error("{name:?} is none; allowed: none, or a name in the folder of {image}")]
    OfAnotherFolder {
        /// What was named.
        name: String,
        /// What is published.
        image: String,
    },
    /// It is no checkpoint.
    #[error("{0} is no published checkpoint: it was pushed")]
    Pushed(String),
}

impl From<lineage::Error> for PublishError {
    fn from(error: lineage::Error) -> Self {
        Self::Lineage(error.into())
    }
}
