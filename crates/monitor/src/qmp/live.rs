//! blockdev-mirror, drive-mirror: jobs that copy a disk are begun.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use block::Block;
use control::{Arguments, QmpError};
use graph::drivers::{elsewhere, is_snapshot};
use graph::{Change, DiskNode, User, tracking_unit};
use job::{Dirty, Mirror, MirrorJob, Over, Pivot, Task, Terms, Tracked, What};
use serde_json::{Value, json};
use tool::info::read::named_in_header;

use super::active;
use super::chain::{Chain, free_of_jobs, hold};
use super::new_target::Target;
use super::{bitmap_sync, new_target};
use crate::inventory::Inventory;
use crate::jobs::{BitmapSync, NewJob, Work, on_error};

/// The smallest and the largest unit, as in QEMU.
const UNITS: std::ops::RangeInclusive<u64> = 512..=64 << 20;

/// What every job is given.
pub(super) fn new_job(
    inventory: &Inventory,
    kind: &'static str,
    device: &str,
    arguments: Arguments<'_>,
) -> Result<NewJob, QmpError> {
    let id = match arguments.maybe_text("job-id") {
        Some(id) => id.to_owned(),
        // What QEMU's daemon has are nodes, after which no job is called.
        None if inventory.as_qemu => return Err(QmpError::generic("argument 'job-id' is missing")),
        None => device.to_owned(),
    };
    inventory.jobs.check_new(&id)?;
    let both = arguments.maybe_text("on-error");
    let policy = |name: &str| on_error(arguments.maybe_text(name).or(both));
    let terms = Terms {
        id,
        on_source_error: policy("on-source-error"),
        on_target_error: policy("on-target-error"),
        waits_for_finalize: arguments.maybe_switch("auto-finalize") == Some(false),
        waits_for_dismiss: arguments.maybe_switch("auto-dismiss") == Some(false),
    };
    Ok(NewJob {
        kind,
        terms,
        speed: arguments.maybe_whole("speed").unwrap_or(0),
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
    arguments: Arguments<'_>,
    new: &mut NewJob,
    (driver, over): (&'static str, (&DiskNode, Option<String>)),
) -> Result<(), QmpError> {
    let Some(name) = arguments.maybe_text("filter-node-name") else { return Ok(()) };
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

/// The sizes of pieces, and when guests are made to write to both sides.
pub(super) fn converging(mirror: Mirror, arguments: Arguments<'_>) -> Mirror {
    let mirror = mirror.in_pieces_of(arguments.maybe_whole("buf-size").unwrap_or(0));
    match arguments.maybe_whole("x-converge-after") {
        // The schema has it below 2^32.
        Some(rounds) => mirror.converging_after(u32::try_from(rounds).unwrap_or(u32::MAX)),
        None => mirror,
    }
}

/// Puts a tracking filter over a disk. What is to be copied first is marked in the same drained step.
async fn track(
    inventory: &Inventory,
    change: &Change<'_>,
    disk: &DiskNode,
    tracked: &Arc<Tracked>,
    what: What,
    bitmap: Option<&BitmapSync>,
) -> Result<Mirror, QmpError> {
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
    arguments: Arguments<'_>,
) -> Result<Value, QmpError> {
    begin_mirror(inventory, change, arguments, Target::Node(arguments.text("target")?)).await
}

async fn begin_mirror(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: Arguments<'_>,
    target: Target<'_>,
) -> Result<Value, QmpError> {
    let device = arguments.text("device")?;
    let chain = Chain::of(inventory, device)?;
    let mut new = new_job(inventory, "mirror", device, arguments)?;
    let is_made = matches!(target, Target::Own(_)) && arguments.maybe_text("mode") != Some("existing");
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
    let (what, bitmap) = bitmap_sync::of(inventory, &disk, arguments)?;
    let replaces = replaced_child(inventory, &disk, arguments)?;
    let node = target_of(inventory, &disk, target)?;
    if inventory.graph.is_over_changing(&node.name()) {
        return Err(QmpError::generic(format!(
            "node {target:?} is backed by a disk that is written: it cannot take the place of one"
        )));
    }
    let block: Arc<dyn Block> = Arc::clone(&node.disk) as _;
    let unit = match arguments.maybe_whole("granularity") {
        None | Some(0) => tracking_unit(&*block),
        Some(unit) if unit.is_power_of_two() && UNITS.contains(&unit) => unit,
        Some(unit) => {
            return Err(QmpError::generic(format!(
                "argument 'granularity' is {unit}; allowed: a power of two from 512 to 64 MiB"
            )));
        }
    };
    let is_synchronous = arguments.maybe_text("copy-mode") == Some("write-blocking");
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
        return Ok(json!({}));
    }
    await_backing(&node, what);
    let holds = hold(inventory, &new.terms.id, &disk, Some(&node))?;
    name_filter(inventory, change, arguments, &mut new, ("mirror_top", (&disk, None)))?;
    let tracked = Tracked::new("mirror_top", disk.disk.root(), block, unit, is_synchronous);
    let mirror = track(inventory, change, &disk, &tracked, what, bitmap.as_ref()).await?;
    // QEMU puts only what it has made over layers of the disk. A backing file that the header names may not be there yet: until it is opened the target
    // is put over those layers.
    let top = node.disk.top_image();
    let is_bare =
        inventory.as_qemu && !is_made && named_in_header(&top, Path::new(top.name())).await.is_none();
    let over = if is_bare { Over::Own } else { over };
    let pivot = Pivot::Target { name: node.name(), over, replaces };
    let task = Task::Mirror(MirrorJob { mirror: converging(mirror, arguments), pivot });
    inventory.jobs.start(new, Work::Disk { disk, task, bitmap }, holds);
    Ok(json!({}))
}

/// The disk below the source in whose place the copy is to be put, if it is not the source itself.
fn replaced_child(
    inventory: &Inventory,
    disk: &DiskNode,
    arguments: Arguments<'_>,
) -> Result<Option<String>, QmpError> {
    let Some(child) = arguments.maybe_text("replaces").filter(|name| *name != disk.name()) else {
        return Ok(None);
    };
    let checked = inventory.graph.check_replaced_child(disk, child);
    checked.map_err(|error| {
        let error = inventory.refused(&error);
        QmpError::generic(format!(
            "argument 'replaces' is {child:?}: only the uppermost image of the source can be replaced, or what its filter is over, if nothing else uses that; {error}"
        ))
    })?;
    if arguments.text("sync")? != "full" {
        return Err(QmpError::generic(
            "what takes the place of a disk below a filter holds all of it: give sync full",
        ));
    }
    Ok(Some(child.to_owned()))
}

/// Likewise, with the target's file made or opened here.
pub async fn drive_mirror(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: Arguments<'_>,
) -> Result<Value, QmpError> {
    if arguments.has("replaces") && !arguments.has("node-name") {
        return Err(QmpError::generic(
            "argument 'replaces' needs argument 'node-name': the copy takes a place under that name",
        ));
    }
    let begin = async |target: Target<'_>| begin_mirror(inventory, change, arguments, target).await;
    new_target::with(inventory, change, arguments, inventory.as_qemu, begin).await
}
