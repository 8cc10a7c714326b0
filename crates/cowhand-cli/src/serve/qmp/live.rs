//! block-stream, block-commit, blockdev-mirror, drive-mirror: jobs are begun.

use std::rc::Rc;
use std::sync::Arc;

use block::Block;
use control::{Arguments, QmpError};
use graph::{Change, DiskNode};
use job::{Guarded, Merge, Mirror, Stream, Terms, Tracked, What};
use qcow2::{Qcow2, ResizeOptions};
use serde_json::{Value, json};

use super::chain::{Chain, free_of_jobs, hold};
use super::{bitmap_sync, new_target};
use crate::serve::inventory::Inventory;
use crate::serve::jobs::{BitmapSync, Jobs, NewJob, Pivot, Work, file_name, on_error};

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
    Ok(NewJob { kind, terms, speed: arguments.maybe_whole("speed").unwrap_or(0), group: None })
}

/// The name and the format that the header of an image is to give to `below`.
fn named(arguments: Arguments<'_>, below: Option<&Arc<dyn Block>>) -> Option<(String, String)> {
    let below = below?;
    let name = arguments.maybe_text("backing-file").map(str::to_owned);
    Some((name.unwrap_or_else(|| file_name(&**below)), below.driver().to_owned()))
}

pub(super) fn not_begun(error: &dyn std::error::Error) -> QmpError {
    QmpError::because("the job is not begun", error)
}

/// A disk takes over what lies below it.
pub async fn stream(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: Arguments<'_>,
) -> Result<Value, QmpError> {
    let device = arguments.text("device")?;
    let Chain { disk, layers } = &Chain::of(inventory, device)?;
    let chain = Chain { disk: Arc::clone(disk), layers: layers.clone() };
    let new = new_job(inventory, "stream", device, arguments)?;
    let Some(image) = layers.first().map(|layer| Arc::clone(&layer.block)) else { return Ok(json!({})) };
    if disk.disk.read_only() || image.downcast_ref::<Qcow2>().is_none() {
        return Err(QmpError::generic(format!("node {device:?} is no qcow2 image that can be written")));
    }
    let base = match (
        chain.find(arguments, "base-node", "base")?,
        chain.find(arguments, "bottom", "bottom-file")?,
    ) {
        (Some(_), Some(_)) => {
            return Err(QmpError::generic("give one of the arguments 'base', 'base-node' and 'bottom'"));
        }
        (base, None) => base,
        (None, Some(bottom)) if bottom + 1 < layers.len() => Some(bottom + 1),
        (None, Some(_)) => None,
    };
    if base == Some(0) {
        return Err(QmpError::generic("the base is the uppermost image itself; nothing lies between"));
    }
    let base_block = base.and_then(|base| layers.get(base)).map(|layer| Arc::clone(&layer.block));
    if arguments.has("backing-file") && base_block.is_none() {
        return Err(QmpError::generic(
            "argument 'backing-file' needs a base: without one there is no backing file",
        ));
    }
    let holds = hold(inventory, &new.terms.id, &[&disk.name()])?;
    let guarded = Guarded::new(disk.disk.root());
    let filter = Arc::clone(&guarded);
    let put = inventory.graph.put_filter_over(change, disk, Box::new(|_| filter), async || Ok(())).await;
    put.map_err(|error| not_begun(&error))?;
    let count = u32::try_from(base.unwrap_or(layers.len())).unwrap_or(u32::MAX);
    let stream = Stream::new(guarded, base_block.clone(), count);
    let backing = named(arguments, base_block.as_ref());
    let work = Work::Stream { disk: Arc::clone(disk), image, base: base_block, backing, stream };
    Jobs::start(inventory, new, work, holds);
    Ok(json!({}))
}

