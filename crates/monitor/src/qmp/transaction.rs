//! transaction: snapshots, checkpoints, backups and changes of bitmaps at one moment, all of them or none.

use std::rc::Rc;
use std::sync::Arc;

use control::{Data, Nothing, QmpError, arguments, choice, variants};
use graph::{Change, DiskNode};
use job::Snapshot;
use qcow2::bitmap::BitmapChange;

use super::backup::{self, Backup, DriveBackup};
use super::checkpoints::{Batch, Checkpoint, Fork, Rollback, Step};
use super::dirty_bitmaps::{self, Merge, Which, undoably};
use super::forget::follow_policies;
use super::overlay::{self, Make, Over, Put};
use super::snapshots::{self, Internal};
use crate::inventory::Inventory;
use crate::jobs::{Group, Job};

arguments! {
    /// What happens at one moment.
    pub struct Transaction { actions: Vec<Action>, properties: Option<Properties> }

    /// How jobs of it end.
    pub struct Properties { completion_mode: Option<Completion> }
}

choice! {
    /// Each job by itself, or all with the first that fails.
    pub enum Completion { Individual, Grouped }
}

variants! {
    /// One action: a command.
    pub enum Action by "type" {
        Abort(Data<Nothing>),
        BlockdevSnapshot(Data<Put>),
        BlockdevSnapshotSync(Data<Make>),
        BlockdevBackup(Data<Backup>),
        DriveBackup(Data<DriveBackup>),
        BlockdevSnapshotInternalSync(Data<Internal>),
        CowhandCheckpoint(Data<Checkpoint>),
        CowhandFork(Data<Fork>),
        CowhandRollback(Data<Rollback>),
        BlockDirtyBitmapAdd(Data<dirty_bitmaps::Add>),
        BlockDirtyBitmapRemove(Data<Which>),
        BlockDirtyBitmapClear(Data<Which>),
        BlockDirtyBitmapEnable(Data<Which>),
        BlockDirtyBitmapDisable(Data<Which>),
        BlockDirtyBitmapMerge(Data<Merge>),
    }
}

/// What an action does with its disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// A fork: the disk does not change.
    Reads,
    /// Its bitmaps change.
    Marks,
    /// Something is put over it.
    Covers,
    /// A checkpoint or rollback.
    Switches,
}

impl Action {
    /// The disk that it names, and what it does with it.
    fn disk(&self) -> Option<(&str, Effect)> {
        Some(match self {
            Self::Abort(_) => return None,
            Self::BlockdevSnapshot(Data { data }) => (&data.node, Effect::Covers),
            Self::BlockdevSnapshotSync(Data { data }) => {
                (data.node_name.as_ref().or(data.device.as_ref())?, Effect::Covers)
            }
            Self::BlockdevBackup(Data { data }) => (&data.device, Effect::Covers),
            Self::DriveBackup(Data { data }) => (&data.backup.device, Effect::Covers),
            Self::BlockdevSnapshotInternalSync(Data { data }) => (&data.device, Effect::Covers),
            Self::CowhandCheckpoint(Data { data }) => (&data.node_name, Effect::Switches),
            Self::CowhandFork(Data { data }) => (&data.node_name, Effect::Reads),
            Self::CowhandRollback(Data { data }) => (&data.node_name, Effect::Switches),
            Self::BlockDirtyBitmapAdd(Data { data }) => (&data.node, Effect::Marks),
            Self::BlockDirtyBitmapMerge(Data { data }) => (&data.node, Effect::Marks),
            Self::BlockDirtyBitmapRemove(Data { data })
            | Self::BlockDirtyBitmapClear(Data { data })
            | Self::BlockDirtyBitmapEnable(Data { data })
            | Self::BlockDirtyBitmapDisable(Data { data }) => (&data.node, Effect::Marks),
        })
    }

    /// As a step of its lineage.
    fn step(&self) -> Option<Step<'_>> {
        match self {
            Self::CowhandCheckpoint(Data { data }) => Some(Step::Checkpoint(data)),
            Self::CowhandFork(Data { data }) => Some(Step::Fork(data)),
            Self::CowhandRollback(Data { data }) => Some(Step::Rollback(data)),
            _ => None,
        }
    }

    /// The name of the overlay that it makes.
    fn overlay(&self) -> Option<&str> {
        match self {
            Self::BlockdevSnapshotSync(Data { data }) => data.snapshot_node_name.as_deref(),
            _ => None,
        }
    }
}

/// What was done and can be undone.
enum Done<'a> {
    Snapshot(Snapshot<Over<'a>>),
    Job(String),
    Bitmap(dirty_bitmaps::Before),
    /// An internal one, by disk and name.
    Internal(String, String),
}

