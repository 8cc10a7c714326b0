//! cowhand-checkpoint, cowhand-fork, cowhand-rollback: checkpoints of disks at work, as commands and as actions of a transaction.
//!
//! All three are one shape: what is asked becomes an action of a lineage, and the crate `checkpoints` carries out the actions of all at one moment.

pub(super) mod exported;

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use checkpoints::{LastLook, Request};
use control::{Kind, QmpError, arguments};
use graph::{Change, DiskNode};
use lineage::{Action, CheckpointRef, DiskPlace, Error, FORKS_MAX, NewCheckpoint, Place, Survey, fork_paths};
use serde_json::{Map, Value, json};

use super::exports::SERVE;
use super::forget::follow_policies;
use crate::inventory::Inventory;
use crate::inventory::export_view::Since;
use crate::sandbox::Sandbox;

arguments! {
    /// A checkpoint of a disk, which is named by its node or its export.
    pub struct Checkpoint { node_name: String, name: Option<String>, labels: Option<Vec<String>> }

    /// Disks that begin as a checkpoint. As an action of a transaction, which adds no nodes and no exports.
    pub struct Fork {
        node_name: String, checkpoint: String, new: String,
        count: Option<u32> = Kind::Whole(FORKS_MAX as u64),
    }

    /// And as a command.
    pub struct ForkAndServe { ..fork: Fork, serve: Option<Map<String, Value>> = Kind::Ref(&SERVE) }

    /// A disk that becomes as it was.
    pub struct Rollback { node_name: String, checkpoint: String, live: Option<bool> }
}

/// What happens to a lineage.
#[derive(Clone, Copy)]
pub enum Step<'a> {
    /// cowhand-checkpoint
    Checkpoint(&'a Checkpoint),
    /// cowhand-fork
    Fork(&'a Fork),
    /// cowhand-rollback
    Rollback(&'a Rollback),
}

/// Does one step of a disk's lineage; forks are exported as `serve` says.
pub async fn run(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    step: Step<'_>,
    serve: Option<&Map<String, Value>>,
) -> Result<Value, QmpError> {
    let mut batch = Batch::prepare(inventory, change, [step]).await?;
    let happened = match serve {
        Some(serve) => exported::export_all(inventory, change, &batch.forks, serve).await,
        None => batch.switch().await,
    };
    if let Err(error) = happened {
        batch.undo_files().await;
        return Err(error);
    }
    let answer = batch.answers.pop();
    let has_policy = batch.has_policy();
    batch.keep().await?;
    if let (
        true,
        Step::Checkpoint(Checkpoint { node_name, .. }) | Step::Rollback(Rollback { node_name, .. }),
    ) = (has_policy, step)
    {
        follow_policies(inventory, vec![inventory.disk(node_name)?.name()]);
    }
    Ok(answer.unwrap_or_default())
}

/// Actions whose files are there, and whose disks are not switched yet.
pub struct Batch<'a> {
    batch: checkpoints::Batch<'a>,
    /// What each action answers.
    answers: Vec<Value>,
    /// Disks that are made.
    forks: Vec<PathBuf>,
    inventory: &'a Inventory,
}

impl<'a> Batch<'a> {
    /// Plans all actions of the kinds of this room, and makes their files: the paths of the disks lead to their new images. Guests go on.
    ///
    /// # Errors
    /// When one is refused. Then nothing is left of any.
    pub async fn prepare(
        inventory: &'a Inventory,
        change: &'a Change<'a>,
        steps: impl IntoIterator<Item = Step<'_>>,
    ) -> Result<Self, QmpError> {
        let (mut requests, mut answers, mut forks) = (Vec::new(), Vec::new(), Vec::new());
        for step in steps {
            let (request, answer) = match step {
                Step::Checkpoint(given) => checkpoint(inventory, given)?,
                Step::Fork(given) => fork(inventory, given)?,
                Step::Rollback(given) => rollback(inventory, given)?,
            };
            if let Action::Fork { disks, .. } = &request.action {
                forks.extend(disks.iter().map(DiskPlace::path));
            }
            requests.push(request);
            answers.push(answer);
        }
        let batch = checkpoints::Batch::prepare(&inventory.graph, change, requests).await;
        let batch = batch.map_err(|error| refused_checkpoint(inventory, &error))?;
        Ok(Self { batch, answers, forks, inventory })
    }

    /// Switches all disks, or none.
    ///
    /// # Errors
    /// When one cannot be switched. [`Batch::undo_files`] does the rest.
    pub async fn switch(&self) -> Result<(), QmpError> {
        self.batch.switch().await.map_err(|error| refused_checkpoint(self.inventory, &error))
    }

    /// Whether one of the lineages has a policy.
    pub fn has_policy(&self) -> bool {
        self.batch.has_policy()
    }

    /// Removes what was made, of disks that are not switched.
    pub async fn undo_files(self) {
        self.batch.undo_files().await;
    }

    /// Does what is left, of disks that are switched.
    ///
    /// # Errors
    /// Says what is left for the next command. The change has happened.
    pub async fn keep(self) -> Result<(), QmpError> {
        self.batch.keep().await.map_err(|error| refused_checkpoint(self.inventory, &error))
    }
}

/// What is asked, as far as it can be said before the lineage is looked at, and what the command answers.
fn checkpoint<'a>(inventory: &Inventory, given: &Checkpoint) -> Result<(Request<'a>, Value), QmpError> {
    let (node, disk) = sealable(inventory, &given.node_name)?;
    if inventory.sandbox == Sandbox::On && !disk.place.is_lineage() {
        return Err(QmpError::generic(format!(
            "{} has no checkpoint yet, and the sandbox lets no directory be made: take the first one before the disk is served (cowhand checkpoint); \
             or serve with --allow-path {directory}, and make it as the server's user: mkdir -p {layers} && ln -s . {layers}/layers",
            disk.path().display(),
            directory = disk.place.directory().display(),
            layers = disk.place.layers().display()
        )));
    }
    let new = NewCheckpoint::now(given.name.as_deref(), given.labels.as_deref().unwrap_or_default());
    let new = new.map_err(|error| refused(inventory, &error))?;
    let answer = json!({ "disk": disk.path(), "checkpoint": new.called(), "id": new.id.to_string() });
    Ok((Request { disk: node, action: Action::Checkpoint { disk, new }, last_look: None }, answer))
}

