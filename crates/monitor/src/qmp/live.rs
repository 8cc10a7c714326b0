//! blockdev-mirror, drive-mirror: jobs that copy a disk are begun.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use block::Block;
use control::{QmpError, arguments, choice};
use graph::drivers::{elsewhere, is_snapshot};
use graph::{Change, DiskNode, User, tracking_unit};
use job::{Dirty, MirrorJob, Over, Pivot, Task, Terms, Tracked, What};
use tool::info::read::named_in_header;

use super::active;
use super::bitmap_sync::{self, Copied, Sync};
use super::chain::{Chain, free_of_jobs, hold};
use super::jobs::CopyMode;
use super::new_target::{self, NewTarget, Target};
use super::overlay::Mode;
use crate::inventory::Inventory;
use crate::jobs::{BitmapSync, NewJob, Work, on_error};

/// The smallest and the largest unit, as in QEMU.
const UNITS: std::ops::RangeInclusive<u64> = 512..=64 << 20;

arguments! {
    /// blockdev-mirror.
    pub struct Mirror {
        job_id: Option<String>, device: String, target: String, replaces: Option<String>, ..copied: Copied,
        speed: Option<u64>, granularity: Option<u32>, buf_size: Option<u64>,
        on_source_error: Option<OnError>, on_target_error: Option<OnError>, copy_mode: Option<CopyMode>,
        "target-is-zero": Option<bool>, x_converge_after: Option<u32>, filter_node_name: Option<String>,
        auto_finalize: Option<bool>, auto_dismiss: Option<bool>,
    }

    /// drive-mirror, beside what it has of blockdev-mirror.
    pub struct DriveMirror {
        "job-id": Option<String>, "device": String, "target": String,
        format: Option<String>, node_name: Option<String>, "replaces": Option<String>, ..copied: Copied,
        mode: Option<Mode>, "speed": Option<u64>, "granularity": Option<u32>, "buf-size": Option<u64>,
        "on-source-error": Option<OnError>, "on-target-error": Option<OnError>, unmap: Option<bool>,
        "copy-mode": Option<CopyMode>, "x-converge-after": Option<u32>,
        "auto-finalize": Option<bool>, "auto-dismiss": Option<bool>,
    }
}

choice! {
    /// What follows a failed request of a job.
    pub enum OnError { Report, Ignore, Enospc, Stop, Auto }
}

/// How a job is called and lives.
#[derive(Default)]
pub(super) struct JobOptions<'a> {
    pub id: Option<&'a str>,
    pub speed: Option<u64>,
    pub on_source_error: Option<OnError>,
    pub on_target_error: Option<OnError>,
    pub auto_finalize: Option<bool>,
    pub auto_dismiss: Option<bool>,
}

/// Those among the arguments of a command.
macro_rules! job_options {
    ($arguments:ident) => {
        job_options!($arguments, None, None)
    };
    ($arguments:ident, $on_source_error:expr, $on_target_error:expr) => {
        $crate::qmp::live::JobOptions {
            id: $arguments.job_id.as_deref(),
            speed: $arguments.speed,
            on_source_error: $on_source_error,
            on_target_error: $on_target_error,
            auto_finalize: $arguments.auto_finalize,
            auto_dismiss: $arguments.auto_dismiss,
        }
    };
}
pub(super) use job_options;

/// What every job is given.
pub(super) fn new_job(
    inventory: &Inventory,
    kind: &'static str,
    device: &str,
    options: JobOptions<'_>,
) -> Result<NewJob, QmpError> {
    let id = match options.id {
        Some(id) => id.to_owned(),
        // What QEMU's daemon has are nodes, after which no job is called.
        None if inventory.as_qemu => return Err(QmpError::generic("argument 'job-id' is missing")),
        None => device.to_owned(),
    };
    inventory.jobs.check_new(&id)?;
    let terms = Terms {
        id,
        on_source_error: on_error(options.on_source_error.map(OnError::name)),
        on_target_error: on_error(options.on_target_error.map(OnError::name)),
        waits_for_finalize: options.auto_finalize == Some(false),
        waits_for_dismiss: options.auto_dismiss == Some(false),
    };
    Ok(NewJob {
        kind,
        terms,
        speed: options.speed.unwrap_or(0),
        group: None,
        layers: Vec::new(),
        target: None,
        filter: None,
    })
}

