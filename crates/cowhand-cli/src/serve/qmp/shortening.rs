//! block-stream, block-commit: jobs that make a chain shorter are begun.

use std::rc::Rc;
use std::sync::Arc;

use block::Block;
use control::{Arguments, QmpError};
use graph::{Change, resize_raw};
use job::{Guarded, Merge, MirrorJob, Pivot, Stream, StreamJob, Task, Tracked, What};
use qcow2::{Qcow2, ResizeOptions};
use serde_json::{Value, json};

use super::chain::{Chain, hold};
use super::live::{converging, name_filter, new_job, not_begun, track, unit};
use crate::serve::inventory::Inventory;
use crate::serve::jobs::{Jobs, Work, file_name};

/// An image takes over what lies below it: the one that guests write to, or one further down.
pub async fn stream(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: Arguments<'_>,
) -> Result<Value, QmpError> {
    let device = arguments.text("device")?;
    let (chain, _) = Chain::around(inventory, device)?;
    chain.absorb_backing(inventory, change).await?;
    let (chain, at) = Chain::around(inventory, device)?;
    let mut new = new_job(inventory, "stream", device, arguments)?;
    let image = chain.layers.get(at).filter(|layer| layer.block.downcast_ref::<Qcow2>().is_some());
    if image.is_none() || (at == 0 && chain.disk.disk.read_only()) {
        return Err(QmpError::generic(format!("node {device:?} is no qcow2 image that can be written")));
    }
    let base = stream_base(&chain, at, arguments)?;
    chain.check_unshown(at + 1, base.unwrap_or(chain.layers.len()))?;
    chain.check_fixed(inventory).inspect_err(|_| Jobs::tell_not_begun(inventory, &new.terms.id))?;
    new.layers = chain.claim(inventory, at, base.unwrap_or(chain.lowest()))?;
    let holds = hold(inventory, &new.terms.id, &chain.disk, None)?;
    name_filter(inventory, change, arguments, &mut new, ("copy-on-read", &chain.disk))?;
    let image = chain.writable(inventory, change, at).await?;
    let base_block = base.and_then(|base| chain.layers.get(base)).map(|layer| Arc::clone(&layer.block));
    // Guests write to the uppermost image alone.
    let guarded = Guarded::new(if at == 0 { chain.disk.disk.root() } else { Arc::clone(&image) });
    if at == 0 {
        let filter = Arc::clone(&guarded);
        let put =
            inventory.graph.put_filter_over(change, &chain.disk, Box::new(|_| filter), async || Ok(())).await;
        put.map_err(|error| not_begun(&error))?;
    }
    let count = u32::try_from(base.unwrap_or(chain.layers.len()) - at).unwrap_or(u32::MAX);
    let stream = Stream::new(guarded, base_block.clone(), count);
    let backing = named(arguments, base_block.as_ref());
    let task = Task::Stream(StreamJob { stream, image, is_uppermost: at == 0, backing });
    Jobs::start(inventory, new, Work::Disk { disk: chain.disk, task, bitmap: None }, holds);
    Ok(json!({}))
}

/// The place of what the image at `at` stands on when it has taken over what is between; `None`: nothing.
fn stream_base(chain: &Chain, at: usize, arguments: Arguments<'_>) -> Result<Option<usize>, QmpError> {
    let base = match (
        chain.find(arguments, "base-node", "base")?,
        chain.find(arguments, "bottom", "bottom-file")?,
    ) {
        (Some(_), Some(_)) => {
            return Err(QmpError::generic("give one of the arguments 'base', 'base-node' and 'bottom'"));
        }
        (base, None) => base,
        (None, Some(bottom)) if bottom < at => Some(bottom),
        (None, Some(bottom)) if bottom + 1 < chain.layers.len() => Some(bottom + 1),
        (None, Some(_)) => None,
    };
    if base.is_some_and(|base| base <= at) {
        return Err(QmpError::generic(
            "the base is the image itself or lies over it; nothing lies between: name one below it",
        ));
    }
    if arguments.has("backing-file") && base.is_none() {
        return Err(QmpError::generic(
            "argument 'backing-file' needs a base: without one there is no backing file",
        ));
    }
    Ok(base)
}

