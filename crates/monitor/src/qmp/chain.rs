//! Layers of a disk as arguments name them, by node name or by file, and which of them jobs use.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use block::Block;
use control::QmpError;
use graph::drive::parse_drive;
use graph::drivers::elsewhere;
use graph::{Change, DiskNode, Hold, LayerView, User};
use tool::info::name::is_same_file;

use super::active;
use crate::inventory::Inventory;
use crate::jobs::Claim;

/// A disk that a job is to work on, and its layers from the uppermost image down.
pub struct Chain {
    /// The disk.
    pub disk: Arc<DiskNode>,
    /// Its layers; the first is the one that guests write to.
    pub layers: Vec<LayerView>,
}

impl Chain {
    /// Of the disk called `name`.
    ///
    /// # Errors
    /// When there is none.
    pub fn of(inventory: &Inventory, name: &str) -> Result<Self, QmpError> {
        Self::of_disk(inventory, inventory.disk(name)?)
    }

    /// Of the disk called `name`; if that is a filter that passes on the data of one disk, of the disk below.
    /// A snapshot's data differs from the disk's below it.
    ///
    /// # Errors
    /// When there is no such disk; when a filter is over several disks, or the disk below it must have no
    /// other user.
    pub fn below_filters(inventory: &Inventory, name: &str) -> Result<Self, QmpError> {
        let mut disk = inventory.disk(name)?;
        loop {
            let node = inventory.graph.node(&disk.name()).map_err(|error| inventory.refused(&error))?;
            let filter = node.filter.as_ref().filter(|filter| !filter.driver.is_snapshot);
            let Some(filter) = filter else { return Self::of_disk(inventory, disk) };
            let below = filter.below();
            let [(_, below)] = below.as_slice() else {
                let (filter, driver) = (disk.name(), filter.driver.name);
                return Err(QmpError::generic(format!(
                    "node {filter:?} is a filter of driver {driver} over several disks: name the one that is meant"
                )));
            };
            disk = inventory.disk(below)?;
        }
    }

    fn of_disk(inventory: &Inventory, disk: Arc<DiskNode>) -> Result<Self, QmpError> {
        active::check(&disk)?;
        let mut layers = inventory.graph.layers(&disk.name()).map_err(|error| inventory.refused(&error))?;
        // Filters of jobs are no images.
        layers.retain(|layer| !layer.is_filter);
        Ok(Self { disk, layers })
    }

    /// Of the disk that has an image called `name` below its uppermost one, with the place of that image;
    /// otherwise of the disk called so, with 0.
    ///
    /// # Errors
    /// When there is no such image, or several disks have it.
    pub fn around(inventory: &Inventory, name: &str) -> Result<(Self, usize), QmpError> {
        let mut found = Vec::new();
        for disk in inventory.graph.disks() {
            let chain = Self::of_disk(inventory, disk)?;
            let below = chain.layers.iter().skip(1).position(|layer| layer.name.as_deref() == Some(name));
            found.extend(below.map(|at| (chain, at + 1)));
        }
        match (found.pop(), found.is_empty()) {
            (None, _) => Ok((Self::below_filters(inventory, name)?, 0)),
            (Some(found), true) => Ok(found),
            (Some(_), false) => Err(QmpError::generic(format!(
                "node {name:?} is below several disks: what it reads as is not for one to change"
            ))),
        }
    }

    /// As [`Chain::below_filters`], with bases that were added by name as layers of the disk.
    ///
    /// # Errors
    /// As there, and of [`Chain::absorb_backing`].
    pub async fn absorbed(inventory: &Inventory, change: &Change<'_>, name: &str) -> Result<Self, QmpError> {
        Self::below_filters(inventory, name)?.absorb_backing(inventory, change).await?;
        Self::below_filters(inventory, name)
    }

