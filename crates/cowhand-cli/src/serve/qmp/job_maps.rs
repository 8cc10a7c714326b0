//! The maps of backups, as queries tell of them: bitmaps without a name, as QEMU's.

use std::rc::Rc;
use std::sync::Arc;

use graph::DiskNode;
use job::Dirty;
use serde_json::{Value, json};

use crate::serve::inventory::Inventory;
use crate::serve::jobs::Work;

/// The maps of the backups of `node`: what is still to be copied, and what was written since, which becomes the
/// content of the backup's bitmap.
pub fn of_disk(inventory: &Inventory, node: &Arc<DiskNode>) -> Vec<Value> {
    let mut maps = Vec::new();
    for work in of_backups(inventory, node) {
        let Some((backup, bitmap)) = work.backup() else { continue };
        maps.push(map(backup.filter.left(), false));
        let since = backup.filter.since().zip(bitmap);
        maps.extend(since.map(|(since, bitmap)| map(since, bitmap.is_recording)));
    }
    maps
}

/// The maps of the filter of the backup `job` of `node`, with a bitmap: what clients can read there as it was, which is
/// everything, and what was written since.
pub fn of_filter(inventory: &Inventory, node: &DiskNode, job: &str) -> Vec<Value> {
    let work = inventory.jobs.find(job).and_then(|job| job.work());
    let Some(since) = work.as_ref().and_then(|work| work.backup()?.0.filter.since()) else {
        return Vec::new();
    };
    let unit = since.unit_bytes();
    vec![value(node.disk.size().next_multiple_of(unit), unit, false), map(since, false)]
}

/// Bytes that the bitmap `name` had as dirty when the backup began that uses it: its own count goes on.
pub fn count_at_begin(inventory: &Inventory, node: &Arc<DiskNode>, name: &str) -> Option<u64> {
    of_backups(inventory, node).iter().find_map(|work| {
        let bitmap = work.backup()?.1.filter(|bitmap| bitmap.name == name)?;
        bitmap.count_at_begin()
    })
}

fn of_backups(inventory: &Inventory, node: &Arc<DiskNode>) -> Vec<Rc<Work>> {
    let all = inventory.jobs.all().into_iter().filter_map(|job| job.work());
    all.filter(|work| work.backup().is_some() && work.disk().is_some_and(|disk| Arc::ptr_eq(disk, node)))
        .collect()
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
