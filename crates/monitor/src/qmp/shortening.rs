//! block-stream, block-commit: jobs that make a chain shorter are begun.

use std::rc::Rc;
use std::sync::Arc;

use control::{QmpError, arguments};
use graph::{Change, CommitError};
use job::Mirror;
use qcow2::Qcow2;

use super::chain::{Chain, hold};
use super::live::{OnError, job_options, name_filter, new_job, not_begun};
use crate::inventory::Inventory;
use crate::jobs::Work;

arguments! {
    /// block-stream.
    #[derive(Default)]
    pub struct Stream {
        job_id: Option<String>, device: String, base: Option<String>, base_node: Option<String>,
        bottom: Option<String>, backing_file: Option<String>, "backing-mask-protocol": Option<bool>,
        speed: Option<u64>, on_error: Option<OnError>, filter_node_name: Option<String>,
        auto_finalize: Option<bool>, auto_dismiss: Option<bool>,
    }

    /// block-commit.
    pub struct Commit {
        job_id: Option<String>, device: String, base: Option<String>, base_node: Option<String>,
        top: Option<String>, top_node: Option<String>, backing_file: Option<String>,
        "backing-mask-protocol": Option<bool>, speed: Option<u64>, on_error: Option<OnError>,
        x_converge_after: Option<u32>, filter_node_name: Option<String>, auto_finalize: Option<bool>,
        auto_dismiss: Option<bool>,
    }
}

/// Copies into an image what lies below it, so that the chain gets shorter. The image is the uppermost one or
/// one further down. `kind` is what clients call the job.
pub async fn stream(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    kind: &'static str,
    arguments: &Stream,
) -> Result<(), QmpError> {
    let device = &arguments.device;
    let (chain, _) = Chain::around(inventory, device)?;
    chain.absorb_backing(inventory, change).await?;
    let (chain, at) = Chain::around(inventory, device)?;
    let options = job_options!(arguments, arguments.on_error, arguments.on_error);
    let mut new = new_job(inventory, kind, device, options)?;
    let image = chain.layers.get(at).filter(|layer| layer.block.downcast_ref::<Qcow2>().is_some());
    if image.is_none() || (at == 0 && chain.disk.disk.read_only()) {
        return Err(QmpError::generic(format!("node {device:?} is no qcow2 image that can be written")));
    }
    let base = stream_base(inventory, &chain, at, arguments)?;
    let end = base.unwrap_or(chain.layers.len());
    chain.check_unshown(at + 1, end)?;
    chain.check_fixed(inventory).inspect_err(|_| inventory.jobs.tell_not_begun(&new.terms.id))?;
    new.layers = chain.claim(inventory, at..end, Some(at))?;
    let holds = hold(inventory, &new.terms.id, &chain.disk, None)?;
    let name = arguments.filter_node_name.as_ref();
    name_filter(inventory, change, name, &mut new, ("copy-on-read", (&chain.disk, None)))?;
    let image = chain.writable(inventory, change, at).await?;
    let layers = base.map(|base| u32::try_from(base - at).unwrap_or(u32::MAX));
    let backing = arguments.backing_file.clone();
    let begun = inventory.graph.begin_stream(change, &chain.disk, image, layers, backing).await;
    let task = begun.map_err(|error| not_begun(&error))?;
    inventory.jobs.start(new, Work::Disk { disk: chain.disk, task, bitmap: None }, holds);
    Ok(())
}

