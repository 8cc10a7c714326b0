//! transaction: snapshots, checkpoints, backups and changes of bitmaps at one moment, all of them or none.

use std::rc::Rc;
use std::sync::Arc;

use control::{Arguments, QmpError};
use graph::{Change, DiskNode};
use job::Snapshot;
use serde_json::{Value, json};

use super::checkpoints::{self, Batch};
use super::forget::follow_policies;
use super::overlay::{self, Over};
use super::{backup, dirty_bitmaps, snapshots};
use crate::inventory::Inventory;
use crate::jobs::{Group, Job};

/// What the kinds of actions on bitmaps begin with.
const BITMAPS: &str = "block-dirty-bitmap-";

/// What was done and can be undone.
enum Done<'a> {
    Snapshot(Snapshot<Over<'a>>),
    Job(String),
    Bitmap(dirty_bitmaps::Before),
    /// An internal one, by disk and name.
    Internal(String, String),
}

/// Does all actions, or none: of those that were undone nothing is left when this returns.
pub async fn run(
    inventory: &Rc<Inventory>,
    change: Change<'_>,
    arguments: Arguments<'_>,
) -> Result<Value, QmpError> {
    let mut withdrawn = Vec::new();
    let done = all_or_none(inventory, &change, arguments, &mut withdrawn).await;
    drop(change);
    for job in withdrawn {
        job.life.over().await;
    }
    done
}

