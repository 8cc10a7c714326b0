//! Internal snapshots, taken and deleted while the disk is in use.

use std::time::{SystemTime, UNIX_EPOCH};

use control::{QmpError, arguments};
use graph::DiskNode;
use qcow2::Qcow2;
use qcow2::snapshot::{NewSnapshot, SnapshotName};
use qcow2_layout::SnapshotEntry;
use serde_json::{Value, json};

use super::chain::free_of_jobs;
use crate::inventory::Inventory;

arguments! {
    /// A snapshot to be.
    pub struct Internal { device: String, name: String }

    /// A snapshot that goes.
    pub struct Delete { device: String, id: Option<String>, name: Option<String> }
}

/// Takes a snapshot. What completed before is in it.
pub async fn create(inventory: &Inventory, Internal { device, name }: &Internal) -> Result<(), QmpError> {
    if name.is_empty() {
        return Err(QmpError::generic("argument 'name' is empty"));
    }
    let node = inventory.disk(device)?;
    free_of_jobs(inventory, &node)?;
    let image = image(&node)?;
    let known = image.snapshots().await.map_err(|error| cannot("read the snapshots of", device, &error))?;
    if SnapshotName::Name(name.clone()).find(&known).is_some() {
        return Err(QmpError::generic(format!("disk {device:?} has a snapshot named {name:?} already")));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let new = NewSnapshot {
        name: name.clone(),
        // The format's own end of time is in 2106.
        date_sec: u32::try_from(now.as_secs()).unwrap_or(u32::MAX),
        date_nsec: now.subsec_nanos(),
        vm_clock_nsec: 0,
        icount: None,
    };
    let taken = image.create_snapshot(new).await;
    taken.map(drop).map_err(|error| cannot("take a snapshot of", device, &error))
}

/// Deletes a snapshot, and returns what it was.
pub async fn delete(inventory: &Inventory, Delete { device, id, name }: &Delete) -> Result<Value, QmpError> {
    let name = match (id.clone(), name.clone()) {
        (Some(id), Some(name)) => SnapshotName::IdAndName { id, name },
        (Some(id), None) => SnapshotName::Id(id),
        (None, Some(name)) => SnapshotName::Name(name),
        (None, None) => return Err(QmpError::generic("give one of the arguments 'id' and 'name', or both")),
    };
    let node = inventory.disk(device)?;
    free_of_jobs(inventory, &node)?;
    let deleted = image(&node)?.delete_snapshot(name).await;
    deleted
        .map(|entry| snapshot_value(&entry))
        .map_err(|error| cannot("delete a snapshot of", device, &error))
}

fn image(node: &DiskNode) -> Result<Qcow2, QmpError> {
    node.disk.image().ok_or_else(|| {
        QmpError::generic(format!("node {:?} is raw: only qcow2 images have snapshots", node.name()))
    })
}

fn cannot(what: &str, device: &str, error: &qcow2::Error) -> QmpError {
    QmpError::because(format!("cannot {what} {device}"), error)
}

/// A snapshot under QEMU's names (SnapshotInfo).
pub fn snapshot_value(entry: &SnapshotEntry) -> Value {
    json!({
        "id": String::from_utf8_lossy(&entry.id),
        "name": String::from_utf8_lossy(&entry.name),
        "vm-state-size": entry.vm_state_size,
        "date-sec": entry.date_sec,
        "date-nsec": entry.date_nsec,
        "vm-clock-sec": entry.vm_clock_nsec / 1_000_000_000,
        "vm-clock-nsec": entry.vm_clock_nsec % 1_000_000_000,
    })
}