    /// Makes bases that were added by name layers of the disk, where only it uses them.
    ///
    /// # Errors
    /// When the exchange fails; then they stay as they are.
    pub async fn absorb_backing(&self, inventory: &Inventory, change: &Change<'_>) -> Result<(), QmpError> {
        let absorbed = inventory.graph.absorb_backing(change, &self.disk.name()).await;
        absorbed.map_err(|error| QmpError::because("the job is not begun", &error))
    }

    /// Refuses to take the layers from place `upper` on, up to the one before `end`, out of the disk while something uses one by its own name.
    ///
    /// # Errors
    /// Names the layer and its user.
    pub fn check_unshown(&self, upper: usize, end: usize) -> Result<(), QmpError> {
        let leaving = self.layers.iter().take(end).skip(upper);
        let used = leaving.filter_map(|layer| Some((layer.name.as_ref()?, layer.user.as_ref()?))).next();
        match used {
            Some((name, by)) => Err(QmpError::generic(format!("node {name:?} is in use by {by}"))),
            None => Ok(()),
        }
    }

    /// Refuses a disk whose layers are over another disk that has a user who may write.
    ///
    /// # Errors
    /// Names that disk and its user.
    pub fn check_fixed(&self, inventory: &Inventory) -> Result<(), QmpError> {
        match inventory.graph.writer_below(&self.disk.name()) {
            Some((name, by)) => Err(QmpError::generic(format!(
                "node {name:?} is in use by {by}, which may write: what it reads as cannot be copied while that is so"
            ))),
            None => Ok(()),
        }
    }

    /// The place of the lowest layer: 0 also where there is none, as of a filter that is no image and shows none below it.
    pub fn lowest(&self) -> usize {
        self.layers.len().saturating_sub(1)
    }

    /// The layers at `places`, for a job that begins and has them for itself; `stays` is the place of one that the disk has afterwards, too. What can only be
    /// read is not among them: jobs of several disks over one image of a store run side by side.
    ///
    /// # Errors
    /// Names the layer and the job that has it.
    pub fn claim(
        &self,
        inventory: &Inventory,
        places: Range<usize>,
        stays: Option<usize>,
    ) -> Result<Vec<Claim>, QmpError> {
        let claimed = self.layers.iter().enumerate().take(places.end).skip(places.start);
        let claimed = claimed.filter(|(_, layer)| !is_only_read(layer)).map(|(at, layer)| {
            self.check_free(inventory, at)?;
            Ok(Claim { file: layer.block.name().to_owned(), is_taken_out: stays != Some(at) })
        });
        claimed.collect()
    }

    /// Refuses the layer at a place if a job has it.
    ///
    /// # Errors
    /// Names the layer and the job.
    pub fn check_free(&self, inventory: &Inventory, at: usize) -> Result<(), QmpError> {
        self.check(inventory, at, |_| true)
    }

    /// Refuses the layer at a place if a job takes it out. Other jobs do not change its content.
    ///
    /// # Errors
    /// Names the layer and the job.
    pub fn check_stays(&self, inventory: &Inventory, at: usize) -> Result<(), QmpError> {
        self.check(inventory, at, |is_taken_out| is_taken_out)
    }

