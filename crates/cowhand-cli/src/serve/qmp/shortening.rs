//! block-stream, block-commit: jobs that make a chain shorter are begun.

use std::rc::Rc;
use std::sync::Arc;

use block::Block;
use control::{Arguments, QmpError};
use graph::{Change, CommitError, file_name};
use qcow2::Qcow2;
use serde_json::{Value, json};

use super::chain::{Chain, hold};
use super::live::{converging, name_filter, new_job, not_begun};
use crate::serve::inventory::Inventory;
use crate::serve::jobs::{Jobs, Work};

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
    let count = u32::try_from(base.unwrap_or(chain.layers.len()) - at).unwrap_or(u32::MAX);
    let backing = named(arguments, base_block.as_ref());
    let begun = inventory.graph.begin_stream(change, &chain.disk, (image, base_block), count, backing).await;
    let task = begun.map_err(|error| not_begun(&error))?;
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
    let named = arguments.maybe_text("backing-file").map(str::to_owned);
    let converging = |mirror| converging(mirror, arguments);
    let begun = inventory.graph.begin_commit(change, &chain.disk, (top, base), named, converging).await;
    match begun {
        Ok(task) => {
            Jobs::start(inventory, new, Work::Disk { disk: chain.disk, task, bitmap: None }, holds);
            Ok(json!({}))
        }
        Err(error) => {
            Jobs::tell_not_begun(inventory, &new.terms.id);
            Err(match error {
                CommitError::LongerBase { .. } | CommitError::Nothing => QmpError::generic(error.to_string()),
                CommitError::Exchange(_) | CommitError::Grow(_) => not_begun(&error),
            })
        }
    }
}

/// The name and the format that the header of an image is to give to `below`.
fn named(arguments: Arguments<'_>, below: Option<&Arc<dyn Block>>) -> Option<(String, String)> {
    let below = below?;
    let name = arguments.maybe_text("backing-file").map(str::to_owned);
    Some((name.unwrap_or_else(|| file_name(&**below)), below.driver().to_owned()))
}
