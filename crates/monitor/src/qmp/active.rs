//! blockdev-set-active: disks that another process writes for a while, and exports of them.

use std::sync::Arc;

use control::{QmpError, arguments};
use graph::{Change, DiskNode};

use super::chain::free_of_jobs;
use crate::inventory::Inventory;

arguments! {
    /// One node, or all.
    pub struct SetActive { node_name: Option<String>, active: bool }
}

/// Makes one disk, or all, inactive, or active again.
pub async fn set(inventory: &Inventory, change: &Change<'_>, given: &SetActive) -> Result<(), QmpError> {
    let active = given.active;
    let names = match &given.node_name {
        Some(name) => vec![name.clone()],
        None => inventory.graph.nodes().iter().map(|node| node.name()).collect(),
    };
    for name in &names {
        if !active && let Ok(disk) = inventory.graph.disk(name) {
            check_may_rest(inventory, &disk)?;
        }
    }
    for name in &names {
        set_one(inventory, change, name, active).await?;
    }
    Ok(())
}

async fn set_one(
    inventory: &Inventory,
    change: &Change<'_>,
    name: &str,
    active: bool,
) -> Result<(), QmpError> {
    let before = inventory.graph.disk(name).ok().map(|disk| (disk.disk.size(), disk));
    let changed = inventory.graph.set_active(change, name, active).await;
    if let Some((size, disk)) = before.filter(|(size, disk)| *size != disk.disk.size()) {
        tracing::info!(
            node = name,
            before = size,
            now = disk.disk.size(),
            "another process resized the disk"
        );
        inventory.tell_resized(&disk);
    }
    changed.map_err(|error| inventory.refused(&error))
}

/// Refuses to make a disk inactive that a job works on, or that an export shows which does not allow it.
fn check_may_rest(inventory: &Inventory, disk: &Arc<DiskNode>) -> Result<(), QmpError> {
    if disk.owner().is_some() {
        return Ok(());
    }
    free_of_jobs(inventory, disk)?;
    let name = disk.name();
    let shows = |of: &Arc<DiskNode>| Arc::ptr_eq(of, disk) || inventory.graph.stands_on(&of.name(), &name);
    let exports = inventory.exports();
    match exports.iter().find(|export| !export.allows_inactive && shows(&export.disk)) {
        Some(export) => Err(QmpError::generic(format!(
            "node {name:?} is shown by export {:?}, which was made without allow-inactive",
            export.id
        ))),
        None => Ok(()),
    }
}

/// As in QEMU, the node of an export becomes active, unless the export allows it to be inactive.
pub async fn activate_for_export(
    inventory: &Inventory,
    change: &Change<'_>,
    (name, allows_inactive): (&str, bool),
) -> Result<(), QmpError> {
    match allows_inactive || inventory.graph.node(name).is_err() {
        true => Ok(()),
        false => set_one(inventory, change, name, true).await,
    }
}

/// Refuses what changes a disk that is inactive.
///
/// # Errors
/// When it is.
pub fn check(disk: &DiskNode) -> Result<(), QmpError> {
    match disk.disk.is_active() {
        true => Ok(()),
        false => Err(QmpError::generic(format!(
            "node {:?} is inactive: another process may write its files; activate it first (blockdev-set-active)",
            disk.name()
        ))),
    }
}
