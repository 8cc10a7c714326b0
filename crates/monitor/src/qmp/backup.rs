//! blockdev-backup, drive-backup: a copy of a disk as it is now.

use std::rc::Rc;
use std::sync::Arc;

use block::Block;
use control::{QmpError, arguments, choice};
use graph::drivers::is_snapshot;
use graph::{Change, DiskNode, tracking_unit};
use job::{BackupPace, BeforeWrite, Task, What};

use super::bitmap_sync::{self, Copied, Sync};
use super::chain::{Chain, hold};
use super::live::{
    OnError, await_backing, check_size, job_options, name_filter, new_job, not_begun, target_of,
};
use super::new_target::{self, NewTarget, Target};
use super::overlay::Mode;
use crate::inventory::Inventory;
use crate::jobs::{Group, Work};

/// Bytes of a piece at most, also if a user sets more: it is held in memory, once for each worker.
const PIECE_BYTES_MAX: u64 = 16 << 20;
/// Pieces in flight at most, also if a user sets more.
const WORKERS_MAX: u64 = 64;
/// The largest unit of a copy.
const UNIT_BYTES_MAX: u64 = 64 << 20;

arguments! {
    /// blockdev-backup.
    pub struct Backup {
        job_id: Option<String>, device: String, target: String, ..copied: Copied, compress: Option<bool>,
        speed: Option<u64>, on_source_error: Option<OnError>, on_target_error: Option<OnError>,
        on_cbw_error: Option<OnCbwError>, x_perf: Option<Perf>, discard_source: Option<bool>,
        filter_node_name: Option<String>, auto_finalize: Option<bool>, auto_dismiss: Option<bool>,
    }

    /// drive-backup.
    pub struct DriveBackup { ..backup: Backup, format: Option<String>, mode: Option<Mode> }

    /// How it copies. The kernel copies whenever source and target support it: `use-copy-range` changes nothing.
    pub struct Perf {
        "use-copy-range": Option<bool>, max_workers: Option<u64>, max_chunk: Option<u64>,
        min_cluster_size: Option<u64>,
    }
}

choice! {
    /// What ends where the data of before cannot be kept.
    pub enum OnCbwError { BreakGuestWrite, BreakSnapshot }
}

/// A copy of a disk, in a node.
///
/// # Errors
/// When an argument means nothing here, something is in use, or the target does not fit.
pub async fn blockdev_backup(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: &Backup,
    group: Option<Rc<Group>>,
) -> Result<(), QmpError> {
    begin(inventory, change, arguments, Target::Node(&arguments.target), group).await
}

/// Likewise, with the target's file made or opened here.
///
/// # Errors
/// As [`blockdev_backup`]; when the file cannot be made or opened.
pub async fn drive_backup(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    DriveBackup { backup, format, mode }: &DriveBackup,
    group: Option<Rc<Group>>,
) -> Result<(), QmpError> {
    let begin = async |target: Target<'_>| begin(inventory, change, backup, target, group).await;
    let new = NewTarget {
        device: &backup.device,
        file: &backup.target,
        format: format.as_deref(),
        is_made: *mode != Some(Mode::Existing),
        sync: backup.copied.sync,
        node_name: None,
        keeps_zeroes: false,
        keeps_backing: false,
    };
    new_target::with(inventory, change, &new, begin).await
}

async fn begin(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: &Backup,
    target: Target<'_>,
    group: Option<Rc<Group>>,
) -> Result<(), QmpError> {
    let device = &arguments.device;
    let chain = Chain::of(inventory, device)?;
    let options = job_options!(arguments, arguments.on_source_error, arguments.on_target_error);
    let mut new = new_job(inventory, "backup", device, options)?;
    new.target = target.own();
    let target = target.node();
    new.layers = chain.claim(inventory, 0..1, Some(0))?;
    let disk = chain.disk;
    let (what, bitmap) = bitmap_sync::of(inventory, &disk, &arguments.copied)?;
    let node = target_of(inventory, &disk, target)?;
    check_size(&disk, &node).map_err(QmpError::generic)?;
    let block = target_block(&node, arguments.compress == Some(true))?;
    let what = match what {
        // An image without a backing file: what it does not have reads as zeroes, as all of the target does.
        What::Everything if arguments.copied.sync == Sync::Top && disk.disk.image().is_some() => {
            if reads_as_zeroes(&*block).await? {
                What::Layers(1)
            } else {
                what
            }
        }
        what => what,
    };
    let discards = arguments.discard_source == Some(true);
    if discards && !is_snapshot(disk.disk.root().driver()) {
        return Err(QmpError::generic(format!(
            "argument 'discard-source' is true and node {device:?} is no snapshot-access filter: what is copied would be lost to its clients"
        )));
    }
    let (unit, pace) = pace(arguments.x_perf.as_ref(), tracking_unit(&*block))?;
    await_backing(&node, what);
    let holds = hold(inventory, &new.terms.id, &disk, Some(&node))?;
    let name = arguments.filter_node_name.as_ref();
    name_filter(inventory, change, name, &mut new, ("copy-before-write", (&disk, None)))?;
    let since = bitmap.as_ref().map(|bitmap| bitmap.granularity_bytes);
    let filter = BeforeWrite::new(disk.disk.root(), block, unit, since, discards);
    if arguments.on_cbw_error == Some(OnCbwError::BreakGuestWrite) {
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
    let work = Work::Disk { disk, task: Task::Backup(job::Backup { filter, what, pace }), bitmap };
    inventory.jobs.start(new, work, holds);
    Ok(())
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
fn target_block(node: &Arc<DiskNode>, compress: bool) -> Result<Arc<dyn Block>, QmpError> {
    if !compress {
        return Ok(Arc::clone(&node.disk) as _);
    }
    let compressing = node.disk.compressing();
    let compressing = compressing.map_err(|error| {
        QmpError::because(format!("the target {:?} takes no compressed data", node.name()), &error)
    })?;
    Ok(Arc::new(compressing))
}

/// The unit of a copy and how it is done.
fn pace(perf: Option<&Perf>, unit: u64) -> Result<(u64, BackupPace), QmpError> {
    let mut pace = BackupPace::default();
    let Some(perf) = perf else { return Ok((unit, pace)) };
    let unit = match perf.min_cluster_size {
        None | Some(0) => unit,
        Some(least) if least.is_power_of_two() && least <= UNIT_BYTES_MAX => unit.max(least),
        Some(least) => {
            return Err(QmpError::generic(format!(
                "argument 'x-perf.min-cluster-size' is {least}; allowed: a power of two up to 64 MiB"
            )));
        }
    };
    match perf.max_workers {
        Some(0) => {
            return Err(QmpError::generic("argument 'x-perf.max-workers' is 0; allowed: 1 or more"));
        }
        // At most WORKERS_MAX.
        Some(workers) => pace.workers = workers.min(WORKERS_MAX) as usize,
        None => {}
    }
    match perf.max_chunk {
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
