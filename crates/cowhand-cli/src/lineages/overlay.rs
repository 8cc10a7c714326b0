//! The images of a lineage: overlays of checkpoints and forks, and what layers that are made of several begin as.

use std::fs::File;
use std::path::Path;

use cowhand::{Existing, NewImage};
use graph::probe::Format;
use lineage::{Access, NewOverlay, Shape};
use qcow2::CreateOptions;

use crate::copying::replaced_access::{ReplacedAccess, create_beside};
use crate::failure::Failure;

/// Makes an overlay at `at`, where nothing is: durable, its name too, and from the first byte no more open than the disk.
///
/// # Errors
/// When it cannot be made. Then nothing is there.
pub async fn make(at: &Path, overlay: &NewOverlay) -> Result<(), Failure> {
    let NewOverlay { backing_name, shape, access } = overlay;
    let backing = (backing_name.clone(), Some(Format::Qcow2.name().to_owned()));
    make_filled(at, Some(backing), (shape, *access), async || Ok(())).await
}

/// Makes an image at `at`, where nothing is, over `backing` (name and format), and has `fill` write to it.
///
/// # Errors
/// When it cannot be made or filled. Then nothing is there.
pub(super) async fn make_filled(
    at: &Path,
    backing: Option<(String, Option<String>)>,
    (shape, access): (&Shape, Access),
    fill: impl AsyncFnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let failed =
        |error: &dyn std::error::Error| Failure::because(format!("cannot create {}", at.display()), error);
    let access = ReplacedAccess::from(access);
    let file: File = create_beside(at, Some(&access)).map_err(|error| failed(&error))?;
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
    let image = NewImage { format: Format::Qcow2, options, existing: Existing::Replace, encryption: None };
    let made = match cowhand::create(at, image).await {
        Ok(()) => fill().await,
        Err(error) => Err(failed(&error)),
    };
    let made = made.and_then(|()| access.give_to(&file).map_err(|error| failed(&error)));
    made.inspect_err(|_| drop(std::fs::remove_file(at)))
}