/// Gives the filter that a job has over a disk the name that `filter-node-name` says.
pub(super) fn name_filter(
    inventory: &Inventory,
    change: &Change<'_>,
    name: Option<&String>,
    new: &mut NewJob,
    (driver, over): (&'static str, (&DiskNode, Option<String>)),
) -> Result<(), QmpError> {
    let Some(name) = name else { return Ok(()) };
    let job = User { kind: "job", name: new.terms.id.clone() };
    let named = inventory.graph.name_job_filter(change, name, driver, over, job);
    new.filter = Some(named.map_err(|error| {
        inventory.jobs.tell_not_begun(&new.terms.id);
        inventory.refused(&error)
    })?);
    Ok(())
}

pub(super) fn not_begun(error: &(dyn std::error::Error + 'static)) -> QmpError {
    QmpError::because("the job is not begun", error)
}

/// Puts a tracking filter over a disk. What is to be copied first is marked in the same drained step.
async fn track(
    inventory: &Inventory,
    change: &Change<'_>,
    disk: &DiskNode,
    tracked: &Arc<Tracked>,
    what: What,
    bitmap: Option<&BitmapSync>,
) -> Result<job::Mirror, QmpError> {
    let mark = async |dirty: &Dirty| match bitmap {
        Some(bitmap) if what == What::Marked => bitmap.mark(dirty).await,
        _ => Ok(()),
    };
    let put = inventory.graph.put_tracked_over(change, disk, tracked, what, mark).await;
    put.map_err(|error| not_begun(&error))
}

/// A target, as a disk of its own.
pub(super) fn target_of(
    inventory: &Inventory,
    source: &DiskNode,
    name: &str,
) -> Result<Arc<DiskNode>, QmpError> {
    let target = inventory.graph.disk(name).map_err(|error| inventory.refused(&error))?;
    if std::ptr::eq(&*target, source) {
        return Err(QmpError::generic("source and target are one disk"));
    }
    check_apart(inventory, source, &target)?;
    free_of_jobs(inventory, &target)?;
    active::check(&target)?;
    if target.disk.read_only() {
        return Err(QmpError::generic(format!("the target {name:?} is read-only")));
    }
    Ok(target)
}

/// Refuses a target that is not as large as the source.
pub(super) fn check_size(source: &DiskNode, target: &DiskNode) -> Result<(), String> {
    let (found, needed) = (target.disk.size(), source.disk.size());
    match found == needed {
        true => Ok(()),
        false => Err(format!("the target {:?} has {found} bytes, the source {needed}", target.name())),
    }
}

/// Refuses a target over the source, or one that a job copies to the source: a copy to it would wait for itself. And a source over the
/// target, but for a snapshot, which stays as it is while the disk below it becomes what it was.
fn check_apart(inventory: &Inventory, source: &DiskNode, target: &DiskNode) -> Result<(), QmpError> {
    let (from, to) = (source.name(), target.name());
    let over = match inventory.graph.stands_on(&to, &from) {
        true => Some((&to, &from)),
        false if is_snapshot(source.disk.root().driver()) => None,
        false => inventory.graph.stands_on(&from, &to).then_some((&from, &to)),
    };
    match over {
        Some((upper, lower)) => Err(QmpError::generic(format!(
            "source and target are one disk: node {upper:?} is backed by node {lower:?}"
        ))),
        None if inventory.graph.sends_to(&to, &from) => Err(QmpError::generic(format!(
            "a job copies what is written to the target {to:?} to the source {from:?}: a copy to it would wait for itself"
        ))),
        None => Ok(()),
    }
}

/// A target that does not get all of a disk is read over another image later, whether its header names one yet or not.
pub(super) fn await_backing(target: &DiskNode, what: What) {
    if let Some(image) = target.disk.image().filter(|_| what != What::Everything) {
        image.await_backing();
    }
}

/// A copy is kept in step with a disk.
pub async fn mirror(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: &Mirror,
) -> Result<(), QmpError> {
    begin_mirror(inventory, change, arguments, (Target::Node(&arguments.target), false)).await
}

/// `is_made`: the target's file is a new one.
async fn begin_mirror(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: &Mirror,
    (target, is_made): (Target<'_>, bool),
) -> Result<(), QmpError> {
    let device = &arguments.device;
    let chain = Chain::of(inventory, device)?;
    let options = job_options!(arguments, arguments.on_source_error, arguments.on_target_error);
    let mut new = new_job(inventory, "mirror", device, options)?;
    new.target = target.own();
    let target = target.node();
    // The disk may switch to the copy in the end, and then all its layers are removed.
    chain.check_unshown(0, chain.layers.len())?;
    new.layers = chain.claim(inventory, 0..chain.layers.len(), None)?;
    let Chain { disk, .. } = chain;
    if let Some(owner) = disk.owner() {
        return Err(QmpError::generic(format!(
            "node {device:?} is a layer of node {:?}, in whose place no copy can be put: mirror that",
            owner.name()
        )));
    }
    let (what, bitmap) = bitmap_sync::of(inventory, &disk, &arguments.copied)?;
    let replaces = replaced_child(inventory, &disk, arguments)?;
    let node = target_of(inventory, &disk, target)?;
    if inventory.graph.is_over_changing(&node.name()) {
        return Err(QmpError::generic(format!(
            "node {target:?} is backed by a disk that is written: it cannot take the place of one"
        )));
    }
    let block: Arc<dyn Block> = Arc::clone(&node.disk) as _;
    let unit = match arguments.granularity.map(u64::from) {
        None | Some(0) => tracking_unit(&*block),
        Some(unit) if unit.is_power_of_two() && UNITS.contains(&unit) => unit,
        Some(unit) => {
            return Err(QmpError::generic(format!(
                "argument 'granularity' is {unit}; allowed: a power of two from 512 to 64 MiB"
            )));
        }
    };
    let is_synchronous = arguments.copy_mode == Some(CopyMode::WriteBlocking);
    let over = match Over::of(what, &*disk.disk.top_image(), &*node.disk.top_image()) {
        // What its server has below it, for instance the same base on another machine, is not known here.
        Over::Below if node.disk.image().is_none() && elsewhere(&node.path()).is_some() => Over::Own,
        over => over,
    };
    if over != Over::Own && node.disk.image().is_none() {
        return Err(QmpError::generic(format!(
            "the target {target:?} is raw and holds all of a disk: give sync full"
        )));
    }
    if let Err(why) = check_size(&disk, &node) {
        // QEMU's clients expect a job that fails.
        inventory.jobs.start(new, Work::Refused { why }, Vec::new());
        return Ok(());
    }
    await_backing(&node, what);
    let holds = hold(inventory, &new.terms.id, &disk, Some(&node))?;
    let name = arguments.filter_node_name.as_ref();
    name_filter(inventory, change, name, &mut new, ("mirror_top", (&disk, None)))?;
    let tracked = Tracked::new("mirror_top", disk.disk.root(), block, unit, is_synchronous);
    let mirror = track(inventory, change, &disk, &tracked, what, bitmap.as_ref()).await?;
    // QEMU puts only what it has made over layers of the disk. A backing file that the header names may not be there yet: until it is opened the target
    // is put over those layers.
    let top = node.disk.top_image();
    let is_bare =
        inventory.as_qemu && !is_made && named_in_header(&top, Path::new(top.name())).await.is_none();
    let over = if is_bare { Over::Own } else { over };
    let pivot = Pivot::Target { name: node.name(), over, replaces };
    let mut mirror = mirror.in_pieces_of(arguments.buf_size.unwrap_or(0));
    if let Some(rounds) = arguments.x_converge_after {
        mirror = mirror.converging_after(rounds);
    }
    let task = Task::Mirror(MirrorJob { mirror, pivot });
    inventory.jobs.start(new, Work::Disk { disk, task, bitmap }, holds);
    Ok(())
}

/// The disk below the source in whose place the copy is to be put, if it is not the source itself.
fn replaced_child(
    inventory: &Inventory,
    disk: &DiskNode,
    arguments: &Mirror,
) -> Result<Option<String>, QmpError> {
    let Some(child) = arguments.replaces.as_ref().filter(|name| **name != disk.name()) else {
        return Ok(None);
    };
    let checked = inventory.graph.check_replaced_child(disk, child);
    checked.map_err(|error| {
        let error = inventory.refused(&error);
        QmpError::generic(format!(
            "argument 'replaces' is {child:?}: only the uppermost image of the source can be replaced, or what its filter is over, if nothing else uses that; {error}"
        ))
    })?;
    if arguments.copied.sync != Sync::Full {
        return Err(QmpError::generic(
            "what takes the place of a disk below a filter holds all of it: give sync full",
        ));
    }
    Ok(Some(child.clone()))
}

/// Likewise, with the target's file made or opened here.
pub async fn drive_mirror(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    (mirror, given): (&Mirror, &DriveMirror),
) -> Result<(), QmpError> {
    if mirror.replaces.is_some() && given.node_name.is_none() {
        return Err(QmpError::generic(
            "argument 'replaces' needs argument 'node-name': the copy takes a place under that name",
        ));
    }
    let new = NewTarget {
        device: &mirror.device,
        file: &mirror.target,
        format: given.format.as_deref(),
        is_made: given.mode != Some(Mode::Existing),
        sync: given.copied.sync,
        node_name: given.node_name.as_ref(),
        keeps_zeroes: given.unmap == Some(false),
        keeps_backing: inventory.as_qemu,
    };
    let begin =
        async |target: Target<'_>| begin_mirror(inventory, change, mirror, (target, new.is_made)).await;
    new_target::with(inventory, change, &new, begin).await
}
