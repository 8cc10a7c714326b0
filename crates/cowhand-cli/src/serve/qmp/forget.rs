//! cowhand-forget: checkpoints are forgotten at once, and a job merges the layers that nothing needs by themselves.

use std::rc::Rc;

use checkpoints::LayerMerge;
use control::{Arguments, Kind, QmpError, optional};
use lineage::{Keep, Policy};
use serde_json::Value;

use super::checkpoints::{NODE, disk_of, refused, refused_checkpoint};
use super::live::new_job;
use super::schema::NUMBER;
use crate::forget::{forget_of, json_of};
use crate::serve::inventory::Inventory;
use crate::serve::jobs::{Jobs, Work};

const KIND: &str = "cowhand-forget";

/// What cowhand-forget takes.
pub const FORGET: Kind = Kind::Object(&[
    NODE,
    optional("job-id", Kind::Text),
    optional("keep", Kind::Text),
    optional("max-depth", NUMBER),
    optional("max-waste", Kind::Whole(99)),
    optional("dry-run", Kind::Switch),
    optional("speed", NUMBER),
    optional("auto-finalize", Kind::Switch),
    optional("auto-dismiss", Kind::Switch),
]);

/// Forgets checkpoints of a disk; then a job begins that merges layers of its lineage.
pub async fn forget(inventory: &Rc<Inventory>, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let (node, disk) = disk_of(inventory, arguments)?;
    let depth_max = arguments.maybe_whole("max-depth").map(|max| usize::try_from(max).unwrap_or(usize::MAX));
    if depth_max == Some(0) {
        return Err(QmpError::generic(
            "argument 'max-depth' is 0; a disk with checkpoints is backed by 1 layer at least",
        ));
    }
    let keep = arguments.maybe_text("keep").map(str::parse::<Keep>).transpose();
    let policy = Policy {
        keep: keep.map_err(|error| QmpError::generic(format!("argument 'keep': {error}")))?,
        depth_max,
    };
    let is_dry = arguments.is_on("dry-run");
    let new = (!is_dry).then(|| new_job(inventory, KIND, &node.name(), arguments)).transpose()?;
    let place = disk.place.clone();
    let forgotten = reactor::blocking(move || forget_of(&disk.place, Some(&disk), &policy, is_dry)).await;
    let mut forgotten = forgotten.map_err(|error| refused(inventory, &error))?;
    let waste_max = arguments.maybe_whole("max-waste").and_then(|max| u8::try_from(max).ok());
    let worth = checkpoints::worth(forgotten.merges, (&place, inventory.graph.rules()), waste_max).await;
    forgotten.merges = worth.map_err(|error| refused_checkpoint(inventory, &error))?;
    if let Some(new) = new {
        Jobs::start(inventory, new, Work::Merge(LayerMerge { place, waste_max }), Vec::new());
    }
    Ok(json_of(&forgotten, is_dry))
}
