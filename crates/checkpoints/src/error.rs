//! Why something about the checkpoints of a disk is not done.

use std::error::Error as StdError;
use std::path::{Path, PathBuf};

use graph::options::DiskOptions;
use graph::{Disk, NodeError, OpenRules, ReplaceError};

use crate::sealable::Unsealable;

/// What, where, and why not.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The lineage refuses it, or its files cannot be changed.
    #[error(transparent)]
    Lineage(#[from] lineage::Error),
    /// The graph of disks refuses it.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The disk has no active layer that could be sealed.
    #[error("node {disk:?} {why}")]
    Unsealable {
        /// Its node.
        disk: String,
        /// Why not.
        why: Unsealable,
    },
    /// An image cannot be made, opened, read or written.
    #[error("cannot {doing} {path}", path = .path.display())]
    Image {
        /// The verb.
        doing: &'static str,
        /// The image.
        path: PathBuf,
        /// Why not.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The new image cannot be put in its place.
    #[error("disk {disk:?} stays as it is")]
    Switch {
        /// The disk's node.
        disk: String,
        /// Why not.
        source: ReplaceError,
    },
    /// The caller's last look at a disk refused it.
    #[error("{why}")]
    Refused {
        /// Why.
        why: String,
    },
    /// A change of several disks failed, and not all of them are as they were.
    #[error("{source}; not undone: {stays}")]
    NotUndone {
        /// Why it failed.
        source: Box<Error>,
        /// Which disk stays switched.
        stays: String,
    },
    /// The layers of a disk have changed while they were looked at.
    #[error("the layers of the disk have changed meanwhile: repeat the command")]
    Moved,
    /// The job was cancelled.
    #[error("cancelled")]
    Cancelled,
}

impl Error {
    /// `doing` the image at `path` failed.
    pub(crate) fn image<E: Into<Box<dyn StdError + Send + Sync>>>(
        doing: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> Self + use<E> {
        let path = path.to_owned();
        move |source| Self::Image { doing, path, source: source.into() }
    }

    /// With its causes, for the log.
    pub(crate) fn in_one_line(&self) -> String {
        let causes = std::iter::successors(Some(self as &dyn StdError), |&error| error.source());
        causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    }
}

/// Does `work` with the disk of `options`, which is open for it alone. The first failure counts.
pub(crate) async fn with_disk<T>(
    options: &DiskOptions,
    rules: &OpenRules,
    doing: &'static str,
    work: impl AsyncFnOnce(&Disk) -> Result<T, Error>,
) -> Result<T, Error> {
    let path = &options.filename;
    let disk = graph::open(options, rules).await.map_err(Error::image(doing, path))?;
    let done = work(&disk).await;
    let closed = disk.close().await.map_err(Error::image("close", path));
    disk.idle().await;
    done.and_then(|done| closed.map(|()| done))
}
