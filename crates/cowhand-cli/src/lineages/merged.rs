//! One layer made of several, by the copy engine.

use std::path::Path;

use block::Block;
use graph::OpenRules;
use graph::options::{Discard, DiskOptions};
use graph::probe::Format;
use job::{Says, Scope};
use lineage::{Merge, MergedLayer, Place};

use super::overlay;
use super::sealed::options_of;
use crate::copying;
use crate::failure::Failure;

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
) -> Result<(), Failure> {
    let filled = async || fill(at, merged, rules, copy).await;
    overlay::make_filled(at, merged.backing.clone(), (&merged.shape, merged.access), filled).await
}

/// The first of `merges` that [`is_worth`] its copy.
///
/// # Errors
/// As there.
pub async fn first_worth(
    merges: Vec<Merge>,
    at: (&Place, &OpenRules),
    waste_max: Option<u8>,
) -> Result<Option<Merge>, Failure> {
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
/// As [`is_worth`].
pub async fn worth(
    merges: Vec<Merge>,
    at: (&Place, &OpenRules),
    waste_max: Option<u8>,
) -> Result<Vec<Merge>, Failure> {
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
) -> Result<bool, Failure> {
    let Some(max) = waste_max else { return Ok(true) };
    let wasted = merge.bytes.saturating_sub(needed_bytes(merge, place, rules).await?);
    Ok(u128::from(wasted) * 100 > u128::from(merge.bytes) * u128::from(max))
}

/// Bytes of data that the layers have and that none of them hides.
async fn needed_bytes(merge: &Merge, place: &Place, rules: &OpenRules) -> Result<u64, Failure> {
    let options = options_of(&place.layer(merge.into));
    let top = copying::open(&options, rules, "read").await?;
    let counted = async {
        let (mut at, mut needed) = (0, 0);
        let scope = Scope::Layers(u32::try_from(merge.layers()).unwrap_or(u32::MAX));
        while at < top.size() {
            let status = top.block_status(at, top.size() - at).await?;
            needed += if scope.says(&status) == Says::Data { status.len } else { 0 };
            at += status.len;
        }
        Ok(needed)
    };
    let counted =
        counted.await.map_err(|error: block::Error| copying::because("read the map of", &options, &error));
    copying::finish(&top, counted, |error| copying::because("close", &options, error)).await
}

async fn fill(
    at: &Path,
    merged: &MergedLayer,
    rules: &OpenRules,
    copy: impl AsyncFnOnce(&dyn Block, u32, &dyn Block) -> Result<(), job::Error>,
) -> Result<(), Failure> {
    let (from, mut to) = (options_of(&merged.top), DiskOptions::of_path(at));
    to.layer.format = Some(Format::Qcow2);
    to.layer.discard = Discard::Unmap;
    let source = copying::open(&from, rules, "read").await?;
    let copied = async {
        let target = copying::open(&to, rules, "write").await?;
        let layers = u32::try_from(merged.layers).unwrap_or(u32::MAX);
        let copied = copy(&*source, layers, &*target).await;
        let copied = copied.map_err(|error| copying::because("merge", &from, &error));
        copying::finish(&target, copied, |error| copying::because("write", &to, error)).await
    };
    let copied = copied.await;
    copying::finish(&source, copied, |error| copying::because("close", &from, error)).await
}