fn rollback<'a>(inventory: &'a Inventory, given: &Rollback) -> Result<(Request<'a>, Value), QmpError> {
    let (node, disk) = sealable(inventory, &given.node_name)?;
    let to = checkpoint_of(&given.checkpoint)?;
    // Files are made before the switch, and a client may connect meanwhile: it is looked for now, and again then.
    let of = Arc::clone(&node);
    let look: LastLook<'a> = Box::new(move || check_no_writer(inventory, &of));
    let last_look = (given.live != Some(true)).then_some(look);
    last_look.as_ref().map_or(Ok(()), |look| look()).map_err(QmpError::generic)?;
    let new = NewCheckpoint::now(None, &[]).map_err(|error| refused(inventory, &error))?;
    let answer = json!({ "disk": disk.path(), "checkpoint": to.to_string(), "left": new.id.to_string() });
    let action = Action::Rollback { of: disk.clone(), disk, to, new };
    Ok((Request { disk: node, action, last_look }, answer))
}

fn fork<'a>(inventory: &Inventory, given: &Fork) -> Result<(Request<'a>, Value), QmpError> {
    let (node, of) = disk_of(inventory, &given.node_name)?;
    let paths = fork_paths(Path::new(&given.new), given.count);
    let disks = paths.iter().map(|path| DiskPlace::of(path)).collect::<Result<Vec<_>, _>>();
    let disks = disks.map_err(|error| refused(inventory, &error))?;
    let action = Action::Fork { of, to: checkpoint_of(&given.checkpoint)?, disks };
    Ok((Request { disk: node, action, last_look: None }, json!({ "disks": paths })))
}

