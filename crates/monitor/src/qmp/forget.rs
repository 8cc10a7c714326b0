//! cowhand-forget: checkpoints are forgotten at once, and a job merges the layers that nothing needs by themselves.

use std::rc::Rc;

use checkpoints::LayerMerge;
use control::{Kind, QmpError, arguments};
use lineage::{Change, DiskPlace, Keep, PATIENCE, Policy};
use serde_json::Value;
use tool::lineages::removal::{forgetting, json_of};

use super::checkpoints::{disk_of, refused, refused_checkpoint};
use super::live::{job_options, new_job};
use crate::inventory::Inventory;
use crate::jobs::Work;

const KIND: &str = "cowhand-forget";

arguments! {
    /// What is kept of a disk's checkpoints, and the job that merges.
    #[derive(Default)]
    pub struct Forget {
        node_name: String, job_id: Option<String>, keep: Option<String>, max_depth: Option<u64>,
        max_waste: Option<u32> = Kind::Whole(99), save: Option<bool>, dry_run: Option<bool>,
        speed: Option<u64>, auto_finalize: Option<bool>, auto_dismiss: Option<bool>,
    }
}

/// Forgets checkpoints of a disk; then a job begins that merges layers of its lineage.
pub async fn forget(inventory: &Rc<Inventory>, arguments: &Forget) -> Result<Value, QmpError> {
    let (node, disk) = disk_of(inventory, &arguments.node_name)?;
    let depth_max = arguments.max_depth.map(|max| usize::try_from(max).unwrap_or(usize::MAX));
    if depth_max == Some(0) {
        return Err(QmpError::generic(
            "argument 'max-depth' is 0; a disk with checkpoints is backed by 1 layer at least",
        ));
    }
    let keep = arguments.keep.as_deref().map(str::parse::<Keep>).transpose();
    let policy = Policy {
        keep: keep.map_err(|error| QmpError::generic(format!("argument 'keep': {error}")))?,
        depth_max,
        waste_max: arguments.max_waste.and_then(|max| u8::try_from(max).ok()),
    };
    let (is_dry, is_saved) = (arguments.dry_run == Some(true), arguments.save == Some(true));
    if is_dry && is_saved {
        return Err(QmpError::generic("argument 'save' does not go with 'dry-run', which changes nothing"));
    }
    let new =
        (!is_dry).then(|| new_job(inventory, KIND, &node.name(), job_options!(arguments))).transpose()?;
    let place = disk.place.clone();
    let forgetting = forgetting(is_dry, is_saved);
    let forgotten =
        reactor::blocking(move || lineage::forget(&disk.place, Some(&disk), policy, forgetting)).await;
    let mut forgotten = forgotten.map_err(|error| refused(inventory, &error))?;
    let waste_max = forgotten.policy.waste_max;
    let worth = checkpoints::worth(forgotten.merges, (&place, inventory.graph.rules()), waste_max).await;
    forgotten.merges = worth.map_err(|error| refused_checkpoint(inventory, &error))?;
    if let Some(new) = new {
        inventory.jobs.start(new, Work::Merge(LayerMerge { place, waste_max }), Vec::new());
    }
    Ok(json_of(&forgotten, is_dry))
}

/// Follows the policies of the lineages of disks that have new layers: a job begins where there is something to forget or to merge, behind the one
/// of the checkpoint before.
pub fn follow_policies(inventory: &Rc<Inventory>, disks: Vec<String>) {
    let inventory = Rc::clone(inventory);
    reactor::spawn(async move {
        for disk in disks {
            if let Err(error) = follow_policy(&inventory, &disk).await {
                tracing::warn!(node = disk, %error, "the policy of a lineage is not followed");
            }
        }
    })
    .detach();
}

async fn follow_policy(inventory: &Rc<Inventory>, disk: &str) -> Result<(), QmpError> {
    let id = format!("policy-{disk}");
    if !inventory.jobs.wait_for(&id).await || inventory.loops.shutdown().is_triggered() {
        return Ok(());
    }
    let (_, place) = disk_of(inventory, disk)?;
    let has_work = reactor::blocking(move || has_work(&place)).await;
    if has_work.map_err(|error| refused(inventory, &error))? {
        let what = Forget { node_name: disk.to_owned(), job_id: Some(id), ..Forget::default() };
        forget(inventory, &what).await?;
    }
    Ok(())
}

/// Whether a lineage has a policy, and that does not keep something of the disk, or layers are to be merged.
fn has_work(disk: &DiskPlace) -> Result<bool, lineage::Error> {
    let change = Change::begin(&disk.place, PATIENCE)?;
    let Some(policy) = change.policy() else { return Ok(false) };
    let (_, found) = change.forget(Some(disk), policy)?;
    Ok(!found.checkpoints.is_empty() || !found.removal.going.is_empty() || !found.merges.is_empty())
}
