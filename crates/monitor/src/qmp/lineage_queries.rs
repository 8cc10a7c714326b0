//! cowhand-log, cowhand-diff, cowhand-gc, cowhand-checkpoint-delete: what the lineage of a disk at work has, in pages, and what goes of it. No disk is switched, and guests
//! go on.

use std::sync::Arc;

use block::Block;
use checkpoints::Sealed;
use control::{QmpError, arguments};
use graph::Disk;
use lineage::{Change as LineageChange, CheckpointRef, DiskPlace, Error, PATIENCE};
use serde_json::{Value, json};
use tool::lineages::removal::outcome_json;
use tool::lineages::seen::Seen;
use tool::lineages::{part, tree};

use super::bitmap_bits::RANGES_MAX;
use super::checkpoints::{checkpoint_of, disk_of, refused, refused_checkpoint};
use crate::inventory::Inventory;

/// Bytes of one answer of cowhand-log, some hundred layers or disks: a client that reads slowly is cut off beyond 4 MiB.
const PAGE_BYTES: usize = 256 << 10;

/// Layers that one cowhand-gc lists or removes: each takes a lock and a look at its file, and other commands on the lineage wait for 10 s.
const LAYERS_MAX: usize = 4096;

arguments! {
    /// A page, from a layer or disk on.
    pub struct Log { node_name: String, from: Option<String> }

    /// Two checkpoints, or one and the disk.
    pub struct Diff { node_name: String, checkpoint: String, other: Option<String>, offset: Option<u64> }

    /// What goes.
    pub struct Delete { node_name: String, checkpoints: Vec<String>, dry_run: Option<bool> }

    /// What nothing needs.
    pub struct Collect { node_name: String, unnamed: Option<bool>, remove: Option<bool> }
}

/// Layers and disks from `from` on; `next` is the `from` of the next page.
pub async fn log(inventory: &Inventory, given: &Log) -> Result<Value, QmpError> {
    let (_, disk) = disk_of(inventory, &given.node_name)?;
    let from = given.from.clone();
    in_lineage(inventory, move || {
        let seen = Seen::of(disk.place.clone(), Some(disk))?;
        tree::page(&seen, from.as_deref(), PAGE_BYTES)
    })
    .await
}

/// Lists or removes layers that nothing needs.
pub async fn gc(inventory: &Inventory, given: &Collect) -> Result<Value, QmpError> {
    let (_, disk) = disk_of(inventory, &given.node_name)?;
    let (unnamed, remove) = (given.unnamed == Some(true), given.remove == Some(true));
    in_lineage(inventory, move || {
        let change = LineageChange::begin(&disk.place, PATIENCE)?;
        let (plan, outcome) = change.collect(unnamed, LAYERS_MAX)?;
        if remove {
            change.apply(&plan)?;
        }
        Ok(outcome_json(&outcome, !remove))
    })
    .await
}

/// Deletes checkpoints, or lists what would go with them.
pub async fn delete(inventory: &Inventory, given: &Delete) -> Result<Value, QmpError> {
    let (_, disk) = disk_of(inventory, &given.node_name)?;
    let named = |name: &String| Ok((disk.clone(), checkpoint_of(name)?));
    let wanted = given.checkpoints.iter().map(named).collect::<Result<Vec<_>, QmpError>>()?;
    if wanted.is_empty() {
        return Err(QmpError::generic("argument 'checkpoints' is empty: name the checkpoints to be deleted"));
    }
    let is_dry = given.dry_run == Some(true);
    in_lineage(inventory, move || {
        let change = LineageChange::begin(&disk.place, PATIENCE)?;
        let (plan, outcome) = change.delete(&wanted)?;
        if !is_dry {
            change.apply(&plan)?;
        }
        Ok(outcome_json(&outcome, is_dry))
    })
    .await
}

/// The ranges from `offset` on in which a checkpoint and another one, or the disk as it is, may differ; `next` where there are more.
pub async fn diff(inventory: &Inventory, given: &Diff) -> Result<Value, QmpError> {
    let (node, disk) = disk_of(inventory, &given.node_name)?;
    let from = given.offset.unwrap_or(0);
    let one = open_checkpoint(inventory, &disk, checkpoint_of(&given.checkpoint)?).await?;
    let other = match &given.other {
        Some(name) => {
            let opened = async { open_checkpoint(inventory, &disk, checkpoint_of(name)?).await };
            match opened.await {
                Ok(other) => Some(other),
                Err(error) => {
                    close(one).await;
                    return Err(error);
                }
            }
        }
        None => None,
    };
    let top = other.as_ref().map_or_else(|| node.disk.top_image(), |other| other.root());
    let found = ranges(inventory, one.root(), top, from).await;
    close(one).await;
    if let Some(other) = other {
        close(other).await;
    }
    found
}

async fn ranges(
    inventory: &Inventory,
    one: Arc<dyn Block>,
    other: Arc<dyn Block>,
    from: u64,
) -> Result<Value, QmpError> {
    let found = checkpoints::differences(one, other, from, RANGES_MAX).await;
    let (parts, next) = found.map_err(|error| refused_checkpoint(inventory, &error))?;
    let mut answer = json!({ "ranges": parts.iter().map(part::json_of).collect::<Vec<_>>() });
    if let Some(next) = next {
        answer["next"] = json!(next);
    }
    Ok(answer)
}

async fn open_checkpoint(
    inventory: &Inventory,
    disk: &DiskPlace,
    wanted: CheckpointRef,
) -> Result<Disk, QmpError> {
    let opened = Sealed::open(disk, &wanted, inventory.graph.rules()).await;
    opened.map_err(|error| refused_checkpoint(inventory, &error))
}

async fn close(disk: Disk) {
    if let Err(error) = disk.close().await {
        tracing::warn!(%error, "a checkpoint that was only read could not be closed in order");
    }
}

/// Does `work` on a thread that may wait: it reads headers, and may wait for another command on the lineage.
async fn in_lineage<T: Send + 'static>(
    inventory: &Inventory,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, QmpError> {
    reactor::blocking(work).await.map_err(|error| refused(inventory, &error))
}
