//! The images of a lineage: overlays of checkpoints and forks, and what layers that are made of several begin as.

use std::path::Path;

use graph::probe::Format;
use lineage::{NewOverlay, Shape};
use qcow2::CreateOptions;
use storage::{FileAccess, FileLock, FileOptions, Role, UnlockedFile, create_beside};

use crate::error::Error;

/// Makes an overlay at `at`, where nothing is: what is in it is durable, its name is not yet, and from the first byte it is no more open than the disk.
///
/// # Errors
/// When it cannot be made. Then nothing is there.
pub async fn make(at: &Path, overlay: &NewOverlay) -> Result<(), Error> {
    let NewOverlay { backing_name, shape, access } = overlay;
    let backing = (backing_name.clone(), Some(Format::Qcow2.name().to_owned()));
    make_filled(at, Some(backing), (shape, *access), async || Ok(())).await
}

/// Makes an image at `at`, where nothing is, over `backing` (name and format), and has `fill` write to it.
///
/// # Errors
/// When it cannot be made or filled. Then nothing is there.
pub(crate) async fn make_filled(
    at: &Path,
    backing: Option<(String, Option<String>)>,
    (shape, access): (&Shape, FileAccess),
    fill: impl AsyncFnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    let file = create_beside(at, Some(&access)).map_err(Error::image("create", at))?;
    let made = async {
        create(at, backing, shape).await?;
        fill().await?;
        access.give_to(&file).map_err(Error::image("create", at))
    };
    made.await.inspect_err(|_| drop(std::fs::remove_file(at)))
}

/// Writes an empty image to the empty file at `at`.
async fn create(at: &Path, backing: Option<(String, Option<String>)>, shape: &Shape) -> Result<(), Error> {
    let (backing_file, backing_format) = backing.unzip();
    let options = CreateOptions {
        size: shape.disk_bytes,
        version: shape.version,
        cluster_size: shape.cluster_bytes,
        refcount_bits: shape.refcount_bits,
        extended_l2: shape.extended_l2,
        compression: shape.compression,
        backing_file,
        backing_format: backing_format.flatten(),
        ..CreateOptions::default()
    };
    let file = UnlockedFile::open(at, &FileOptions::default()).map_err(Error::image("create", at))?;
    let lock = FileLock::acquire_role(file.fd(), Role::Writer).map_err(Error::image("lock", at))?;
    let storage = file.measured(Some(&lock)).map_err(Error::image("create", at))?;
    qcow2::create(&storage, None, &options).await.map_err(Error::image("create", at))
}
