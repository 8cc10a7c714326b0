//! X_BLOCK_DIRTY_BITMAPS_INVALIDATED: the first change of an image put its persistent bitmaps out of date. And what
//! queries tell of bitmaps.

use control::events;
use graph::DiskNode;
use qcow2::Qcow2;
use qcow2_layout::BitmapFlags;
use serde_json::{Value, json};

use crate::inventory::nodes::Nodes;

/// Names in one event or answer; an image may have 65,535 bitmaps, their names 1,023 bytes each.
const NAMES_MAX: usize = 64;

events! {
    /// The event.
    pub INVALIDATED = "X_BLOCK_DIRTY_BITMAPS_INVALIDATED" {
        "device": String, "node-name": String, "bitmaps": Vec<String>, "count": u64,
    }
}

/// Emits the event for `node`, once while it is open. Also called before the disk is closed: a disk may come
/// and go between two rounds.
pub fn tell(nodes: &Nodes, node: &DiskNode) {
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
    nodes.events.emit(INVALIDATED.name, &data);
}

/// The first persistent bitmaps of an image, as Qcow2BitmapInfo.
pub fn values_of(image: &Qcow2) -> Value {
    let in_use = image.was_changed();
    let info = |name: &str, granularity: u64, flags: [(&str, bool); 2]| {
        let flags: Vec<&str> = flags.into_iter().filter_map(|(name, set)| set.then_some(name)).collect();
        json!({ "name": name, "granularity": granularity, "flags": flags })
    };
    let usable = image.bitmaps().into_iter().filter(|bitmap| bitmap.is_persistent()).map(|bitmap| {
        let auto = bitmap.is_recording();
        info(bitmap.name(), bitmap.granularity_bytes(), [("in-use", auto && in_use), ("auto", auto)])
    });
    let inconsistent = image.inconsistent_bitmaps().into_iter().map(|entry| {
        let auto = entry.flags.contains(BitmapFlags::AUTO);
        info(&entry.name, 1 << entry.granularity_bits, [("in-use", true), ("auto", auto)])
    });
    usable.chain(inconsistent).take(NAMES_MAX).collect()
}
