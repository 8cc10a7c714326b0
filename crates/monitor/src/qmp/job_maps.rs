//! The maps of backups, as queries tell of them: bitmaps without a name, as QEMU's.

use std::sync::Arc;

use graph::DiskNode;
use job::Dirty;
use serde_json::{Value, json};

use crate::inventory::Inventory;

/// The maps of the backups of `node`: what is still to be copied, and what was written since, which becomes the
/// content of the backup's bitmap.
pub fn of_disk(inventory: &Inventory, node: &Arc<DiskNode>) -> Vec<Value> {
    let mut maps = Vec::new();
    for work in inventory.jobs.all().iter().filter_map(|job| job.work()) {
        let Some((_, backup)) = work.backup().filter(|(disk, _)| Arc::ptr_eq(disk, node)) else { continue };
        maps.push(map(backup.filter.left(), false));
        let since = backup.filter.since().zip(work.bitmap());
        maps.extend(since.map(|(since, bitmap)| map(since, bitmap.is_recording)));
    }
    maps
}

/// The maps of the filter of the backup `job` of `node`, with a bitmap: what clients can read there as it was, which is
/// everything, and what was written since.
pub fn of_filter(inventory: &Inventory, node: &DiskNode, job: &str) -> Vec<Value> {
    let work = inventory.jobs.find(job).and_then(|job| job.work());
    let Some(since) = work.as_ref().and_then(|work| work.backup()?.1.filter.since()) else {
        return Vec::new();
    };
    let unit = since.unit_bytes();
    vec![value(node.disk.size().next_multiple_of(unit), unit, false), map(since, false)]
}

fn map(dirty: &Dirty, recording: bool) -> Value {
    value(dirty.bytes(), dirty.unit_bytes(), recording)
}

fn value(count: u64, granularity: u64, recording: bool) -> Value {
    json!({
        "count": count,
        "granularity": granularity,
        "recording": recording,
        "busy": false,
        "persistent": false,
    })
}
