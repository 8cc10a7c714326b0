//! X_BLOCK_DIRTY_BITMAPS_INVALIDATED: the first change of an image put its persistent bitmaps out of date. And what
//! queries tell of bitmaps.

use control::{EventSpec, Kind, required};
use graph::{Disk, DiskNode};
use serde_json::{Value, json};

use super::schema::NUMBER;
use crate::serve::inventory::Inventory;

/// Names in one event or answer; an image may have 65,535 bitmaps, their names 1,023 bytes each.
const NAMES_MAX: usize = 64;

const NAME: &str = "X_BLOCK_DIRTY_BITMAPS_INVALIDATED";

/// What is told.
pub const INVALIDATED: EventSpec = EventSpec {
    name: NAME,
    data: Kind::Object(&[
        required("device", Kind::Text),
        required("node-name", Kind::Text),
        required("bitmaps", Kind::List(&Kind::Text)),
        required("count", NUMBER),
    ]),
};

/// Tells it of `node`, once while it is open. Looked at again when the disk is closed: a disk may come and go between
/// two looks.
pub fn tell(inventory: &Inventory, node: &DiskNode) {
    let names = node.news_of_bitmaps();
    if names.is_empty() {
        return;
    }
    let data = json!({
        "device": node.name(),
        "node-name": node.name(),
        "bitmaps": names.iter().take(NAMES_MAX).collect::<Vec<_>>(),
        "count": names.len(),
    });
    inventory.events.emit(NAME, &data);
}

/// The first bitmaps of a disk, as Qcow2BitmapInfo. Those that were inconsistent when it was opened are not known.
pub fn values(disk: &Disk) -> Value {
    disk.bitmaps()
        .into_iter()
        .take(NAMES_MAX)
        .map(|(bitmap, out_of_date)| {
            let flags = [("in-use", out_of_date), ("auto", bitmap.is_recording())];
            let flags: Vec<&str> = flags.into_iter().filter_map(|(name, set)| set.then_some(name)).collect();
            json!({ "name": bitmap.name(), "granularity": bitmap.granularity_bytes(), "flags": flags })
        })
        .collect()
}