/// What a lineage refuses: the sandbox may be the reason.
pub(super) fn refused(inventory: &Inventory, error: &Error) -> QmpError {
    inventory.hinted(QmpError::of(error))
}

/// What is refused of a disk at work and its checkpoints.
pub(super) fn refused_checkpoint(inventory: &Inventory, error: &checkpoints::Error) -> QmpError {
    inventory.hinted(QmpError::of(error))
}

/// The disk, and the place of its image.
pub(super) fn disk_of(inventory: &Inventory, name: &str) -> Result<(Arc<DiskNode>, DiskPlace), QmpError> {
    let disk = inventory.disk(name)?;
    let place = checkpoints::place_of(&inventory.graph, &disk);
    let place = place.map_err(|error| refused_checkpoint(inventory, &error))?;
    Ok((disk, place))
}

/// The disk, if its active layer can be sealed, and the place of that.
fn sealable(inventory: &Inventory, name: &str) -> Result<(Arc<DiskNode>, DiskPlace), QmpError> {
    let disk = inventory.disk(name)?;
    let place = checkpoints::sealable(&inventory.graph, &disk);
    let place = place.map_err(|error| refused_checkpoint(inventory, &error))?;
    Ok((disk, place))
}

/// The checkpoint of an export's disk, or of a sealed layer that is exported itself, from which clients may ask what differs.
///
/// # Errors
/// When there is no such checkpoint, or the disk is not backed by it.
pub async fn since(inventory: &Inventory, disk: &Arc<DiskNode>, checkpoint: &str) -> Result<Since, QmpError> {
    let name = disk.name();
    let wanted = checkpoint_of(checkpoint)?;
    let path = checkpoints::path_of(&inventory.graph, disk);
    let path = path.map_err(|error| refused_checkpoint(inventory, &error))?;
    let looked_for = wanted.clone();
    let found = reactor::blocking(move || {
        let (place, layer) = match Place::of_layer(&path)? {
            Some((place, id)) => (place, Some(id)),
            None => (DiskPlace::of(&path)?.place, None),
        };
        let survey = Survey::look(&place)?;
        let entry = layer.and_then(|id| survey.layers.get(&id)?.entry.clone());
        let of = entry.map_or_else(|| DiskPlace::of(&path), |entry| place.disk(&entry.disk))?;
        survey.find(&of, &looked_for)
    });
    let layer = found.await.map_err(|error| refused(inventory, &error))?;
    let since = Since { bitmap: format!("@{checkpoint}"), layer };
    match since.above(&disk.disk) {
        Some(_) => Ok(since),
        None => Err(QmpError::generic(format!(
            "node {name:?} is not backed by the checkpoint {wanted}: maps say only what differs from one below (cowhand-diff compares any two)"
        ))),
    }
}

pub(super) fn checkpoint_of(name: &str) -> Result<CheckpointRef, QmpError> {
    CheckpointRef::parse(name).map_err(|error| QmpError::generic(error.to_string()))
}

/// Refuses a rollback below a client that may write: what it has in its caches is of another disk then, and what it writes back destroys this one.
fn check_no_writer(inventory: &Inventory, disk: &Arc<DiskNode>) -> Result<(), String> {
    let name = disk.name();
    let reaches = |of: &Arc<DiskNode>| Arc::ptr_eq(of, disk) || inventory.graph.stands_on(&of.name(), &name);
    let exports = inventory.exports();
    let writer = exports.iter().find(|export| {
        // The kernel is the client of a file or a block device as long as there is one.
        let is_local = export.fuse_door().is_some() || export.ublk_door().is_some();
        let is_connected = is_local || export.entry.connections() > 0;
        !export.entry.disk().read_only() && is_connected && reaches(&export.disk)
    });
    match writer {
        Some(export) => Err(format!(
            "a client of export {:?} may write: what it has in its caches is of another disk after a rollback; disconnect it, or give live (--live)",
            export.id
        )),
        None => Ok(()),
    }
}
