//! cowhand-checkpoint, cowhand-fork, cowhand-rollback: checkpoints of disks at work, as commands and as actions of a transaction.
//!
//! All three are one shape: what is asked becomes an action of a lineage (`Request`), the actions of all are planned and their files made while guests go on
//! ([`Batch::prepare`]), the disks are switched ([`Batch::switch`]), and the rest is done while guests go on again ([`Batch::keep`]).

pub(super) mod exported;
mod served;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use control::{Argument, Arguments, Kind, QmpError, optional, required};
use graph::options::{Backing, LayerOptions};
use graph::{Change, DiskNode, bitmaps_of};
use lineage::{
    Action, Change as LineageChange, CheckpointRef, DiskPlace, Error, FORKS_MAX, Host, Place, Plan, Prepared,
};
use serde_json::{Value, json};

pub use self::served::open_layer;
use self::served::{Refusal, SealedDisk, Served, Way};
use super::active;
use super::chain::free_of_jobs;
use super::export_schema::SERVE;
use crate::lineages::args::Seen;
use crate::lineages::{PATIENCE, called, fork_paths, new_checkpoint};
use crate::serve::inventory::Inventory;
use crate::serve::inventory::export_view::Since;
use crate::serve::sandbox::Sandbox;

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

/// What is asked, as far as it can be said before the lineage is looked at.
struct Request {
    action: Action,
    /// What the command answers.
    answer: Value,
    /// The disk, if it is switched.
    sealed: Option<SealedDisk>,
}

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
    batch.keep().await?;
    Ok(answer.unwrap_or_default())
}

