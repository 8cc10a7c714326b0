//! What keeps another process from taking over: each by name, and before anything is changed.

use std::path::Path;

use graph::drivers::elsewhere;

use crate::inventory::Inventory;
use crate::sandbox::Sandbox;

/// Why no process can take over from `inventory` now.
pub fn refusal(inventory: &Inventory) -> Option<String> {
    if let Some(command) = inventory.journal.lost() {
        return Some(format!("{command} changed what is served, and cannot be repeated by another process"));
    }
    if let Some(job) = inventory.jobs.all().first() {
        let id = job.info()["id"].as_str().unwrap_or_default().to_owned();
        return Some(format!("job {id:?} is not over; wait for it, or cancel it"));
    }
    if inventory.graph.rules().trace.is_some() {
        return Some("--trace records what is asked of this process, and of no other".to_owned());
    }
    of_exports(inventory).or_else(|| of_disks(inventory))
}

fn of_exports(inventory: &Inventory) -> Option<String> {
    inventory.exports().iter().find_map(|export| {
        if export.shutting_down.get() {
            return Some(format!("export {:?} is shutting down; try again", export.id));
        }
        if let Some(device) = export.ublk_door() {
            let (id, path) = (&export.id, device.path());
            return Some(format!("export {id:?} is {}: block devices stay where they are", path.display()));
        }
        let mount = export.fuse_door()?;
        Some(format!(
            "export {:?} is mounted at {}: mounts stay where they are",
            export.id,
            mount.path().display()
        ))
    })
}

fn of_disks(inventory: &Inventory) -> Option<String> {
    inventory.graph.disks().iter().find_map(|node| {
        let bitmaps = node.disk.bitmaps();
        if let Some(bitmap) = bitmaps.iter().find(|bitmap| !bitmap.is_persistent()) {
            let (bitmap, disk) = (bitmap.name(), node.name());
            return Some(format!("bitmap {bitmap:?} of {disk:?} is in memory alone (not persistent)"));
        }
        if inventory.sandbox == Sandbox::Off {
            return None;
        }
        // In the sandbox no connection is made again: this process could not take the disk back.
        let far = block::layers(node.disk.root()).find(|layer| elsewhere(Path::new(layer.name())).is_some());
        far.map(|layer| {
            format!("{:?} lies on {}; give the running daemon --sandbox off", node.name(), layer.name())
        })
    })
}
