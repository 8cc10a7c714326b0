//! The overlays of checkpoints and forks.

use std::fs::File;
use std::path::Path;

use cowhand::{Existing, NewImage};
use graph::probe::Format;
use lineage::NewOverlay;
use qcow2::CreateOptions;

use crate::copying::replaced_access::{ReplacedAccess, create_beside};
use crate::failure::Failure;

/// Makes one at `at`, where nothing is: durable, its name too, and from the first byte no more open than the disk.
///
/// # Errors
/// When it cannot be made. Then nothing is there.
pub async fn make(at: &Path, overlay: &NewOverlay) -> Result<(), Failure> {
    let failed =
        |error: &dyn std::error::Error| Failure::because(format!("cannot create {}", at.display()), error);
    let NewOverlay { backing_name, shape, access } = overlay;
    let access = ReplacedAccess::from(*access);
    let file: File = create_beside(at, Some(&access)).map_err(|error| failed(&error))?;
    let options = CreateOptions {
        size: shape.disk_bytes,
        version: shape.version,
        cluster_size: shape.cluster_bytes,
        refcount_bits: shape.refcount_bits,
        extended_l2: shape.extended_l2,
        compression: shape.compression,
        backing_file: Some(backing_name.clone()),
        backing_format: Some(Format::Qcow2.name().to_owned()),
        ..CreateOptions::default()
    };
    let image = NewImage { format: Format::Qcow2, options, existing: Existing::Replace, encryption: None };
    let made = match cowhand::create(at, image).await {
        Ok(()) => access.give_to(&file).map_err(|error| failed(&error)),
        Err(error) => Err(failed(&error)),
    };
    made.inspect_err(|_| drop(std::fs::remove_file(at)))
}