/// Actions whose files are there, and whose disks are not switched yet.
pub struct Batch<'a> {
    served: Served<'a>,
    lineages: Vec<Prepared>,
    /// What each action answers.
    answers: Vec<Value>,
    /// Disks that are made.
    forks: Vec<PathBuf>,
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
        let mut batch = Self {
            served: Served { inventory, change, disks: Vec::new() },
            lineages: Vec::new(),
            answers: Vec::new(),
            forks: Vec::new(),
        };
        // In the order of their directories: two batches do not wait for each other.
        let mut asked: BTreeMap<PathBuf, Vec<Action>> = BTreeMap::new();
        for (kind, arguments) in actions.iter().filter(|(kind, _)| is_one(kind)) {
            let Request { action, answer, sealed } = Request::of(inventory, kind, *arguments)?;
            if let Action::Fork { disks, .. } = &action {
                batch.forks.extend(disks.iter().map(DiskPlace::path));
            }
            asked.entry(action.disk().place.directory().to_owned()).or_default().push(action);
            batch.answers.push(answer);
            batch.served.disks.extend(sealed);
        }
        for actions in asked.into_values() {
            if let Err(error) = batch.prepare_lineage(actions).await {
                batch.undo_files().await;
                return Err(error);
            }
        }
        match batch.served.open().await {
            Ok(()) => Ok(batch),
            Err(error) => {
                batch.undo_files().await;
                Err(error)
            }
        }
    }

    async fn prepare_lineage(&mut self, actions: Vec<Action>) -> Result<(), QmpError> {
        let (begun, plan) = planned(self.served.inventory, actions).await?;
        let prepared = begun.prepare(plan, &self.served).await;
        self.lineages.push(prepared.map_err(|Refusal(error)| error)?);
        Ok(())
    }

    /// Switches all disks, or none.
    ///
    /// # Errors
    /// When one cannot be switched. [`Batch::undo_files`] does the rest.
    pub async fn switch(&self) -> Result<(), QmpError> {
        for (at, lineage) in self.lineages.iter().enumerate() {
            if let Err(Refusal(mut error)) = self.served.switch(lineage.switched()).await {
                for done in self.lineages[..at].iter().rev() {
                    self.served.switch_back(done.switched(), &mut error).await;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Removes what was made, of disks that are not switched.
    pub async fn undo_files(self) {
        // Nothing has the new images open any more.
        drop(self.served);
        let lineages = self.lineages;
        reactor::blocking(move || lineages.into_iter().rev().for_each(Prepared::undo)).await;
    }

    /// Does what is left, of disks that are switched.
    ///
    /// # Errors
    /// Says what is left for the next command. The change has happened.
    pub async fn keep(self) -> Result<(), QmpError> {
        let mut kept = Ok(());
        for lineage in self.lineages {
            kept = kept.and(lineage.finish(&self.served).await);
        }
        kept.map_err(|Refusal(error)| error)
    }
}

impl Request {
    fn of(inventory: &Inventory, kind: &str, arguments: Arguments<'_>) -> Result<Self, QmpError> {
        match kind {
            "cowhand-checkpoint" => Self::checkpoint(inventory, arguments),
            "cowhand-rollback" => Self::rollback(inventory, arguments),
            _ => Self::fork(inventory, arguments),
        }
    }

    fn checkpoint(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Self, QmpError> {
        let (node, disk) = sealable(inventory, arguments)?;
        if inventory.sandbox == Sandbox::On && !disk.place.is_lineage() {
            return Err(QmpError::generic(format!(
                "{} has no checkpoint yet, and the sandbox lets no directory be made: take the first one before the disk is served (cowhand checkpoint), or serve with --sandbox off",
                disk.path().display()
            )));
        }
        let labels: Vec<String> =
            arguments.list("labels").iter().filter_map(|label| Some(label.as_str()?.to_owned())).collect();
        let new = new_checkpoint(arguments.maybe_text("name"), &labels).map_err(QmpError::generic)?;
        Ok(Self {
            answer: json!({ "disk": disk.path(), "checkpoint": called(&new), "id": new.id.to_string() }),
            sealed: Some(SealedDisk::new(node, disk.path(), Way::Over)),
            action: Action::Checkpoint { disk, new },
        })
    }

    fn rollback(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Self, QmpError> {
        let (node, disk) = sealable(inventory, arguments)?;
        let to = checkpoint_of(arguments)?;
        if !arguments.is_on("live") {
            check_no_writer(inventory, &node)?;
        }
        let new = new_checkpoint(None, &[]).map_err(QmpError::generic)?;
        Ok(Self {
            answer: json!({ "disk": disk.path(), "checkpoint": to.to_string(), "left": new.id.to_string() }),
            sealed: Some(SealedDisk::new(node, disk.path(), Way::Instead)),
            action: Action::Rollback { of: disk.clone(), disk, to, new },
        })
    }

    fn fork(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Self, QmpError> {
        let (_, of) = disk_of(inventory, arguments)?;
        let count = arguments.maybe_whole("count").and_then(|count| u32::try_from(count).ok());
        let paths = fork_paths(Path::new(arguments.text("new")?), count);
        let disks = paths.iter().map(|path| DiskPlace::of(path)).collect::<Result<Vec<_>, _>>();
        let disks = disks.map_err(|error| refused(inventory, &error))?;
        Ok(Self {
            answer: json!({ "disks": paths }),
            sealed: None,
            action: Action::Fork { of, to: checkpoint_of(arguments)?, disks },
        })
    }
}

/// Locks the lineage of `actions` and plans them, on a thread that may wait: headers are read, and another command may be at work.
async fn planned(inventory: &Inventory, actions: Vec<Action>) -> Result<(LineageChange, Plan), QmpError> {
    let planned = reactor::blocking(move || {
        let Some(place) = actions.first().map(|action| action.disk().place.clone()) else {
            return Err(Error::Invalid("nothing is asked".to_owned()));
        };
        let is_first = actions.iter().any(|action| matches!(action, Action::Checkpoint { .. }));
        let begun = match is_first {
            true => LineageChange::begin_first(&place, PATIENCE)?,
            false => LineageChange::begin(&place, PATIENCE)?,
        };
        let plan = begun.plan(&actions)?;
        Ok((begun, plan))
    });
    planned.await.map_err(|error| refused(inventory, &error))
}

/// What a lineage refuses: the sandbox may be the reason.
pub(super) fn refused(inventory: &Inventory, error: &Error) -> QmpError {
    match error {
        Error::Io { source, .. } => inventory.cannot_open(error.to_string(), source),
        _ => QmpError::because(error.to_string(), error),
    }
}

/// The disk, and the place of its image.
pub(super) fn disk_of(
    inventory: &Inventory,
    arguments: Arguments<'_>,
) -> Result<(Arc<DiskNode>, DiskPlace), QmpError> {
    let name = arguments.text("node-name")?;
    let disk = inventory.disk(name)?;
    let path = path_of(inventory, &disk, name)?;
    let place = DiskPlace::of(&path).map_err(|error| refused(inventory, &error))?;
    Ok((disk, place))
}

fn path_of(inventory: &Inventory, disk: &DiskNode, name: &str) -> Result<PathBuf, QmpError> {
    let path = inventory.graph.path_of_image(&disk.name()).map_err(|error| inventory.refused(&error))?;
    path.ok_or_else(|| QmpError::generic(format!("the image of {name:?} is no file with a path of its own")))
}

/// The checkpoint of an export's disk, or of a sealed layer that is exported itself, from which clients may ask what differs.
///
/// # Errors
/// When there is no such checkpoint, or the disk is not backed by it.
pub async fn since(inventory: &Inventory, disk: &Arc<DiskNode>, checkpoint: &str) -> Result<Since, QmpError> {
    let name = disk.name();
    let wanted = CheckpointRef::parse(checkpoint).map_err(|error| QmpError::generic(error.to_string()))?;
    let path = path_of(inventory, disk, &name)?;
    let looked_for = wanted.clone();
    let found = reactor::blocking(move || {
        let (place, layer) = match Place::of_layer(&path)? {
            Some((place, id)) => (place, Some(id)),
            None => (DiskPlace::of(&path)?.place, None),
        };
        let seen = Seen::of(place.clone(), None)?;
        let entry = layer.and_then(|id| seen.survey.layers.get(&id)?.entry.clone());
        let of = entry.map_or_else(|| DiskPlace::of(&path), |entry| place.disk(&entry.disk))?;
        seen.survey.find(&of, &looked_for)
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

/// A disk whose active layer can be sealed.
fn sealable(inventory: &Inventory, arguments: Arguments<'_>) -> Result<(Arc<DiskNode>, DiskPlace), QmpError> {
    let (disk, place) = disk_of(inventory, arguments)?;
    free_of_jobs(inventory, &disk)?;
    active::check(&disk)?;
    let name = disk.name();
    if disk.disk.read_only() {
        return Err(QmpError::generic(format!(
            "node {name:?} is read-only: it has no active layer to be sealed"
        )));
    }
    if disk.options().is_some_and(|options| names_backing(&options.layer)) {
        return Err(QmpError::generic(format!(
            "the options of node {name:?} say what it is backed by: with them it would be opened without its layers the next time; leave \"backing\" out, the header says it"
        )));
    }
    let image = disk.disk.top_image();
    if bitmaps_of(&*image).is_some_and(|image| !image.bitmaps().is_empty()) {
        return Err(QmpError::generic(format!(
            "node {name:?} has bitmaps, which would not see what is written after the checkpoint; remove them first (block-dirty-bitmap-remove)"
        )));
    }
    Ok((disk, place))
}

/// Whether options say which image is below one: they would be wrong after a checkpoint.
fn names_backing(options: &LayerOptions) -> bool {
    match &options.backing {
        Backing::AsInImage => false,
        Backing::None => true,
        Backing::With(below) => below.file.is_named() || names_backing(below),
    }
}

pub(super) fn checkpoint_of(arguments: Arguments<'_>) -> Result<CheckpointRef, QmpError> {
    CheckpointRef::parse(arguments.text("checkpoint")?).map_err(|error| QmpError::generic(error.to_string()))
}

/// Refuses a rollback below a client that may write: what it has in its caches is of another disk then, and what it writes back destroys this one.
fn check_no_writer(inventory: &Inventory, disk: &Arc<DiskNode>) -> Result<(), QmpError> {
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
        Some(export) => Err(QmpError::generic(format!(
            "a client of export {:?} may write: what it has in its caches is of another disk after a rollback; disconnect it, or give live (--live)",
            export.id
        ))),
        None => Ok(()),
    }
}
