//! Exports: nodes that clients can reach.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use control::QmpError;
use event_listener::Event;
use export::{ExportEntry, Exports, NotRemoved, Removal};
use futures_util::future::select;
use graph::{Disk, DiskNode, Hold, User};
use serde_json::json;
use tool::voice;

use super::Inventory;
use super::export_view::{ExportView, LentBitmap, Shown};
use super::fuse::FuseDoor;
use super::ublk::UblkDoor;
use super::vhost_user::VhostDoor;
use crate::exports::check_name;

/// How long requests of disconnected clients wait for limits before they are admitted anyway: hardly at all.
const HURRY: Duration = Duration::from_millis(10);

/// How long clients wait at the end for what is reported of jobs.
const JOBS_PATIENCE: Duration = Duration::from_secs(2);

/// An export, and what it shows.
#[derive(Debug)]
pub struct ExportRecord {
    /// What it is called here.
    pub id: String,
    /// The disk that it leads to.
    pub disk: Arc<DiskNode>,
    /// What clients call it, and what they do with it.
    pub entry: Arc<ExportEntry>,
    /// How they reach it.
    pub door: ExportDoor,
    /// Its disk may be made inactive.
    pub allows_inactive: bool,
    /// Clients are on their way out.
    pub shutting_down: Cell<bool>,
    /// Notified when the export is gone completely.
    gone: Event,
    /// Those of its bitmaps that another disk has.
    lent: Vec<LentBitmap>,
    /// Keep all of them from being removed.
    holds: RefCell<Vec<Hold>>,
}

/// How clients reach an export.
#[derive(Debug)]
pub enum ExportDoor {
    /// At the sockets of the NBD server, by name.
    Nbd,
    /// At a socket of its own.
    VhostUserBlk(VhostDoor),
    /// As a file.
    Fuse(FuseDoor),
    /// As a block device.
    Ublk(UblkDoor),
}

impl ExportDoor {
    /// QEMU's word for it, or ours.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Nbd => "nbd",
            Self::VhostUserBlk(_) => "vhost-user-blk",
            Self::Fuse(_) => "fuse",
            Self::Ublk(_) => "ublk",
        }
    }
}

impl ExportRecord {
    /// The socket for virtual machines, if it has one.
    pub fn vhost_door(&self) -> Option<&VhostDoor> {
        if let ExportDoor::VhostUserBlk(door) = &self.door { Some(door) } else { None }
    }

    /// The file, if it is one.
    pub fn fuse_door(&self) -> Option<&FuseDoor> {
        if let ExportDoor::Fuse(door) = &self.door { Some(door) } else { None }
    }

    /// The block device, if it is one.
    pub fn ublk_door(&self) -> Option<&UblkDoor> {
        if let ExportDoor::Ublk(door) = &self.door { Some(door) } else { None }
    }

    /// Whether NBD clients reach it.
    pub fn is_nbd(&self) -> bool {
        matches!(self.door, ExportDoor::Nbd)
    }
}

/// An export to be.
#[derive(Debug)]
pub struct NewExport {
    /// What it is called here.
    pub id: String,
    /// What is exported.
    pub node: String,
    /// What clients call it.
    pub name: String,
    /// For people.
    pub description: String,
    /// What clients may see and do.
    pub shown: Shown,
    /// Those of its bitmaps that another disk has.
    pub lent: Vec<LentBitmap>,
}

impl NewExport {
    /// One with a door of its own, which shows no bitmaps.
    pub(super) fn at_own_door(id: &str, node: String, shown: Shown) -> Self {
        let (id, name) = (id.to_owned(), id.to_owned());
        Self { id, node, name, description: String::new(), shown, lent: Vec::new() }
    }
}

impl ExportRecord {
    /// Whether clients see this bitmap of this disk.
    pub fn shows(&self, disk: &Arc<DiskNode>, bitmap: &str) -> bool {
        let lent = self.lent.iter().find(|lent| lent.name == bitmap);
        let of = lent.map_or(&self.disk, |lent| &lent.of);
        Arc::ptr_eq(of, disk) && self.entry.disk().bitmaps().iter().any(|shown| shown == bitmap)
    }

    /// What is exported is called so now.
    pub fn node_name(&self) -> String {
        self.holds.borrow().first().map_or_else(|| self.disk.name(), Hold::node_name)
    }
}

/// Nothing has this id.
pub fn no_export(id: &str) -> QmpError {
    QmpError::generic(format!("there is no export with id {id:?}"))
}

impl Inventory {
    /// Lets NBD clients reach a disk.
    ///
    /// # Errors
    /// When the id or the name is in use, or the name cannot be one.
    pub fn add_export(&self, export: NewExport) -> Result<(), QmpError> {
        check_name(&export.name).map_err(|failure| QmpError::generic(failure.to_string()))?;
        let (name, description) = (export.name.clone(), export.description.clone());
        self.export_through(export, |_, view| {
            let added = self.server.exports().add(name, description, view);
            let entry = added.map_err(|error| QmpError::generic(error.to_string()))?;
            Ok((entry, ExportDoor::Nbd))
        })
    }

