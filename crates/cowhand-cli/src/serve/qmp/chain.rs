//! Layers of a disk as arguments name them: by node name or by file.

use std::path::Path;
use std::sync::Arc;

use control::{Arguments, QmpError};
use graph::{DiskNode, Hold, LayerView, User};

use crate::serve::inventory::Inventory;

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
    /// When there is none, or a job is at work on it.
    pub fn of(inventory: &Inventory, name: &str) -> Result<Self, QmpError> {
        let disk = inventory.disk(name)?;
        free_of_jobs(inventory, &disk)?;
        let layers = inventory.graph.layers(&disk.name()).map_err(|error| inventory.refused(&error))?;
        Ok(Self { disk, layers })
    }

    /// The layer that one of two arguments names, counted from the uppermost one; `None` if neither is given.
    ///
    /// # Errors
    /// When both are given, or there is no such layer.
    pub fn find(
        &self,
        arguments: Arguments<'_>,
        by_node: &'static str,
        by_file: &'static str,
    ) -> Result<Option<usize>, QmpError> {
        let found = match (arguments.maybe_text(by_node), arguments.maybe_text(by_file)) {
            (Some(_), Some(_)) => {
                return Err(QmpError::generic(format!(
                    "give one of the arguments '{by_node}' and '{by_file}'"
                )));
            }
            (None, None) => return Ok(None),
            (Some(node), None) => self
                .layers
                .iter()
                .position(|layer| layer.name.as_deref() == Some(node))
                .ok_or((by_node, node)),
            (None, Some(file)) => {
                self.layers.iter().position(|layer| is_file(layer, file)).ok_or((by_file, file))
            }
        };
        found.map(Some).map_err(|(argument, name)| {
            let disk = self.disk.name();
            QmpError::generic(format!("argument '{argument}': {name:?} is no layer of the disk {disk:?}"))
        })
    }
}

/// Whether the layer is made of the file called `file`.
fn is_file(layer: &LayerView, file: &str) -> bool {
    let same =
        || Some(Path::new(layer.block.name()).canonicalize().ok()? == Path::new(file).canonicalize().ok()?);
    layer.block.name() == file || same() == Some(true)
}

/// Refuses a disk that a job is at work on.
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

/// Keeps nodes for a job.
///
/// # Errors
/// When one is not there.
pub fn hold(inventory: &Inventory, job: &str, nodes: &[&str]) -> Result<Vec<Hold>, QmpError> {
    let user = User { kind: "job", name: job.to_owned() };
    let holds = nodes.iter().map(|node| inventory.graph.hold(node, user.clone()));
    holds.collect::<Result<_, _>>().map_err(|error| inventory.refused(&error))
}
