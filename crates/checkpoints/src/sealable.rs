//! Which disks of a graph can have checkpoints.

use std::path::PathBuf;
use std::sync::Arc;

use graph::options::{Backing, LayerOptions};
use graph::{DiskNode, Graph, NodeError, bitmaps_of};
use lineage::DiskPlace;

use crate::error::Error;

/// Why a disk has no active layer that could be sealed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsealable {
    /// Its image is at a store, or is no file that has a name.
    #[error("has an image that is no file with a path of its own")]
    NoPath,
    /// Its path leads elsewhere by now.
    #[error("was opened as {path}, which leads to another file now, or to none: a directory that has moved below its server leaves its disks without paths", path = .0.display())]
    Elsewhere(PathBuf),
    /// Its files are another process's for a while.
    #[error("is inactive: another process may write its files; activate it first (blockdev-set-active)")]
    Inactive,
    /// It is not written.
    #[error("is read-only: it has no active layer to be sealed")]
    ReadOnly,
    /// They would be wrong after a checkpoint.
    #[error(
        "has options that say what it is backed by: with them it would be opened without its layers the next time; leave \"backing\" out, the header says it"
    )]
    BackingInOptions,
    /// They do not go over to a new layer.
    #[error(
        "has bitmaps, which would not see what is written after the checkpoint; remove them first (block-dirty-bitmap-remove)"
    )]
    Bitmaps,
}

/// Where the image of a disk is.
///
/// # Errors
/// When it is no file of this machine with a path of its own.
pub fn place_of(graph: &Graph, disk: &DiskNode) -> Result<DiskPlace, Error> {
    Ok(DiskPlace::of(&path_of(graph, disk)?)?)
}

/// The path of the image of a disk, links resolved.
///
/// # Errors
/// As [`place_of`].
pub fn path_of(graph: &Graph, disk: &DiskNode) -> Result<PathBuf, Error> {
    let name = disk.name();
    match graph.path_of_image(&name)? {
        Some(path) => Ok(path),
        None => {
            let why = graph.opened_path(&name)?.map_or(Unsealable::NoPath, Unsealable::Elsewhere);
            Err(Error::Unsealable { disk: name, why })
        }
    }
}

/// Where the image of a disk is, if its active layer can be sealed.
///
/// # Errors
/// Says what stands against it.
pub fn sealable(graph: &Graph, disk: &Arc<DiskNode>) -> Result<DiskPlace, Error> {
    let place = place_of(graph, disk)?;
    free_of_jobs(graph, disk)?;
    match why_not(disk) {
        Some(why) => Err(Error::Unsealable { disk: disk.name(), why }),
        None => Ok(place),
    }
}

fn why_not(disk: &DiskNode) -> Option<Unsealable> {
    let names_backing = disk.options().is_some_and(|options| names_backing(&options.layer));
    let has_bitmaps = || bitmaps_of(&*disk.disk.top_image()).is_some_and(|image| !image.bitmaps().is_empty());
    match () {
        () if !disk.disk.is_active() => Some(Unsealable::Inactive),
        () if disk.disk.read_only() => Some(Unsealable::ReadOnly),
        () if names_backing => Some(Unsealable::BackingInOptions),
        () if has_bitmaps() => Some(Unsealable::Bitmaps),
        () => None,
    }
}

/// Refuses a disk with a job, which knows its layers.
pub(crate) fn free_of_jobs(graph: &Graph, disk: &DiskNode) -> Result<(), Error> {
    let name = disk.name();
    match graph.job_on(&name)? {
        Some(by) => Err(NodeError::InUse { name, by }.into()),
        None => Ok(()),
    }
}

/// Whether options say which image is below one.
fn names_backing(options: &LayerOptions) -> bool {
    match &options.backing {
        Backing::AsInImage => false,
        Backing::None => true,
        Backing::With(below) => below.file.is_named() || names_backing(below),
    }
}