/// Does all actions, or none: of those that were undone nothing is left when this returns.
pub async fn run(inventory: &Rc<Inventory>, change: Change<'_>, given: &Transaction) -> Result<(), QmpError> {
    let mut withdrawn = Vec::new();
    let done = all_or_none(inventory, &change, given, &mut withdrawn).await;
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
    Transaction { actions, properties }: &Transaction,
    withdrawn: &mut Vec<Rc<Job>>,
) -> Result<(), QmpError> {
    let mode = properties.as_ref().and_then(|given| given.completion_mode);
    check_switched_once(inventory, actions)?;
    // A fork changes no disk that is at work.
    let disks_at_rest = disks(inventory, actions, |effect| effect != Effect::Reads)?;
    let resting = inventory.graph.in_order_of_rest(change, &disks_at_rest);
    let batch = Batch::prepare(inventory, change, actions.iter().filter_map(Action::step)).await?;
    let group = Group::new(mode == Some(Completion::Grouped));
    let mut done = Vec::new();
    let result = async {
        // What an overlay or a job's filter is put over is durable first, while requests go on.
        for disk in disks(inventory, actions, |effect| !matches!(effect, Effect::Marks | Effect::Reads))? {
            let flushed = disk.disk.flush_inside().await;
            flushed.map_err(|error| QmpError::because(format!("cannot flush {:?}", disk.name()), &error))?;
        }
        let _at_rest = inventory.graph.keep_at_rest(change, &resting).await;
        let acted = async {
            for action in actions.iter().filter(|action| action.step().is_none()) {
                done.push(act(inventory, change, action, &group).await?);
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
        let switched = disks(inventory, actions, |effect| effect == Effect::Switches)?;
        follow_policies(inventory, switched.iter().map(|disk| disk.name()).collect());
    }
    Ok(())
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
fn check_switched_once(inventory: &Inventory, actions: &[Action]) -> Result<(), QmpError> {
    let switched = disks(inventory, actions, |effect| effect == Effect::Switches)?;
    let others = disks(inventory, actions, |effect| !matches!(effect, Effect::Switches | Effect::Reads))?;
    match switched.iter().find(|disk| others.iter().any(|other| Arc::ptr_eq(other, disk))) {
        Some(disk) => Err(QmpError::generic(format!(
            "disk {:?} has a checkpoint or rollback and another action: give that a transaction of its own",
            disk.name()
        ))),
        None => Ok(()),
    }
}

/// The disks of all actions with these effects, each once.
fn disks(
    inventory: &Inventory,
    actions: &[Action],
    effects: impl Fn(Effect) -> bool,
) -> Result<Vec<Arc<DiskNode>>, QmpError> {
    let mut disks: Vec<Arc<DiskNode>> = Vec::new();
    for (name, effect) in actions.iter().filter_map(Action::disk) {
        // An overlay gets its name with its snapshot: nothing is to be waited for.
        let is_own = actions.iter().any(|action| action.overlay() == Some(name));
        if is_own || !effects(effect) {
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
    action: &Action,
    group: &Rc<Group>,
) -> Result<Done<'a>, QmpError> {
    let group = Some(Rc::clone(group));
    let changed = async |data: &Which, change| {
        let done = dirty_bitmaps::change(inventory, data, change);
        undoably(inventory, (&data.node, &data.name), true, done).await
    };
    let bitmap = match action {
        Action::BlockdevSnapshot(Data { data }) => {
            return overlay::snapshot(inventory, change, data).await.map(Done::Snapshot);
        }
        Action::BlockdevSnapshotSync(Data { data }) => {
            return overlay::snapshot_sync(inventory, change, data).await.map(Done::Snapshot);
        }
        Action::BlockdevBackup(Data { data }) => {
            backup::blockdev_backup(inventory, change, data, group).await?;
            return Ok(Done::Job(data.job_id.as_ref().unwrap_or(&data.device).clone()));
        }
        Action::DriveBackup(Data { data }) => {
            backup::drive_backup(inventory, change, data, group).await?;
            let DriveBackup { backup: data, .. } = data;
            return Ok(Done::Job(data.job_id.as_ref().unwrap_or(&data.device).clone()));
        }
        Action::BlockdevSnapshotInternalSync(Data { data }) => {
            snapshots::create(inventory, data).await?;
            return Ok(Done::Internal(data.device.clone(), data.name.clone()));
        }
        Action::BlockDirtyBitmapAdd(Data { data }) => {
            undoably(inventory, (&data.node, &data.name), false, dirty_bitmaps::add(inventory, change, data))
                .await
        }
        Action::BlockDirtyBitmapRemove(Data { data }) => changed(data, BitmapChange::Remove).await,
        Action::BlockDirtyBitmapClear(Data { data }) => changed(data, BitmapChange::Clear).await,
        Action::BlockDirtyBitmapEnable(Data { data }) => changed(data, BitmapChange::Record(true)).await,
        Action::BlockDirtyBitmapDisable(Data { data }) => changed(data, BitmapChange::Record(false)).await,
        Action::BlockDirtyBitmapMerge(Data { data }) => {
            undoably(inventory, (&data.node, &data.target), true, dirty_bitmaps::merge(inventory, data)).await
        }
        Action::Abort(_)
        | Action::CowhandCheckpoint(_)
        | Action::CowhandFork(_)
        | Action::CowhandRollback(_) => {
            Err(QmpError::generic("the transaction has an action abort: nothing is done"))
        }
    };
    bitmap.map(Done::Bitmap)
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
            let which = snapshots::Delete { device, id: None, name: Some(name) };
            let deleted = snapshots::delete(inventory, &which).await;
            deleted.map_err(|error| {
                let snapshots::Delete { device, name, .. } = &which;
                format!("snapshot {:?} of {device:?} stays ({error})", name.as_deref().unwrap_or_default())
            })?;
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
