//! cowhand-checkpoint, cowhand-fork, cowhand-rollback: checkpoints of disks at work.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use control::{Argument, Arguments, Kind, QmpError, optional, required};
use graph::options::{Backing, LayerOptions};
use graph::{Change, DiskNode, bitmaps_of};
use lineage::{
    Change as LineageChange, CheckpointRef, DiskPlace, Error, FORKS_MAX, Host, NewCheckpoint, NewOverlay,
    Plan, Step,
};
use serde_json::{Value, json};

use super::active;
use super::chain::free_of_jobs;
use crate::lineages::{PATIENCE, called, fork_paths, new_checkpoint, overlay};
use crate::serve::inventory::Inventory;
use crate::serve::sandbox::Sandbox;

/// The disk, by its node's name or that of its export.
const NODE: Argument = required("node-name", Kind::Text);

/// What cowhand-checkpoint takes.
pub const CHECKPOINT: Kind =
    Kind::Object(&[NODE, optional("name", Kind::Text), optional("labels", Kind::List(&Kind::Text))]);

/// What cowhand-fork takes.
pub const FORK: Kind = Kind::Object(&[
    NODE,
    required("checkpoint", Kind::Text),
    required("new", Kind::Text),
    optional("count", Kind::Whole(FORKS_MAX as u64)),
]);

/// What cowhand-rollback takes.
pub const ROLLBACK: Kind =
    Kind::Object(&[NODE, required("checkpoint", Kind::Text), optional("live", Kind::Switch)]);

/// A command that is refused.
struct Refusal(QmpError);

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(QmpError::because(error.to_string(), &error))
    }
}

/// How the disk comes to use the image that its path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Switch {
    /// Put over what it has: requests in flight finish below it.
    Over,
    /// In place of what it has.
    Instead,
}

/// A disk at work, while nothing else changes its layers.
struct Served<'a> {
    inventory: &'a Inventory,
    change: &'a Change<'a>,
    disk: Arc<DiskNode>,
    path: PathBuf,
    switch: Switch,
}

impl Host for Served<'_> {
    type Error = Refusal;

    async fn make_overlay(&self, at: &Path, new: &NewOverlay) -> Result<(), Refusal> {
        overlay::make(at, new)
            .await
            .map_err(|failure| Refusal(self.refused(failure.to_string(), failure.is_forbidden())))
    }

    async fn switch(&self, sealed: &Path) -> Result<(), Refusal> {
        match self.switch {
            Switch::Over => self.put_over(sealed).await,
            Switch::Instead => self.put_instead().await,
        }
        .map_err(Refusal)
    }

    /// On a thread that may wait: guests do not.
    async fn file_step(&self, step: &Step) -> Result<(), Error> {
        let step = step.clone();
        reactor::blocking(move || step.run()).await
    }
}

impl Served<'_> {
    /// An error of the file system: the sandbox may be the reason.
    fn refused(&self, what: String, is_forbidden: bool) -> QmpError {
        match is_forbidden {
            true => {
                let cause = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
                self.inventory.cannot_open(what, &cause)
            }
            false => QmpError::generic(what),
        }
    }

    /// Opens the image that the disk's path leads to, with the layers that its header names or alone.
    async fn open(&self, with_layers: bool) -> Result<graph::OpenedLayers, QmpError> {
        let cache = self.disk.options().map(|options| options.layer.cache()).unwrap_or_default();
        let options = json!({
            "driver": "qcow2",
            "file": { "driver": "file", "filename": self.path },
            "cache": { "direct": cache.direct, "no-flush": cache.no_flush },
        });
        let Value::Object(mut options) = options else {
            return Err(QmpError::generic("options are an object"));
        };
        if !with_layers {
            options.insert("backing".to_owned(), Value::Null);
        }
        let opened = self.inventory.graph.open_layers(self.change, &options).await;
        opened.map_err(|error| self.inventory.refused(&error))
    }

    async fn put_over(&self, sealed: &Path) -> Result<(), QmpError> {
        let overlay = self.open(false).await?;
        let active = self.disk.disk.top_image();
        let put = self.inventory.graph.put_over_by_name(self.change, &self.disk, overlay).await;
        let put = put.map_err(|error| QmpError::because("no checkpoint is taken", &error))?;
        tracing::info!(node = self.disk.name(), pause = ?put.pause, "a checkpoint is taken");
        // The disk uses the overlay from here on: what fails now undoes nothing.
        if let Err(error) = self.disk.disk.flush_below().await {
            tracing::error!(%error, "what is below a checkpoint is not durable; flushes of the disk try it again");
        }
        if let Err(error) = self.inventory.graph.seal_layer(self.change, &self.disk, &active, sealed).await {
            tracing::error!(%error, "a sealed layer stays open for writing");
        }
        Ok(())
    }

    async fn put_instead(&self) -> Result<(), QmpError> {
        let layers = self.open(true).await?;
        let put = self.inventory.graph.switch_by_name(self.change, &self.disk, layers).await;
        let put = put.map_err(|error| QmpError::because("the disk is not rolled back", &error))?;
        tracing::info!(node = self.disk.name(), pause = ?put.pause, "a disk is rolled back");
        if let Err(error) = put.removed.close().await {
            tracing::error!(%error, "what a disk was before a rollback is as after a crash");
        }
        Ok(())
    }

    /// Runs the steps; the lineage is free afterwards.
    async fn run(&self, begun: LineageChange, plan: &Plan) -> Result<(), QmpError> {
        begun.run(plan, self).await.map_err(|Refusal(error)| error)
    }
}

