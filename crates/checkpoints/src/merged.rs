//! One layer made of several, by the copy engine.

use std::path::Path;

use block::Block;
use graph::options::{Discard, DiskOptions};
use graph::probe::Format;
use graph::{Disk, OpenRules};
use job::{Says, Scope};
use lineage::{Merge, MergedLayer, Place};

use crate::error::{Error, with_disk};
use crate::new_image::make_filled;
use crate::sealed::options_of;

/// Makes one at `at`, where nothing is, and has `copy` bring to it what so many layers have, from the uppermost of them: durable when this returns, and from the
/// first byte no more open than the layers.
///
/// # Errors
/// When it cannot be made or copied. Then nothing is there.
pub async fn make(
    at: &Path,
    merged: &MergedLayer,
    rules: &OpenRules,
    copy: impl AsyncFnOnce(&dyn Block, u32, &dyn Block) -> Result<(), job::Error>,
) -> Result<(), Error> {
    let filled = async || fill(at, merged, rules, copy).await;
    make_filled(at, merged.backing.clone(), (&merged.shape, merged.access), filled).await
}

/// The first of `merges` that `is_worth` its copy.
///
/// # Errors
/// As there.
pub async fn first_worth(
    merges: Vec<Merge>,
    at: (&Place, &OpenRules),
    waste_max: Option<u8>,
) -> Result<Option<Merge>, Error> {
    for merge in merges {
        if is_worth(&merge, at, waste_max).await? {
            return Ok(Some(merge));
        }
    }
    Ok(None)
}

/// Those of a list that are.
///
/// # Errors
/// As `is_worth`.
pub async fn worth(
    merges: Vec<Merge>,
    at: (&Place, &OpenRules),
    waste_max: Option<u8>,
) -> Result<Vec<Merge>, Error> {
    let mut found = Vec::new();
    for merge in merges {
        if is_worth(&merge, at, waste_max).await? {
            found.push(merge);
        }
    }
    Ok(found)
}

/// Whether more than `waste_max` percent of the bytes that the layers take are not needed; always without a bound. Reads maps alone.
///
/// # Errors
/// When a layer cannot be read.
pub async fn is_worth(
    merge: &Merge,
    (place, rules): (&Place, &OpenRules),
    waste_max: Option<u8>,
) -> Result<bool, Error> {
    let Some(max) = waste_max else { return Ok(true) };
    let wasted = merge.bytes.saturating_sub(needed_bytes(merge, place, rules).await?);
    Ok(u128::from(wasted) * 100 > u128::from(merge.bytes) * u128::from(max))
}

/// Bytes of data that the layers have and that none of them hides.
async fn needed_bytes(merge: &Merge, place: &Place, rules: &OpenRules) -> Result<u64, Error> {
    let options = options_of(&place.layer(merge.into));
    let count = async |top: &Disk| {
        let (mut at, mut needed) = (0, 0);
        let scope = Scope::Layers(u32::try_from(merge.layers()).unwrap_or(u32::MAX));
        while at < top.size() {
            let status = top.block_status(at, top.size() - at).await;
            let status = status.map_err(Error::image("read the map of", &options.filename))?;
            needed += if scope.says(&status) == Says::Data { status.len } else { 0 };
            at += status.len;
        }
        Ok(needed)
    };
    with_disk(&options, rules, "read", count).await
}

async fn fill(
    at: &Path,
    merged: &MergedLayer,
    rules: &OpenRules,
    copy: impl AsyncFnOnce(&dyn Block, u32, &dyn Block) -> Result<(), job::Error>,
) -> Result<(), Error> {
    let (from, mut to) = (options_of(&merged.top), DiskOptions::of_path(at));
    to.layer.format = Some(Format::Qcow2);
    to.layer.discard = Discard::Unmap;
    let layers = u32::try_from(merged.layers).unwrap_or(u32::MAX);
    let into = async |source: &Disk| {
        let copy = async |target: &Disk| {
            let copied = copy(source, layers, target).await;
            copied.map_err(Error::image("merge", &merged.top))
        };
        with_disk(&to, rules, "write", copy).await
    };
    with_disk(&from, rules, "read", into).await
}
