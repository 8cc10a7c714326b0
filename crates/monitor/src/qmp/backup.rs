//! blockdev-backup, drive-backup: a copy of a disk as it is now.

use std::rc::Rc;
use std::sync::Arc;

use block::Block;
use control::{Arguments, QmpError};
use graph::drivers::is_snapshot;
use graph::{Change, DiskNode, tracking_unit};
use job::{Backup, BackupPace, BeforeWrite, Task, What};
use serde_json::{Value, json};

use super::chain::{Chain, hold};
use super::live::{await_backing, check_size, name_filter, new_job, not_begun, target_of};
use super::new_target::Target;
use super::{bitmap_sync, new_target};
use crate::inventory::Inventory;
use crate::jobs::{Group, Work};

/// Bytes of a piece at most, also if a user sets more: it is held in memory, once for each worker.
const PIECE_BYTES_MAX: u64 = 16 << 20;
/// Pieces in flight at most, also if a user sets more.
const WORKERS_MAX: u64 = 64;
/// The largest unit of a copy.
const UNIT_BYTES_MAX: u64 = 64 << 20;

/// A copy of a disk, in a node.
///
/// # Errors
/// When an argument means nothing here, something is in use, or the target does not fit.
pub async fn blockdev_backup(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: Arguments<'_>,
    group: Option<Rc<Group>>,
) -> Result<Value, QmpError> {
    begin(inventory, change, arguments, Target::Node(arguments.text("target")?), group).await
}

/// Likewise, with the target's file made or opened here.
///
/// # Errors
/// As [`blockdev_backup`]; when the file cannot be made or opened.
pub async fn drive_backup(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: Arguments<'_>,
    group: Option<Rc<Group>>,
) -> Result<Value, QmpError> {
    let begin = async |target: Target<'_>| begin(inventory, change, arguments, target, group).await;
    new_target::with(inventory, change, arguments, false, begin).await
}

async fn begin(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: Arguments<'_>,
    target: Target<'_>,
    group: Option<Rc<Group>>,
) -> Result<Value, QmpError> {
    let device = arguments.text("device")?;
    let chain = Chain::of(inventory, device)?;
    let mut new = new_job(inventory, "backup", device, arguments)?;
    new.target = target.own();
    let target = target.node();
    new.layers = chain.claim(inventory, 0..1, Some(0))?;
    let disk = chain.disk;
    let (what, bitmap) = bitmap_sync::of(inventory, &disk, arguments)?;
    let node = target_of(inventory, &disk, target)?;
    check_size(&disk, &node).map_err(QmpError::generic)?;
    let block = target_block(&node, arguments)?;
    let what = match what {
        // An image without a backing file: what it does not have reads as zeroes, as all of the target does.
        What::Everything if arguments.text("sync")? == "top" && disk.disk.image().is_some() => {
            if reads_as_zeroes(&*block).await? {
                What::Layers(1)
            } else {
                what
            }
        }
        what => what,
    };
    let discards = arguments.is_on("discard-source");
    if discards && !is_snapshot(disk.disk.root().driver()) {
        return Err(QmpError::generic(format!(
            "argument 'discard-source' is true and node {device:?} is no snapshot-access filter: what is copied would be lost to its clients"
        )));
    }
    let (unit, pace) = pace(arguments, tracking_unit(&*block))?;
    await_backing(&node, what);
    let holds = hold(inventory, &new.terms.id, &disk, Some(&node))?;
    name_filter(inventory, change, arguments, &mut new, ("copy-before-write", (&disk, None)))?;
    let since = bitmap.as_ref().map(|bitmap| bitmap.granularity_bytes);
    let filter = BeforeWrite::new(disk.disk.root(), block, unit, since, discards);
    if arguments.maybe_text("on-cbw-error") == Some("break-guest-write") {
        filter.break_writes();
    }
    let over = Arc::clone(&filter);
    let mark = async || {
        filter.mark(what).await?;
        let Some(bitmap) = &bitmap else { return Ok(()) };
        bitmap.begin().await?;
        if what == What::Marked {
            bitmap.mark(filter.left()).await?;
        }
        Ok(())
    };
    let put = inventory.graph.put_filter_over(change, &disk, Box::new(|_| over), mark).await;
    put.map_err(|error| not_begun(&error))?;
    if let Some(group) = &group {
        group.join();
    }
    new.group = group;
    let work = Work::Disk { disk, task: Task::Backup(Backup { filter, what, pace }), bitmap };
    inventory.jobs.start(new, work, holds);
    Ok(json!({}))
}

/// Whether a target that was not written yet holds nothing but zeroes. Ends at the first of anything else.
async fn reads_as_zeroes(target: &dyn Block) -> Result<bool, QmpError> {
    let mut at = 0;
    while at < target.size() {
        let status = target.block_status(at, target.size() - at).await;
        let status = status.map_err(|error| {
            QmpError::because(format!("cannot read the map of {:?}", target.name()), &error)
        })?;
        if !status.zero {
            return Ok(false);
        }
        at += status.len;
    }
    Ok(true)
}

/// What is written: the disk of the target, or its image compressed.
fn target_block(node: &Arc<DiskNode>, arguments: Arguments<'_>) -> Result<Arc<dyn Block>, QmpError> {
    if !arguments.is_on("compress") {
        return Ok(Arc::clone(&node.disk) as _);
    }
    let compressing = node.disk.compressing();
    let compressing = compressing.map_err(|error| {
        QmpError::because(format!("the target {:?} takes no compressed data", node.name()), &error)
    })?;
    Ok(Arc::new(compressing))
}

/// The unit of a copy and how it is done, by `x-perf`. The kernel copies whenever source and target support
/// it: `use-copy-range` is accepted and changes nothing.
fn pace(arguments: Arguments<'_>, unit: u64) -> Result<(u64, BackupPace), QmpError> {
    let mut pace = BackupPace::default();
    let Some(perf) = arguments.maybe_object("x-perf") else { return Ok((unit, pace)) };
    let unit = match perf.maybe_whole("min-cluster-size") {
        None | Some(0) => unit,
        Some(least) if least.is_power_of_two() && least <= UNIT_BYTES_MAX => unit.max(least),
        Some(least) => {
            return Err(QmpError::generic(format!(
                "argument 'x-perf.min-cluster-size' is {least}; allowed: a power of two up to 64 MiB"
            )));
        }
    };
    match perf.maybe_whole("max-workers") {
        Some(0) => {
            return Err(QmpError::generic("argument 'x-perf.max-workers' is 0; allowed: 1 or more"));
        }
        // At most WORKERS_MAX.
        Some(workers) => pace.workers = workers.min(WORKERS_MAX) as usize,
        None => {}
    }
    match perf.maybe_whole("max-chunk") {
        None | Some(0) => {}
        Some(most) if most < unit => {
            return Err(QmpError::generic(format!(
                "argument 'x-perf.max-chunk' is {most}; the unit of this copy is {unit}, allowed: 0, or that much and more"
            )));
        }
        Some(most) => pace.piece_bytes = most.min(PIECE_BYTES_MAX),
    }
    Ok((unit, pace))
}
