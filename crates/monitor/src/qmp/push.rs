//! cowhand-push: a disk goes to an object store as it is when the job begins, while its clients write.

use std::cell::RefCell;
use std::rc::Rc;

use checkpoints::PushTarget;
use control::QmpError;
use graph::Change;
use serde_json::{Value, json};

use super::chain::{Chain, hold};
use super::live::{job_options, new_job};
use super::publish::{Push, failed, target_of};
use crate::inventory::Inventory;
use crate::jobs::Work;

const KIND: &str = "cowhand-push";

/// Finds what is at the store. Other commands do not wait for that.
///
/// # Errors
/// When there is no such disk, the target is no name in a store, or the store does not answer.
pub async fn target(inventory: &Inventory, given: &Push) -> Result<PushTarget, QmpError> {
    inventory.disk(&given.node_name)?;
    PushTarget::find(target_of(&given.upload)?).await.map_err(failed)
}

/// Begins: what the disk reads as at this moment is pushed.
///
/// # Errors
/// When an argument means nothing here, a job has the disk, or there is no such bitmap.
pub async fn push(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    target: PushTarget,
    given: &Push,
) -> Result<Value, QmpError> {
    let chain = Chain::of(inventory, &given.node_name)?;
    let upload = &given.upload;
    let mut new = new_job(inventory, KIND, &chain.disk.name(), job_options!(upload))?;
    new.layers = chain.claim(inventory, 0..1, Some(0))?;
    let disk = chain.disk;
    let holds = hold(inventory, &new.terms.id, &disk, None)?;
    let answer = json!({ "image": target.image() });
    let push = target.begin(&inventory.graph, change, &disk, given.bitmap.as_deref()).await;
    let push = push.map_err(failed)?;
    inventory.jobs.start(new, Work::Push { disk, push, outcome: RefCell::default() }, holds);
    Ok(answer)
}
