//! x-block-dirty-bitmap-ranges and -mark, ours: what a bitmap has as dirty is read, and set in another one, on another machine too.

use std::ops::Range;

use control::{QmpError, arguments};
use qcow2::bitmap::{Bitmap, BitmapChange};
use serde_json::{Value, json};

use super::dirty_bitmaps::{check_idle, find};
use crate::inventory::Inventory;

/// Ranges of one answer or one command: below 200 KB of text, and a message may have 256 KiB.
pub const RANGES_MAX: usize = 4096;

arguments! {
    /// A bitmap, from a byte of the disk on.
    pub struct From { node: String, name: String, offset: Option<u64> }

    /// What is to be dirty.
    pub struct Mark { node: String, name: String, ranges: Vec<Bytes> }

    /// Bytes of the disk.
    pub struct Bytes { offset: u64, length: u64 }
}

/// The dirty ranges from `offset` on, in order, at most [`RANGES_MAX`]; with `next` where there is more behind them. What is written meanwhile may
/// be among them.
///
/// # Errors
/// When there is no such bitmap, or it cannot be read.
pub async fn ranges(inventory: &Inventory, From { node, name, offset }: &From) -> Result<Value, QmpError> {
    let bitmap = find(&*inventory.disk(node)?, name)?;
    let found = dirty_from(&bitmap, offset.unwrap_or(0)).await;
    let (ranges, next) =
        found.map_err(|error| QmpError::because(format!("cannot read bitmap {name:?}"), &error))?;
    let reported = |range: &Range<u64>| json!({ "offset": range.start, "length": range.end - range.start });
    let mut answer = json!({ "ranges": ranges.iter().map(reported).collect::<Vec<_>>() });
    if let Some(next) = next {
        answer["next"] = json!(next);
    }
    Ok(answer)
}

/// The first dirty ranges from `offset` on, and where the next one begins if there are more.
async fn dirty_from(bitmap: &Bitmap, mut at: u64) -> Result<(Vec<Range<u64>>, Option<u64>), qcow2::Error> {
    let mut ranges = Vec::<Range<u64>>::new();
    while at < bitmap.size() {
        let said = bitmap.status(at, bitmap.size() - at).await?;
        let (end, is_full) = (at + said.len, ranges.len() == RANGES_MAX);
        match ranges.last_mut() {
            Some(last) if said.dirty && last.end == at => last.end = end,
            _ if said.dirty && is_full => return Ok((ranges, Some(at))),
            _ if said.dirty => ranges.push(at..end),
            _ => {}
        }
        at = end;
    }
    Ok((ranges, None))
}

/// Sets the bits that the ranges touch, all of them or none.
///
/// # Errors
/// When there is no such bitmap, it is in use, a range ends behind the disk, or there are more than
/// [`RANGES_MAX`].
pub async fn mark(inventory: &Inventory, Mark { node, name, ranges: given }: &Mark) -> Result<(), QmpError> {
    let node = inventory.disk(node)?;
    check_idle(inventory, &node, name)?;
    let bitmap = find(&node, name)?;
    if given.len() > RANGES_MAX {
        return Err(QmpError::generic(format!("{} ranges; at most {RANGES_MAX} at a time", given.len())));
    }
    let ranges: Result<Vec<Range<u64>>, QmpError> =
        given.iter().map(|range| inside(range, bitmap.size())).collect();
    let cannot =
        |error| QmpError::because(format!("cannot change bitmap {name:?} of node {:?}", node.name()), &error);
    let marked = Bitmap::of_ranges(bitmap.size(), bitmap.granularity_bytes(), ranges?).map_err(cannot)?;
    node.disk.change_bitmap(name, BitmapChange::Merge(marked)).await.map_err(cannot)
}

fn inside(&Bytes { offset, length }: &Bytes, size: u64) -> Result<Range<u64>, QmpError> {
    match offset.checked_add(length) {
        Some(end) if end <= size => Ok(offset..end),
        _ => Err(QmpError::generic(format!(
            "{length} bytes at {offset} end behind the disk, which has {size} bytes"
        ))),
    }
}
