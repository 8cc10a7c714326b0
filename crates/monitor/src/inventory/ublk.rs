//! Disks that are block devices of this machine: each export has one of its own.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use control::QmpError;
use door_ublk::{Number, UblkExport};
use export::Removal;

use super::Inventory;
use super::export_view::Shown;
use super::exports::{ExportDoor, ExportRecord, NewExport};

/// An export's block device.
#[derive(Debug)]
pub struct UblkDoor {
    export: Arc<UblkExport>,
    /// A task watches its end.
    is_watched: Cell<bool>,
}

impl UblkDoor {
    /// The device that programs open.
    pub fn path(&self) -> PathBuf {
        self.export.path()
    }

    /// Programs lose it, after what they wrote has come to the disk.
    pub async fn remove(&self) {
        self.export.remove().await;
    }
}

impl Inventory {
    /// Makes a disk a block device. The kernel sends requests as soon as the loops run; call
    /// [`Inventory::watch_devices`] afterwards.
    ///
    /// # Errors
    /// When the id is in use, or the kernel gives us no device of this number.
    pub fn add_ublk_export(
        &self,
        (id, node): (String, String),
        shown: Shown,
        number: Number,
    ) -> Result<(), QmpError> {
        let disk = node.clone();
        let new = NewExport::at_own_door(&id, node, shown);
        self.export_through(new, |_, view| {
            let export = self.ublk.add((id, &disk), view, number);
            let export = export.map_err(|error| self.no_device(&error))?;
            let entry = Arc::clone(export.entry());
            Ok((entry, ExportDoor::Ublk(UblkDoor { export, is_watched: Cell::new(false) })))
        })
    }

    /// Removes an export whose device another process stopped. Runs on a loop; once for each export is
    /// enough.
    pub fn watch_devices(self: &Rc<Self>) {
        for record in self.exports() {
            if record.ublk_door().is_some_and(|door| !door.is_watched.replace(true)) {
                reactor::spawn(Rc::clone(self).watch_device(record)).detach();
            }
        }
    }

    async fn watch_device(self: Rc<Self>, record: Rc<ExportRecord>) {
        let Some(door) = record.ublk_door() else { return };
        door.export.ended().await;
        if !record.shutting_down.get() && !self.loops.shutdown().is_triggered() {
            tracing::info!(export = record.id, path = %door.path().display(), "the block device was taken away");
            // It is there, and forced to go: nothing can be wrong.
            let _ = self.remove_export(&record.id, Removal::Hard);
        }
    }

    /// All devices are gone.
    pub async fn remove_devices(&self) {
        for export in self.exports() {
            if let Some(door) = export.ublk_door() {
                door.remove().await;
            }
        }
    }

    /// Abandons devices that have not served any client.
    pub fn abandon_devices(&self) {
        self.exports().iter().filter_map(|export| export.ublk_door()).for_each(|door| door.export.abandon());
    }

    /// Why a disk is no block device, and what to do about it.
    fn no_device(&self, error: &(dyn std::error::Error + 'static)) -> QmpError {
        let failed = QmpError::because("cannot make a block device of the disk", error);
        self.hinted_with(
            failed,
            "the sandbox lets no device be opened while disks are served; give --ublk at the start, or --sandbox off",
        )
    }
}