    fn check(&self, inventory: &Inventory, at: usize, matters: fn(bool) -> bool) -> Result<(), QmpError> {
        let Some(layer) = self.layers.get(at) else { return Ok(()) };
        let file = layer.block.name();
        match inventory.jobs.user_of(file) {
            Some((job, is_taken_out)) if matters(is_taken_out) => {
                let name = layer.name.as_deref().unwrap_or(file);
                Err(QmpError::generic(format!("node {name:?} is in use by job {job:?}")))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Opens the layer at a place for writing, and gives it.
    ///
    /// # Errors
    /// When it cannot be opened so; then nothing has changed.
    pub async fn writable(
        &self,
        inventory: &Inventory,
        change: &Change<'_>,
        at: usize,
    ) -> Result<Arc<dyn Block>, QmpError> {
        let now = Self::of_disk(inventory, Arc::clone(&self.disk))?;
        let layer = now.layers.get(at).ok_or_else(|| QmpError::generic("the chain is not that deep"))?;
        let opened = inventory.graph.make_writable(change, &self.disk, &layer.block).await;
        opened.map_err(|error| QmpError::because("the job is not begun", &error))
    }

    /// Opens the layers below the uppermost one for reading again that a command which failed had opened for writing.
    pub async fn give_back(&self, inventory: &Inventory, change: &Change<'_>, places: &[usize]) {
        inventory.graph.give_back(change, &self.disk, places).await;
    }

    /// Whether the layer at a place is made of the file called `file`. A relative name begins where the program runs, or, as in the header of the image above,
    /// at that image.
    fn is_file(&self, at: usize, file: &str) -> bool {
        if file.starts_with("json:") {
            let tree = parse_drive(file.as_ref(), |_| true).ok();
            let own = tree.and_then(|tree| tree.filename());
            return own.and_then(|own| own.to_str().map(|own| self.is_file(at, own))) == Some(true);
        }
        let Some(layer) = self.layers.get(at) else { return false };
        let name = Path::new(layer.block.name());
        let above = at.checked_sub(1).and_then(|above| self.layers.get(above));
        let beside = above.and_then(|above| Path::new(above.block.name()).parent());
        name == Path::new(file)
            || is_same_file(name, Path::new(file))
            || beside.is_some_and(|beside| is_same_file(name, &beside.join(file)))
    }

    /// The layer that one of two arguments names, counted from the uppermost layer; `None` if neither
    /// argument is given.
    ///
    /// # Errors
    /// When both are given, or there is no such layer.
    pub fn find(
        &self,
        (by_node, node): (&'static str, Option<&String>),
        (by_file, file): (&'static str, Option<&String>),
    ) -> Result<Option<usize>, QmpError> {
        let found = match (node, file) {
            (Some(_), Some(_)) => {
                return Err(QmpError::generic(format!(
                    "give one of the arguments '{by_node}' and '{by_file}'"
                )));
            }
            (None, None) => return Ok(None),
            (Some(node), None) => {
                self.layers.iter().position(|layer| layer.name.as_ref() == Some(node)).ok_or((by_node, node))
            }
            (None, Some(file)) => {
                let is_it = |at: &usize| self.is_file(*at, file);
                (0..self.layers.len()).find(is_it).ok_or((by_file, file))
            }
        };
        found.map(Some).map_err(|(argument, name)| {
            let disk = self.disk.name();
            QmpError::generic(format!("argument '{argument}': {name:?} is no layer of the disk {disk:?}"))
        })
    }
}

/// Whether no job can write to the file of a layer, which each disk over it has open for itself.
fn is_only_read(layer: &LayerView) -> bool {
    matches!(
        elsewhere(Path::new(layer.block.name())),
        Some("az" | "chunked" | "gs" | "http" | "https" | "s3")
    )
}

/// Refuses a disk that a job uses.
///
/// # Errors
/// Names the job.
pub fn free_of_jobs(inventory: &Inventory, disk: &DiskNode) -> Result<(), QmpError> {
    let name = disk.name();
    match inventory.graph.job_on(&name).map_err(|error| inventory.refused(&error))? {
        Some(job) => Err(QmpError::generic(format!("node {name:?} is in use by {job}"))),
        None => Ok(()),
    }
}

/// Holds the disk that a job works on, and the job's target, if it has one.
///
/// # Errors
/// When one of them does not exist.
pub fn hold(
    inventory: &Inventory,
    job: &str,
    disk: &DiskNode,
    target: Option<&DiskNode>,
) -> Result<Vec<Hold>, QmpError> {
    let user = || User { kind: "job", name: job.to_owned() };
    let graph = &inventory.graph;
    // A job copies what is there, or moves it between images: the disk reads the same.
    let source = graph.hold_as_it_is(&disk.name(), user()).map_err(|error| inventory.refused(&error))?;
    let Some(target) = target else { return Ok(vec![source]) };
    let target = graph.hold(&target.name(), user()).map_err(|error| inventory.refused(&error))?;
    source.copies_to(&target);
    Ok(vec![source, target])
}
