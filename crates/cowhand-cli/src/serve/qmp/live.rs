//! blockdev-mirror, drive-mirror, blockdev-backup: jobs that copy a disk are begun.

use std::rc::Rc;
use std::sync::Arc;

use block::Block;
use control::{Arguments, QmpError};
use graph::{Change, DiskNode};
use job::{Backup, BeforeWrite, Mirror, Terms, Tracked, What};
use serde_json::{Value, json};

use super::chain::{Chain, free_of_jobs, hold};
use super::overlay::make_overlay;
use crate::serve::inventory::Inventory;
use crate::serve::jobs::{Group, Jobs, NewJob, Pivot, Work, file_name, on_error};

/// The unit in which changes are tracked, unless the target has larger clusters or somebody says otherwise.
const UNIT_BYTES: u64 = 64 << 10;
/// The smallest and the largest unit, as in QEMU.
const UNITS: std::ops::RangeInclusive<u64> = 512..=64 << 20;

/// What every job is given.
pub(super) fn new_job(
    inventory: &Inventory,
    kind: &'static str,
    device: &str,
    arguments: Arguments<'_>,
) -> Result<NewJob, QmpError> {
    let id = arguments.maybe_text("job-id").unwrap_or(device).to_owned();
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
    })
}

pub(super) fn not_begun(error: &dyn std::error::Error) -> QmpError {
    QmpError::because("the job is not begun", error)
}

/// When guests are made to write to both sides.
pub(super) fn converging(mirror: Mirror, arguments: Arguments<'_>) -> Mirror {
    match arguments.maybe_whole("x-converge-after") {
        // The schema has it below 2^32.
        Some(rounds) => mirror.converging_after(u32::try_from(rounds).unwrap_or(u32::MAX)),
        None => mirror,
    }
}

/// The unit in which changes of a copy in `target` are tracked.
pub(super) fn unit(target: &Arc<dyn Block>) -> u64 {
    target.capabilities().cluster_bytes.unwrap_or(UNIT_BYTES).max(UNIT_BYTES)
}

/// Puts a tracking filter over a disk. What is to be copied first is marked in the same drained step.
pub(super) async fn track(
    inventory: &Inventory,
    change: &Change<'_>,
    disk: &DiskNode,
    tracked: &Arc<Tracked>,
    what: What,
) -> Result<Mirror, QmpError> {
    let mirror = Mirror::new(Arc::clone(tracked));
    let filter = Arc::clone(tracked);
    let mark = async || mirror.mark(what).await;
    let put = inventory.graph.put_filter_over(change, disk, Box::new(|_| filter), mark).await;
    put.map_err(|error| not_begun(&error))?;
    Ok(mirror)
}

/// A target, as a disk of its own.
fn target_of(inventory: &Inventory, source: &DiskNode, name: &str) -> Result<Arc<DiskNode>, QmpError> {
    let target = inventory.graph.disk(name).map_err(|error| inventory.refused(&error))?;
    if std::ptr::eq(&*target, source) {
        return Err(QmpError::generic("source and target are one disk"));
    }
    free_of_jobs(inventory, &target)?;
    if target.disk.read_only() {
        return Err(QmpError::generic(format!("the target {name:?} is read-only")));
    }
    let (found, needed) = (target.disk.size(), source.disk.size());
    match found == needed {
        true => Ok(target),
        false => {
            Err(QmpError::generic(format!("the target {name:?} has {found} bytes, the source {needed}")))
        }
    }
}

/// What a sync mode copies first. Layers of which the copy has its own are not copied.
fn what(sync: &str) -> Result<What, QmpError> {
    match sync {
        "full" => Ok(What::Everything),
        "top" => Ok(What::Layers(1)),
        "none" => Ok(What::Nothing),
        other => {
            Err(QmpError::generic(format!("argument 'sync' is {other:?}; allowed here: full, top, none")))
        }
    }
}

/// A copy is kept in step with a disk.
pub async fn mirror(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: Arguments<'_>,
) -> Result<Value, QmpError> {
    begin_mirror(inventory, change, arguments, arguments.text("target")?).await
}