/// The place of what the image at `at` is over when it has taken over what is between; `None`: nothing.
fn stream_base(
    inventory: &Inventory,
    chain: &Chain,
    at: usize,
    arguments: &Stream,
) -> Result<Option<usize>, QmpError> {
    let filter = arguments.base_node.as_ref().and_then(|name| inventory.jobs.below_commit_filter(name));
    // What a commit puts in the place of its filter will be the base.
    let below_filter =
        filter.and_then(|top| chain.layers.iter().position(|layer| Arc::ptr_eq(&layer.block, &top)));
    let base = match below_filter {
        Some(below) if arguments.base.is_none() => Some(below),
        Some(_) | None => {
            chain.find(("base-node", arguments.base_node.as_ref()), ("base", arguments.base.as_ref()))?
        }
    };
    if let Some(base) = base.filter(|_| below_filter.is_none()) {
        chain.check_stays(inventory, base)?;
    }
    let base = match (base, chain.find(("bottom", arguments.bottom.as_ref()), ("", None))?) {
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
    if arguments.backing_file.is_some() && base.is_none() {
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
    arguments: &Commit,
) -> Result<(), QmpError> {
    let device = &arguments.device;
    // libvirt finds out by this class what a server can do.
    inventory.check_device(device)?;
    let mut chain = Chain::absorbed(inventory, change, device).await?;
    let disk = Arc::clone(&chain.disk);
    // An image that several disks are over is the uppermost one of a disk by itself.
    let top = |chain: &Chain| {
        chain.find(("top-node", arguments.top_node.as_ref()), ("top", arguments.top.as_ref()))
    };
    let base = |chain: &Chain| {
        chain.find(("base-node", arguments.base_node.as_ref()), ("base", arguments.base.as_ref()))
    };
    while top(&chain).and(base(&chain)).is_err()
        && let Some(below) = inventory.graph.disk_below(&chain.disk.name())
    {
        chain = Chain::absorbed(inventory, change, &below).await?;
    }
    let is_shared = !Arc::ptr_eq(&chain.disk, &disk);
    let options = job_options!(arguments, arguments.on_error, arguments.on_error);
    let mut new = new_job(inventory, "commit", device, options)?;
    let top = top(&chain)?.unwrap_or(0);
    let base = base(&chain)?.unwrap_or(chain.lowest());
    if base <= top {
        return Err(QmpError::generic("the base does not lie below the top; there is nothing to commit"));
    }
    if arguments.backing_file.is_some() && top == 0 && !is_shared {
        return Err(QmpError::generic(
            "argument 'backing-file' means nothing where the uppermost image is committed",
        ));
    }
    if chain.disk.disk.read_only() && top == 0 {
        return Err(QmpError::generic(format!(
            "node {device:?} is read-only: commit its backing file, or reopen it"
        )));
    }
    chain.check_unshown(top, base)?;
    if top > 0 {
        // The header of the image above is changed in the end. Streams of images further up may take it out meanwhile.
        chain.check_free(inventory, top - 1)?;
    }
    new.layers = chain.claim(inventory, top..base + 1, Some(base))?;
    let mut holds = hold(inventory, &new.terms.id, &chain.disk, None)?;
    if is_shared {
        holds.extend(hold(inventory, &new.terms.id, &disk, None)?);
    }
    let driver = if top == 0 && !is_shared { "mirror_top" } else { "commit_top" };
    let image = chain.layers.get(top).filter(|_| top > 0).and_then(|layer| layer.name.clone());
    let name = arguments.filter_node_name.as_ref();
    name_filter(inventory, change, name, &mut new, (driver, (&chain.disk, image)))?;
    let named = arguments.backing_file.clone();
    let named_in_images = named.clone();
    let converging = |mirror: Mirror| {
        let mirror = match arguments.x_converge_after {
            Some(rounds) => mirror.converging_after(rounds),
            None => mirror,
        };
        if is_shared { mirror.below_images(named_in_images) } else { mirror }
    };
    let begun = inventory.graph.begin_commit(change, &chain.disk, (top, base), named, converging).await;
    match begun {
        Ok(task) => {
            inventory.jobs.start(new, Work::Disk { disk: chain.disk, task, bitmap: None }, holds);
            Ok(())
        }
        Err(error) => {
            inventory.jobs.tell_not_begun(&new.terms.id);
            Err(match error {
                CommitError::LongerBase { .. } | CommitError::Nothing => QmpError::generic(error.to_string()),
                CommitError::Exchange(_) | CommitError::Grow(_) => not_begun(&error),
            })
        }
    }
}