/// What images have goes into one below them.
pub async fn commit(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: Arguments<'_>,
) -> Result<Value, QmpError> {
    let device = arguments.text("device")?;
    let chain = Chain::of(inventory, device)?;
    let new = new_job(inventory, "commit", device, arguments)?;
    let top = chain.find(arguments, "top-node", "top")?.unwrap_or(0);
    let base = chain.find(arguments, "base-node", "base")?.unwrap_or(chain.layers.len() - 1);
    if base <= top {
        return Err(QmpError::generic("the base does not lie below the top; there is nothing to commit"));
    }
    if arguments.has("backing-file") && top == 0 {
        return Err(QmpError::generic(
            "argument 'backing-file' means nothing where the uppermost image is committed",
        ));
    }
    let disk = Arc::clone(&chain.disk);
    if disk.disk.read_only() && top == 0 {
        return Err(QmpError::generic(format!(
            "node {device:?} is read-only: commit the image below it, or reopen it"
        )));
    }
    let holds = hold(inventory, &new.terms.id, &[&disk.name()])?;
    let writable = async |at: usize| {
        let block = inventory.graph.layers(&disk.name()).map_err(|error| inventory.refused(&error))?;
        let block = block.get(at).map(|layer| Arc::clone(&layer.block));
        let block = block.ok_or_else(|| QmpError::generic("the chain is not that deep"))?;
        let opened = inventory.graph.make_writable(change, &disk, &block).await;
        opened.map_err(|error| not_begun(&error))
    };
    let target = writable(base).await?;
    let size = chain.layers.get(top).map_or(0, |layer| layer.block.size());
    grow(&target, size, top == 0).await?;
    let layers = u32::try_from(base - top).unwrap_or(u32::MAX);
    let work = if top == 0 {
        let what = What::Layers(layers);
        let tracked = Tracked::new("commit_top", disk.disk.root(), Arc::clone(&target), unit(&target), false);
        let mirror = track(inventory, change, &disk, &tracked, what, None).await?;
        Work::Mirror { disk, tracked, mirror, pivot: Pivot::Layer(target), bitmap: None }
    } else {
        let over = writable(top - 1).await?;
        let Some(top) = over.below() else { return Err(QmpError::generic("there is nothing to commit")) };
        let backing = named(arguments, Some(&target));
        Work::Merge { disk, over, backing, merge: Merge { top, layers, base: target } }
    };
    Jobs::start(inventory, new, work, holds);
    Ok(json!({}))
}

/// Makes a base as long as what is committed to it. One that is longer stays so below an overlay; a disk cannot become longer.
async fn grow(base: &Arc<dyn Block>, size: u64, is_pivot: bool) -> Result<(), QmpError> {
    let found = base.size();
    if found > size && is_pivot {
        return Err(QmpError::generic(format!(
            "the base {} has {found} bytes and the disk {size}: clients would see another size; resize the disk first",
            base.name()
        )));
    }
    if found >= size {
        return Ok(());
    }
    let image = base.downcast_ref::<Qcow2>().ok_or_else(|| {
        let name = base.name();
        QmpError::generic(format!(
            "the base {name} has {found} bytes, {size} are needed; resize it before it is opened"
        ))
    })?;
    image.resize(size, ResizeOptions::default()).await.map_err(|error| not_begun(&error))
}

/// The unit in which changes of a copy in `target` are tracked.
pub(super) fn unit(target: &Arc<dyn Block>) -> u64 {
    target.capabilities().cluster_bytes.unwrap_or(UNIT_BYTES).max(UNIT_BYTES)
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
    let mirror = Mirror::new(Arc::clone(tracked));
    let filter = Arc::clone(tracked);
    let mark = async || {
        mirror.mark(what).await?;
        match bitmap {
            Some(bitmap) if what == What::Marked => bitmap.mark(tracked.dirty()).await,
            _ => Ok(()),
        }
    };
    let put = inventory.graph.put_filter_over(change, disk, Box::new(|_| filter), mark).await;
    put.map_err(|error| not_begun(&error))?;
    Ok(mirror)
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
    let Chain { disk, layers } = Chain::of(inventory, device)?;
    let new = new_job(inventory, "mirror", device, arguments)?;
    let (what, bitmap) = bitmap_sync::of(inventory, &disk, arguments)?;
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
    if let Some(image) = node.disk.image().filter(|_| keeps_backing) {
        image.await_backing();
    }
    let holds = hold(inventory, &new.terms.id, &[&disk.name(), &node.name()])?;
    let tracked = Tracked::new("mirror_top", disk.disk.root(), block, unit, is_synchronous);
    let mirror = track(inventory, change, &disk, &tracked, what, bitmap.as_ref()).await?;
    let pivot = Pivot::Node { name: node.name(), keeps_backing };
    Jobs::start(inventory, new, Work::Mirror { disk, tracked, mirror, pivot, bitmap }, holds);
    Ok(json!({}))
}

/// Likewise, with the target's file made or opened here.
pub async fn drive_mirror(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: Arguments<'_>,
) -> Result<Value, QmpError> {
    let begin = async |name: &str| begin_mirror(inventory, change, arguments, name).await;
    new_target::with(inventory, change, arguments, 1, begin).await
}