/// What images have goes into one below them.
pub async fn commit(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: Arguments<'_>,
) -> Result<Value, QmpError> {
    let device = arguments.text("device")?;
    // libvirt finds out by this class what a server can do.
    inventory.check_device(device)?;
    Chain::below_filters(inventory, device)?.absorb_backing(inventory, change).await?;
    let chain = Chain::below_filters(inventory, device)?;
    let mut new = new_job(inventory, "commit", device, arguments)?;
    let top = chain.find(arguments, "top-node", "top")?.unwrap_or(0);
    let base = chain.find(arguments, "base-node", "base")?.unwrap_or(chain.lowest());
    if base <= top {
        return Err(QmpError::generic("the base does not lie below the top; there is nothing to commit"));
    }
    if arguments.has("backing-file") && top == 0 {
        return Err(QmpError::generic(
            "argument 'backing-file' means nothing where the uppermost image is committed",
        ));
    }
    if chain.disk.disk.read_only() && top == 0 {
        return Err(QmpError::generic(format!(
            "node {device:?} is read-only: commit the image below it, or reopen it"
        )));
    }
    chain.check_unshown(top, base)?;
    new.layers = chain.claim(inventory, top.saturating_sub(1), base)?;
    let holds = hold(inventory, &new.terms.id, &chain.disk, None)?;
    let driver = if top == 0 { "mirror_top" } else { "commit_top" };
    name_filter(inventory, change, arguments, &mut new, (driver, &chain.disk))?;
    match commit_task(inventory, change, arguments, &chain, (top, base)).await {
        Ok(task) => {
            Jobs::start(inventory, new, Work::Disk { disk: chain.disk, task, bitmap: None }, holds);
            Ok(json!({}))
        }
        Err(error) => {
            Jobs::tell_not_begun(inventory, &new.terms.id);
            chain.give_back(inventory, change, &[top.saturating_sub(1), base]).await;
            Err(error)
        }
    }
}

/// A commit of the layers from place `top` on into the one at `base`.
async fn commit_task(
    inventory: &Inventory,
    change: &Change<'_>,
    arguments: Arguments<'_>,
    chain: &Chain,
    (top, base): (usize, usize),
) -> Result<Task, QmpError> {
    let disk = Arc::clone(&chain.disk);
    let target = chain.writable(inventory, change, base).await?;
    let size = chain.layers.get(top).map_or(0, |layer| layer.block.size());
    grow(&target, size, top == 0).await?;
    let layers = u32::try_from(base - top).unwrap_or(u32::MAX);
    if top == 0 {
        let what = What::Layers(layers);
        let tracked = Tracked::new("commit_top", disk.disk.root(), Arc::clone(&target), unit(&target), false);
        let mirror = track(inventory, change, &disk, &tracked, what, None).await?;
        let mirror = converging(mirror, arguments);
        return Ok(Task::Mirror(MirrorJob { mirror, pivot: Pivot::Layer(target) }));
    }
    let over = chain.writable(inventory, change, top - 1).await?;
    let Some(top_block) = over.below() else { return Err(QmpError::generic("there is nothing to commit")) };
    let backing = named(arguments, Some(&target));
    Ok(Task::Commit(Merge { top: top_block, layers, base: target, over, is_uppermost: top == 1, backing }))
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
    let resized = match base.downcast_ref::<Qcow2>() {
        Some(image) => image.resize(size, ResizeOptions::default()).await,
        // It becomes longer: no request is in the way.
        None => resize_raw(&**base, size, ResizeOptions::default(), async || ()).await,
    };
    resized.map_err(|error| not_begun(&error))
}

/// The name and the format that the header of an image is to give to `below`.
fn named(arguments: Arguments<'_>, below: Option<&Arc<dyn Block>>) -> Option<(String, String)> {
    let below = below?;
    let name = arguments.maybe_text("backing-file").map(str::to_owned);
    Some((name.unwrap_or_else(|| file_name(&**below)), below.driver().to_owned()))
}