/// Does all actions while requests are kept out of all their disks. When one fails, those before it are undone, and jobs that they made are
/// `withdrawn`: they clean up when `change` is no more.
///
/// Checkpoints, forks and rollbacks are prepared before that and switched last: the fewest steps are undone, and guests wait for the switch alone.
async fn all_or_none(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: Arguments<'_>,
    withdrawn: &mut Vec<Rc<Job>>,
) -> Result<Value, QmpError> {
    let actions: Vec<(&str, Arguments<'_>)> = arguments
        .list("actions")
        .iter()
        .filter_map(|action| Some((action["type"].as_str()?, Arguments(action.get("data")?.as_object()?))))
        .collect();
    let is_grouped =
        arguments.maybe_object("properties").and_then(|given| given.maybe_text("completion-mode"))
            == Some("grouped");
    check_switched_once(inventory, &actions)?;
    // A fork changes no disk that is at work.
    let disks_at_rest = disks(inventory, &actions, |kind| kind != "cowhand-fork")?;
    let resting = inventory.graph.in_order_of_rest(change, &disks_at_rest);
    let batch = Batch::prepare(inventory, change, &actions).await?;
    let group = Group::new(is_grouped);
    let mut done = Vec::new();
    let result = async {
        // What an overlay or a job's filter is put over is durable first, while requests go on.
        for disk in disks(inventory, &actions, |kind| !kind.starts_with(BITMAPS) && kind != "cowhand-fork")? {
            let flushed = disk.disk.flush_inside().await;
            flushed.map_err(|error| QmpError::because(format!("cannot flush {:?}", disk.name()), &error))?;
        }
        let _at_rest = inventory.graph.keep_at_rest(change, &resting).await;
        let acted = async {
            for (kind, data) in actions.iter().filter(|(kind, _)| !checkpoints::is_one(kind)) {
                done.push(act(inventory, change, kind, *data, &group).await?);
            }
            batch.switch().await
        };
        match acted.await {
            Ok(()) => Ok(()),
            Err(error) => Err(undo_all(inventory, std::mem::take(&mut done), error, withdrawn).await),
        }
    };
    if let Err(error) = result.await {
        batch.undo_files().await;
        group.begin();
        return Err(error);
    }
    for step in done {
        if let Done::Snapshot(taken) = step {
            taken.keep().await;
        }
    }
    group.begin();
    let has_policy = batch.has_policy();
    batch.keep().await?;
    if has_policy {
        let switched = disks(inventory, &actions, checkpoints::switches)?;
        follow_policies(inventory, switched.iter().map(|disk| disk.name()).collect());
    }
    Ok(json!({}))
}

/// Undoes the steps before `error`, which gets what cannot be undone.
async fn undo_all(
    inventory: &Inventory,
    done: Vec<Done<'_>>,
    error: QmpError,
    withdrawn: &mut Vec<Rc<Job>>,
) -> QmpError {
    let mut left = Vec::new();
    for step in done.into_iter().rev() {
        match undo(inventory, step).await {
            Ok(job) => withdrawn.extend(job),
            Err(stays) => left.push(stays),
        }
    }
    with_what_is_left(error, &left)
}

/// Refuses other actions on a disk that is switched: they would be about the layer that is sealed, or about the one that comes, as the order would have it.
fn check_switched_once(inventory: &Inventory, actions: &[(&str, Arguments<'_>)]) -> Result<(), QmpError> {
    let switched = disks(inventory, actions, checkpoints::switches)?;
    let others = disks(inventory, actions, |kind| !checkpoints::is_one(kind))?;
    match switched.iter().find(|disk| others.iter().any(|other| Arc::ptr_eq(other, disk))) {
        Some(disk) => Err(QmpError::generic(format!(
            "disk {:?} has a checkpoint or rollback and another action: give that a transaction of its own",
            disk.name()
        ))),
        None => Ok(()),
    }
}

/// The disks of all actions of `kinds`, each once.
fn disks(
    inventory: &Inventory,
    actions: &[(&str, Arguments<'_>)],
    kinds: impl Fn(&str) -> bool,
) -> Result<Vec<Arc<DiskNode>>, QmpError> {
    let mut disks: Vec<Arc<DiskNode>> = Vec::new();
    for (_, data) in actions.iter().filter(|(kind, _)| kinds(kind)) {
        let names = ["node", "node-name", "device"];
        let Some(name) = names.iter().find_map(|name| data.maybe_text(name)) else { continue };
        // An overlay gets its name with its snapshot: nothing is to be waited for.
        let own = |(_, data): &(&str, Arguments<'_>)| data.maybe_text("snapshot-node-name") == Some(name);
        if actions.iter().any(own) {
            continue;
        }
        let disk = inventory.disk(name)?;
        if !disks.iter().any(|known| Arc::ptr_eq(known, &disk)) {
            disks.push(disk);
        }
    }
    Ok(disks)
}

async fn act<'a>(
    inventory: &'a Rc<Inventory>,
    change: &'a Change<'a>,
    kind: &str,
    data: Arguments<'_>,
    group: &Rc<Group>,
) -> Result<Done<'a>, QmpError> {
    match kind {
        "blockdev-snapshot" => overlay::snapshot(inventory, change, data).await.map(Done::Snapshot),
        "blockdev-snapshot-sync" => overlay::snapshot_sync(inventory, change, data).await.map(Done::Snapshot),
        "blockdev-backup" => {
            backup::blockdev_backup(inventory, change, data, Some(Rc::clone(group))).await?;
            Ok(Done::Job(job_id(data)?))
        }
        "drive-backup" => {
            backup::drive_backup(inventory, change, data, Some(Rc::clone(group))).await?;
            Ok(Done::Job(job_id(data)?))
        }
        "blockdev-snapshot-internal-sync" => {
            snapshots::create(inventory, data).await?;
            Ok(Done::Internal(data.text("device")?.to_owned(), data.text("name")?.to_owned()))
        }
        _ if kind.starts_with(BITMAPS) => {
            dirty_bitmaps::change_undoably(inventory, change, kind, data).await.map(Done::Bitmap)
        }
        _ => Err(QmpError::generic("the transaction has an action abort: nothing is done")),
    }
}

fn job_id(data: Arguments<'_>) -> Result<String, QmpError> {
    Ok(data.maybe_text("job-id").map_or_else(|| data.text("device"), Ok)?.to_owned())
}

/// The error of an action, with the steps that could not be undone.
fn with_what_is_left(mut error: QmpError, left: &[String]) -> QmpError {
    for stays in left {
        tracing::error!("a transaction that failed is not undone: {stays}");
        error.desc.push_str("; not undone: ");
        error.desc.push_str(stays);
    }
    error
}

/// Undoes a step; gives the job that was taken back, if it made one.
///
/// # Errors
/// Says what stays, and why.
async fn undo(inventory: &Inventory, step: Done<'_>) -> Result<Option<Rc<Job>>, String> {
    match step {
        Done::Snapshot(taken) => taken.undo().await.map_err(|error| error.desc)?,
        Done::Bitmap(before) => before.undo().await?,
        Done::Internal(device, name) => {
            let which = json!({ "device": device, "name": name });
            if let Value::Object(which) = which {
                let deleted = snapshots::delete(inventory, Arguments(&which)).await;
                deleted.map_err(|error| format!("snapshot {name:?} of {device:?} stays ({error})"))?;
            }
        }
        Done::Job(id) => {
            // It has not done anything: it begins when the transaction is over.
            let job = inventory.jobs.find(&id);
            if let Some(job) = &job {
                job.withdraw();
            }
            return Ok(job);
        }
    }
    Ok(None)
}
