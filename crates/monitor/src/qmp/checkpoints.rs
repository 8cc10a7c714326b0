//! cowhand-checkpoint, cowhand-fork, cowhand-rollback: checkpoints of disks at work, as commands and as actions of a transaction.
//!
//! All three are one shape: what is asked becomes an action of a lineage, and the crate `checkpoints` carries out the actions of all at one moment.

pub(super) mod exported;

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use checkpoints::{LastLook, Request};
use control::{Argument, Arguments, Kind, QmpError, optional, required};
use graph::{Change, DiskNode};
use lineage::{Action, CheckpointRef, DiskPlace, Error, FORKS_MAX, NewCheckpoint, Place, Survey, fork_paths};
use serde_json::{Value, json};

use super::export_schema::SERVE;
use super::forget::follow_policies;
use crate::inventory::Inventory;
use crate::inventory::export_view::Since;
use crate::sandbox::Sandbox;

/// The disk, by its node's name or that of its export.
pub(super) const NODE: Argument = required("node-name", Kind::Text);

/// What cowhand-checkpoint takes.
pub const CHECKPOINT: Kind =
    Kind::Object(&[NODE, optional("name", Kind::Text), optional("labels", Kind::List(&Kind::Text))]);

pub(super) const OF_CHECKPOINT: Argument = required("checkpoint", Kind::Text);
const NEW: Argument = required("new", Kind::Text);
const COUNT: Argument = optional("count", Kind::Whole(FORKS_MAX as u64));

/// What cowhand-fork takes.
pub const FORK: Kind = Kind::Object(&[NODE, OF_CHECKPOINT, NEW, COUNT, optional("serve", Kind::Ref(&SERVE))]);

/// And as an action of a transaction, which adds no nodes and no exports.
pub const FORK_ACTION: Kind = Kind::Object(&[NODE, OF_CHECKPOINT, NEW, COUNT]);

/// What cowhand-rollback takes.
pub const ROLLBACK: Kind = Kind::Object(&[NODE, OF_CHECKPOINT, optional("live", Kind::Switch)]);

/// Whether `kind` is a command, and a kind of actions, of this room.
pub fn is_one(kind: &str) -> bool {
    matches!(kind, "cowhand-checkpoint" | "cowhand-fork" | "cowhand-rollback")
}

/// Whether actions of this kind switch the disk that they name.
pub fn switches(kind: &str) -> bool {
    is_one(kind) && kind != "cowhand-fork"
}

