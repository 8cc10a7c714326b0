//! cowhand-log, cowhand-diff, cowhand-gc, cowhand-checkpoint-delete: what the lineage of a disk at work has, in pages, and what goes of it. No disk is switched, and guests
//! go on.

use std::sync::Arc;

use block::Block;
use checkpoints::Sealed;
use control::{Argument, Arguments, Kind, QmpError, optional, required};
use graph::Disk;
use lineage::{Change as LineageChange, CheckpointRef, DiskPlace, Error, PATIENCE};
use serde_json::{Value, json};
use tool::lineages::removal::outcome_json;
use tool::lineages::seen::Seen;
use tool::lineages::{part, tree};

use super::bitmap_bits::RANGES_MAX;
use super::checkpoints::{NODE, checkpoint_of, disk_of, refused, refused_checkpoint};
use super::kinds::NUMBER;
use crate::inventory::Inventory;

/// Bytes of one answer of cowhand-log, some hundred layers or disks: a client that reads slowly is cut off beyond 4 MiB.
const PAGE_BYTES: usize = 256 << 10;

/// Layers that one cowhand-gc lists or removes: each takes a lock and a look at its file, and other commands on the lineage wait for 10 s.
const LAYERS_MAX: usize = 4096;

/// What cowhand-log takes.
pub const LOG: Kind = Kind::Object(&[NODE, optional("from", Kind::Text)]);

/// The other one of two checkpoints.
const OTHER: Argument = optional("other", Kind::Text);

/// What cowhand-diff takes.
pub const DIFF: Kind =
    Kind::Object(&[NODE, required("checkpoint", Kind::Text), OTHER, optional("offset", NUMBER)]);

/// What cowhand-checkpoint-delete takes.
pub const DELETE: Kind = Kind::Object(&[
    NODE,
    required("checkpoints", Kind::List(&Kind::Text)),
    optional("dry-run", Kind::Switch),
]);

/// What cowhand-gc takes.
pub const GC: Kind =
    Kind::Object(&[NODE, optional("unnamed", Kind::Switch), optional("remove", Kind::Switch)]);

/// Layers and disks from `from` on; `next` is the `from` of the next page.
pub async fn log(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let (_, disk) = disk_of(inventory, arguments)?;
    let from = arguments.maybe_text("from").map(str::to_owned);
    in_lineage(inventory, move || {
        let seen = Seen::of(disk.place.clone(), Some(disk))?;
        tree::page(&seen, from.as_deref(), PAGE_BYTES)
    })
    .await
}

/// Lists or removes layers that nothing needs.
pub async fn gc(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let (_, disk) = disk_of(inventory, arguments)?;
    let (unnamed, remove) = (arguments.is_on("unnamed"), arguments.is_on("remove"));
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
pub async fn delete(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let (_, disk) = disk_of(inventory, arguments)?;
    let names = arguments.list("checkpoints").iter().filter_map(Value::as_str);
    let named = |name| {
        let parsed = CheckpointRef::parse(name).map_err(|error| QmpError::generic(error.to_string()))?;
        Ok((disk.clone(), parsed))
    };
    let wanted = names.map(named).collect::<Result<Vec<_>, QmpError>>()?;
    if wanted.is_empty() {
        return Err(QmpError::generic("argument 'checkpoints' is empty: name the checkpoints to be deleted"));
    }
    let is_dry = arguments.is_on("dry-run");
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
pub async fn diff(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let (node, disk) = disk_of(inventory, arguments)?;
    let from = arguments.maybe_whole("offset").unwrap_or(0);
    let one = open_checkpoint(inventory, &disk, checkpoint_of(arguments)?).await?;
    let other = match arguments.maybe_text("other") {
        Some(name) => {
            let parsed = CheckpointRef::parse(name);
            let name = parsed.map_err(|error| QmpError::generic(error.to_string()));
            let opened = async { open_checkpoint(inventory, &disk, name?).await };
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