    /// Makes an export of what `open` adds to a door; everything else is checked before.
    pub(super) fn export_through(
        &self,
        export: NewExport,
        open: impl FnOnce(&Disk, Arc<ExportView>) -> Result<(Arc<ExportEntry>, ExportDoor), QmpError>,
    ) -> Result<(), QmpError> {
        let NewExport { id, node, shown, lent, .. } = export;
        if self.export(&id).is_some() {
            return Err(QmpError::generic(format!("there is an export with id {id:?} already")));
        }
        let disk = self.disk(&node)?;
        if shown.writable && disk.disk.read_only() {
            return Err(QmpError::generic(format!(
                "node {node:?} is read-only and cannot be exported writable"
            )));
        }
        let user = User { kind: "export", name: id.clone() };
        let used = [node, disk.name()].into_iter().chain(lent.iter().map(|lent| lent.of.name()));
        let holds = used.map(|name| match shown.writable {
            true => self.graph.hold(&name, user.clone()),
            false => self.graph.hold_as_it_is(&name, user.clone()),
        });
        let holds = holds.collect::<Result<_, _>>().map_err(|error| self.refused(&error))?;
        let allows_inactive = shown.allows_inactive;
        let view = Arc::new(ExportView::new(Arc::clone(&disk.disk), shown, lent.clone()));
        let (entry, door) = open(&disk.disk, view)?;
        let record = ExportRecord {
            id,
            disk,
            entry,
            door,
            allows_inactive,
            shutting_down: Cell::new(false),
            gone: Event::new(),
            lent,
            holds: RefCell::new(holds),
        };
        self.exports.borrow_mut().push(Rc::new(record));
        Ok(())
    }

    /// Takes an export from its clients. It is gone, and the event sent, when the last request of the last client has
    /// ended; until then it is shutting down.
    ///
    /// # Errors
    /// When there is none of that id; with [`Removal::Safe`], when clients use it.
    pub fn remove_export(self: &Rc<Self>, id: &str, how: Removal) -> Result<(), QmpError> {
        let record = self.export(id).ok_or_else(|| no_export(id))?;
        if record.shutting_down.get() {
            return Err(QmpError::generic(format!("export {id:?} is shutting down already")));
        }
        match self.behind(&record.door).remove(record.entry.name(), how) {
            Ok(_) => {}
            Err(error @ NotRemoved::InUse { .. }) => {
                let text = format!("{error}; mode hard disconnects them");
                return Err(QmpError::generic(text));
            }
            Err(error) => return Err(QmpError::generic(error.to_string())),
        }
        if let Some(door) = record.vhost_door() {
            door.close();
        }
        record.shutting_down.set(true);
        let is_local = record.fuse_door().is_some() || record.ublk_door().is_some();
        if record.entry.connections() == 0 && !is_local {
            self.forget_export(&record);
            return Ok(());
        }
        let inventory = Rc::clone(self);
        reactor::spawn(async move {
            inventory.see_off(&record).await;
            if let Some(door) = record.fuse_door() {
                door.unmount().await;
                // Requests of no open file may be in flight.
                door.ended().await;
            }
            if let Some(door) = record.ublk_door() {
                door.remove().await;
            }
            inventory.forget_export(&record);
        })
        .detach();
        Ok(())
    }

    /// What a door leads to.
    fn behind(&self, door: &ExportDoor) -> &Exports {
        match door {
            ExportDoor::Nbd => self.server.exports(),
            ExportDoor::VhostUserBlk(_) => self.vhost.exports(),
            ExportDoor::Fuse(_) => self.fuse.exports(),
            ExportDoor::Ublk(_) => self.ublk.exports(),
        }
    }

    /// Notifies the clients of a disk of its new size.
    pub fn tell_resized(&self, disk: &Arc<DiskNode>) {
        let exports = self.exports();
        let its = exports.iter().filter(|export| Arc::ptr_eq(&export.disk, disk));
        its.for_each(|export| export.entry.tell_resized());
    }

    /// Waits for the last client's end. If that was the disk's last export, its requests do not wait for
    /// limits any more.
    async fn see_off(&self, record: &Rc<ExportRecord>) {
        while record.entry.connections() > 0 {
            let unused = pin!(record.entry.unused());
            let hurry = pin!(async {
                reactor::sleep(HURRY).await;
                let others = self
                    .exports()
                    .iter()
                    .any(|other| Arc::ptr_eq(&other.disk, &record.disk) && !other.shutting_down.get());
                if !others {
                    drop(record.disk.disk.drain().await);
                }
            });
            select(unused, hurry).await;
        }
    }

    /// Ends all jobs and reports that, and the end of each export, to clients that wait for it: the program ends. Once only.
    pub async fn report_end(&self) {
        if self.end_reported.replace(true) {
            return;
        }
        if voice::name() == "qemu-storage-daemon" {
            // Its callers remove the name, and miss it where it has gone.
            self.doors.leave_name();
        }
        reactor::within(JOBS_PATIENCE, self.jobs.end_all()).await;
        for export in self.exports() {
            self.events.emit("BLOCK_EXPORT_DELETED", &json!({ "id": export.id }));
        }
    }

    fn forget_export(&self, record: &Rc<ExportRecord>) {
        self.exports.borrow_mut().retain(|other| !Rc::ptr_eq(other, record));
        record.holds.borrow_mut().clear();
        self.events.emit("BLOCK_EXPORT_DELETED", &json!({ "id": record.id }));
        record.gone.notify(usize::MAX);
    }

    /// Waits until the last client of an export has left and its nodes are free.
    pub async fn export_gone(&self, record: &Rc<ExportRecord>) {
        let gone = record.gone.listen();
        if self.exports.borrow().iter().any(|other| Rc::ptr_eq(other, record)) {
            gone.await;
        }
    }

    /// The export called `id` here.
    pub fn export(&self, id: &str) -> Option<Rc<ExportRecord>> {
        self.find_export(|record| record.id == id)
    }

    /// The first export that `is_it` holds of.
    pub fn find_export(&self, is_it: impl Fn(&ExportRecord) -> bool) -> Option<Rc<ExportRecord>> {
        self.exports.borrow().iter().find(|record| is_it(record)).cloned()
    }

    /// All exports, in the order of their making.
    pub fn exports(&self) -> Vec<Rc<ExportRecord>> {
        self.exports.borrow().clone()
    }
}