/// One of the commands.
pub async fn run(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    command: &str,
    arguments: Arguments<'_>,
) -> Result<Value, QmpError> {
    let mut batch = Batch::prepare(inventory, change, &[(command, arguments)]).await?;
    let serve = arguments.maybe_object("serve").filter(|_| command == "cowhand-fork");
    let happened = match serve {
        Some(serve) => exported::export_all(inventory, change, &batch.forks, serve.0).await,
        None => batch.switch().await,
    };
    if let Err(error) = happened {
        batch.undo_files().await;
        return Err(error);
    }
    let answer = batch.answers.pop();
    let has_policy = batch.has_policy();
    batch.keep().await?;
    if has_policy && switches(command) {
        follow_policies(inventory, vec![inventory.disk(arguments.text("node-name")?)?.name()]);
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
        actions: &[(&str, Arguments<'_>)],
    ) -> Result<Self, QmpError> {
        let (mut requests, mut answers, mut forks) = (Vec::new(), Vec::new(), Vec::new());
        for (kind, arguments) in actions.iter().filter(|(kind, _)| is_one(kind)) {
            let (request, answer) = request_of(inventory, kind, *arguments)?;
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
fn request_of<'a>(
    inventory: &'a Inventory,
    kind: &str,
    arguments: Arguments<'_>,
) -> Result<(Request<'a>, Value), QmpError> {
    match kind {
        "cowhand-checkpoint" => checkpoint(inventory, arguments),
        "cowhand-rollback" => rollback(inventory, arguments),
        _ => fork(inventory, arguments),
    }
}

fn checkpoint<'a>(inventory: &Inventory, arguments: Arguments<'_>) -> Result<(Request<'a>, Value), QmpError> {
    let (node, disk) = sealable(inventory, arguments)?;
    if inventory.sandbox == Sandbox::On && !disk.place.is_lineage() {
        return Err(QmpError::generic(format!(
            "{} has no checkpoint yet, and the sandbox lets no directory be made: take the first one before the disk is served (cowhand checkpoint); \
             or serve with --allow-path {directory}, and make it as the server's user: mkdir -p {layers} && ln -s . {layers}/layers",
            disk.path().display(),
            directory = disk.place.directory().display(),
            layers = disk.place.layers().display()
        )));
    }
    let labels: Vec<String> =
        arguments.list("labels").iter().filter_map(|label| Some(label.as_str()?.to_owned())).collect();
    let new = NewCheckpoint::now(arguments.maybe_text("name"), &labels);
    let new = new.map_err(|error| refused(inventory, &error))?;
    let answer = json!({ "disk": disk.path(), "checkpoint": new.called(), "id": new.id.to_string() });
    Ok((Request { disk: node, action: Action::Checkpoint { disk, new }, last_look: None }, answer))
}

fn rollback<'a>(
    inventory: &'a Inventory,
    arguments: Arguments<'_>,
) -> Result<(Request<'a>, Value), QmpError> {
    let (node, disk) = sealable(inventory, arguments)?;
    let to = checkpoint_of(arguments)?;
    // Files are made before the switch, and a client may connect meanwhile: it is looked for now, and again then.
    let of = Arc::clone(&node);
    let look: LastLook<'a> = Box::new(move || check_no_writer(inventory, &of));
    let last_look = (!arguments.is_on("live")).then_some(look);
    last_look.as_ref().map_or(Ok(()), |look| look()).map_err(QmpError::generic)?;
    let new = NewCheckpoint::now(None, &[]).map_err(|error| refused(inventory, &error))?;
    let answer = json!({ "disk": disk.path(), "checkpoint": to.to_string(), "left": new.id.to_string() });
    let action = Action::Rollback { of: disk.clone(), disk, to, new };
    Ok((Request { disk: node, action, last_look }, answer))
}

fn fork<'a>(inventory: &Inventory, arguments: Arguments<'_>) -> Result<(Request<'a>, Value), QmpError> {
    let (node, of) = disk_of(inventory, arguments)?;
    let count = arguments.maybe_whole("count").and_then(|count| u32::try_from(count).ok());
    let paths = fork_paths(Path::new(arguments.text("new")?), count);
    let disks = paths.iter().map(|path| DiskPlace::of(path)).collect::<Result<Vec<_>, _>>();
    let disks = disks.map_err(|error| refused(inventory, &error))?;
    let action = Action::Fork { of, to: checkpoint_of(arguments)?, disks };
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
pub(super) fn disk_of(
    inventory: &Inventory,
    arguments: Arguments<'_>,
) -> Result<(Arc<DiskNode>, DiskPlace), QmpError> {
    let disk = inventory.disk(arguments.text("node-name")?)?;
    let place = checkpoints::place_of(&inventory.graph, &disk);
    let place = place.map_err(|error| refused_checkpoint(inventory, &error))?;
    Ok((disk, place))
}

/// The disk, if its active layer can be sealed, and the place of that.
fn sealable(inventory: &Inventory, arguments: Arguments<'_>) -> Result<(Arc<DiskNode>, DiskPlace), QmpError> {
    let disk = inventory.disk(arguments.text("node-name")?)?;
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
    let wanted = CheckpointRef::parse(checkpoint).map_err(|error| QmpError::generic(error.to_string()))?;
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

pub(super) fn checkpoint_of(arguments: Arguments<'_>) -> Result<CheckpointRef, QmpError> {
    CheckpointRef::parse(arguments.text("checkpoint")?).map_err(|error| QmpError::generic(error.to_string()))
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
