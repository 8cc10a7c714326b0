//! Disks are not served over a checkpoint that has changed since it was sealed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use graph::Graph;
use lineage::{AsSealed, DiskPlace, Error, PATIENCE};
use tool::failure::Failure;

/// Refuses a disk that is backed by a sealed layer which has changed. What a lineage cannot say of a disk is left to those who change the lineage. Blocks.
///
/// # Errors
/// Names the layer, or the command that may be changing it and does not end.
pub fn check(graph: &Graph) -> Result<(), Failure> {
    let mut lineages: BTreeMap<PathBuf, Option<AsSealed>> = BTreeMap::new();
    let paths = graph.disks().into_iter().filter_map(|disk| graph.path_of_image(&disk.name()).ok()?);
    let places = paths.filter_map(|path| DiskPlace::of(&path).ok());
    for disk in places.filter(|disk| disk.place.is_lineage()) {
        let directory = disk.place.directory().to_owned();
        let lineage = lineages.entry(directory).or_insert_with(|| AsSealed::of(&disk.place).ok());
        if let Some(Err(error @ (Error::Changed { .. } | Error::Busy { .. }))) =
            lineage.as_mut().map(|lineage| lineage.check(&disk, PATIENCE))
        {
            return Err(error.into());
        }
    }
    Ok(())
}