async fn begin_mirror(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: Arguments<'_>,
    target: &str,
) -> Result<Value, QmpError> {
    let device = arguments.text("device")?;
    let chain = Chain::of(inventory, device)?;
    let mut new = new_job(inventory, "mirror", device, arguments)?;
    // The disk may stand on the copy in the end, and then all of them go.
    new.layers = chain.claim(inventory, 0, chain.layers.len() - 1)?;
    let Chain { disk, layers } = chain;
    let what = what(arguments.text("sync")?)?;
    if let Some(replaces) = arguments.maybe_text("replaces").filter(|name| *name != disk.name()) {
        return Err(QmpError::generic(format!(
            "argument 'replaces' is {replaces:?}; only the uppermost image {:?} can be replaced",
            disk.name()
        )));
    }
    let node = target_of(inventory, &disk, target)?;
    let block: Arc<dyn Block> = Arc::clone(&node.disk) as _;
    let unit = match arguments.maybe_whole("granularity") {
        None | Some(0) => unit(&block),
        Some(unit) if unit.is_power_of_two() && UNITS.contains(&unit) => unit,
        Some(unit) => {
            return Err(QmpError::generic(format!(
                "argument 'granularity' is {unit}; allowed: a power of two from 512 to 64 MiB"
            )));
        }
    };
    let is_synchronous = arguments.maybe_text("copy-mode") == Some("write-blocking");
    // A copy without a backing layer of its own, of which not everything is copied, stands on the source's.
    let has_more_below = layers.len() > 1;
    let keeps_backing = what != What::Everything && has_more_below && node.disk.top_image().below().is_none();
    if keeps_backing && node.disk.image().is_none() {
        return Err(QmpError::generic(format!(
            "the target {target:?} is raw and holds all of a disk: give sync full"
        )));
    }
    let holds = hold(inventory, &new.terms.id, &[&disk.name(), &node.name()])?;
    let tracked = Tracked::new("mirror_top", disk.disk.root(), block, unit, is_synchronous);
    let mirror = converging(track(inventory, change, &disk, &tracked, what).await?, arguments);
    let pivot = Pivot::Node { name: node.name(), keeps_backing };
    Jobs::start(inventory, new, Work::Mirror { disk, tracked, mirror, pivot }, holds);
    Ok(json!({}))
}

/// Likewise, with the target's file made or opened here.
pub async fn drive_mirror(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: Arguments<'_>,
) -> Result<Value, QmpError> {
    let device = arguments.text("device")?;
    let Chain { disk, layers } = Chain::of(inventory, device)?;
    let (file, sync) = (arguments.text("target")?, arguments.text("sync")?);
    let format = arguments.maybe_text("format").unwrap_or("qcow2");
    let is_made = arguments.maybe_text("mode") != Some("existing");
    if is_made {
        if format != "qcow2" {
            return Err(QmpError::generic(format!(
                "a new target of format {format:?} is not made here; make it, and give mode existing"
            )));
        }
        let below = layers.get(1).filter(|_| sync != "full").map(|layer| &layer.block);
        let backing = below.map(|below| (file_name(&**below), below.driver().to_owned()));
        make_overlay(file, disk.disk.size(), backing).await?;
    }
    let name = arguments
        .maybe_text("node-name")
        .map_or_else(|| format!("target-{}", disk.name().replace('#', "")), str::to_owned);
    let mut options = json!({
        "driver": format,
        "node-name": name,
        "discard": "unmap",
        "file": { "driver": "file", "filename": file },
    });
    if format == "qcow2" && sync != "full" {
        options["backing"] = Value::Null;
    }
    let begun = async {
        let Value::Object(options) = options else { return Err(QmpError::generic("options are an object")) };
        inventory.add_node(change, &options).await?;
        let begun = begin_mirror(inventory, change, arguments, &name).await;
        if begun.is_err() {
            inventory.remove_node(change, &name).await?;
        }
        begun
    };
    let begun = begun.await;
    if begun.is_err()
        && is_made
        && let Err(error) = std::fs::remove_file(file)
    {
        tracing::warn!(file, %error, "a target that was made for nothing stays");
    }
    begun
}

/// A copy of a disk as it is now.
pub async fn backup(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: Arguments<'_>,
    group: Option<Rc<Group>>,
) -> Result<Value, QmpError> {
    let device = arguments.text("device")?;
    let chain = Chain::of(inventory, device)?;
    let mut new = new_job(inventory, "backup", device, arguments)?;
    new.layers = chain.claim(inventory, 0, 0)?;
    let disk = chain.disk;
    let what = what(arguments.text("sync")?)?;
    let node = target_of(inventory, &disk, arguments.text("target")?)?;
    let block: Arc<dyn Block> = Arc::clone(&node.disk) as _;
    let holds = hold(inventory, &new.terms.id, &[&disk.name(), &node.name()])?;
    let filter = BeforeWrite::new(disk.disk.root(), Arc::clone(&block), unit(&block));
    let over = Arc::clone(&filter);
    let mark = async || filter.mark(what).await;
    let put = inventory.graph.put_filter_over(change, &disk, Box::new(|_| over), mark).await;
    put.map_err(|error| not_begun(&error))?;
    if let Some(group) = &group {
        group.join();
    }
    new.group = group;
    Jobs::start(inventory, new, Work::Backup { disk, backup: Backup { filter, what } }, holds);
    Ok(json!({}))
}