/// Does `plan_of` on a thread that may wait: it reads headers, and may wait for another command on the lineage.
async fn planned(
    inventory: &Inventory,
    plan_of: impl FnOnce() -> Result<(LineageChange, Plan), Error> + Send + 'static,
) -> Result<(LineageChange, Plan), QmpError> {
    let planned = reactor::blocking(plan_of).await;
    planned.map_err(|error| match &error {
        Error::Io { source, .. } => inventory.cannot_open(error.to_string(), source),
        _ => QmpError::because(error.to_string(), &error),
    })
}

/// The disk, and the place of its image.
fn disk_of(inventory: &Inventory, arguments: Arguments<'_>) -> Result<(Arc<DiskNode>, DiskPlace), QmpError> {
    let name = arguments.text("node-name")?;
    let disk = inventory.disk(name)?;
    let path = inventory.graph.path_of_image(&disk.name()).map_err(|error| inventory.refused(&error))?;
    let path = path.ok_or_else(|| {
        QmpError::generic(format!("the image of {name:?} is no file with a path of its own"))
    })?;
    let place = DiskPlace::of(&path).map_err(|error| QmpError::generic(error.to_string()))?;
    Ok((disk, place))
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

fn new_of(name: Option<&str>, labels: &[String]) -> Result<NewCheckpoint, QmpError> {
    new_checkpoint(name, labels).map_err(QmpError::generic)
}

fn checkpoint_of(arguments: Arguments<'_>) -> Result<CheckpointRef, QmpError> {
    CheckpointRef::parse(arguments.text("checkpoint")?).map_err(|error| QmpError::generic(error.to_string()))
}

/// Seals the active layer of a disk.
pub async fn checkpoint(
    inventory: &Inventory,
    change: &Change<'_>,
    arguments: Arguments<'_>,
) -> Result<Value, QmpError> {
    let (disk, place) = sealable(inventory, arguments)?;
    if inventory.sandbox == Sandbox::On && !place.place.is_lineage() {
        return Err(QmpError::generic(format!(
            "{} has no checkpoint yet, and the sandbox lets no directory be made: take the first one before the disk is served (cowhand checkpoint), or serve with --sandbox off",
            place.path().display()
        )));
    }
    let labels: Vec<String> =
        arguments.list("labels").iter().filter_map(|label| Some(label.as_str()?.to_owned())).collect();
    let new = new_of(arguments.maybe_text("name"), &labels)?;
    let done = json!({ "disk": place.path(), "checkpoint": called(&new), "id": new.id.to_string() });
    let path = place.path();
    let (begun, plan) = planned(inventory, move || {
        let begun = LineageChange::begin_first(&place.place, PATIENCE)?;
        let plan = begun.checkpoint(&place, new)?;
        Ok((begun, plan))
    })
    .await?;
    Served { inventory, change, disk, path, switch: Switch::Over }.run(begun, &plan).await?;
    Ok(done)
}

/// Has a disk continue from a checkpoint.
pub async fn rollback(
    inventory: &Inventory,
    change: &Change<'_>,
    arguments: Arguments<'_>,
) -> Result<Value, QmpError> {
    let (disk, place) = sealable(inventory, arguments)?;
    let to = checkpoint_of(arguments)?;
    if !arguments.is_on("live") {
        check_no_writer(inventory, &disk)?;
    }
    let new = new_of(None, &[])?;
    let done = json!({ "disk": place.path(), "checkpoint": to.to_string(), "left": new.id.to_string() });
    let path = place.path();
    let (begun, plan) = planned(inventory, move || {
        let begun = LineageChange::begin(&place.place, PATIENCE)?;
        let plan = begun.rollback(&place, (&place, &to), new)?;
        Ok((begun, plan))
    })
    .await?;
    Served { inventory, change, disk, path, switch: Switch::Instead }.run(begun, &plan).await?;
    Ok(done)
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

/// Makes disks over a checkpoint. They are not served.
pub async fn fork(
    inventory: &Inventory,
    change: &Change<'_>,
    arguments: Arguments<'_>,
) -> Result<Value, QmpError> {
    let (disk, place) = disk_of(inventory, arguments)?;
    let of = checkpoint_of(arguments)?;
    let count = arguments.maybe_whole("count").and_then(|count| u32::try_from(count).ok());
    let paths = fork_paths(Path::new(arguments.text("new")?), count);
    let (path, new) = (place.path(), paths.clone());
    let (begun, plan) = planned(inventory, move || {
        let disks = new.iter().map(|path| DiskPlace::of(path)).collect::<Result<Vec<_>, _>>()?;
        let begun = LineageChange::begin(&place.place, PATIENCE)?;
        let plan = begun.fork(&place, &of, &disks)?;
        Ok((begun, plan))
    })
    .await?;
    Served { inventory, change, disk, path, switch: Switch::Over }.run(begun, &plan).await?;
    Ok(json!({ "disks": paths }))
}
