//! Disks that are files of this machine: each export has a mount of its own.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use control::QmpError;
use door_fuse::mount::{AllowOther, MountOptions, MountPoint, mount, unmount};
use door_fuse::watcher::Watcher;
use door_fuse::{FileOptions, FuseExport, SizeRequests};
use export::{Error, ErrorKind, Removal};
use futures_util::future::{Either, select};
use graph::DiskNode;
use qcow2::ResizeOptions;
use tool::failure::warn;

use super::Inventory;
use super::export_view::Shown;
use super::exports::{ExportDoor, ExportRecord, NewExport};

/// An export's mount.
#[derive(Debug)]
pub struct FuseDoor {
    export: Arc<FuseExport>,
    point: MountPoint,
    /// Takes the mount away; None when that has begun.
    watcher: RefCell<Option<Watcher>>,
    /// Requests of programs to change the size; None when a task answers them.
    sizes: RefCell<Option<SizeRequests>>,
}

/// A file to be, and how programs see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFuseDoor {
    /// The regular file that it lies over.
    pub mountpoint: PathBuf,
    /// Programs may change its size.
    pub growable: bool,
    /// Which other users may use it.
    pub allow_other: AllowOther,
}

impl FuseDoor {
    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.point.path
    }

    /// Waits until it is not served any more.
    pub async fn ended(&self) {
        self.export.ended().await;
    }

    /// Removes the mount. Programs that have the file open keep it while it is served.
    pub async fn unmount(&self) {
        let Some(watcher) = self.watcher.borrow_mut().take() else { return };
        if let Err(error) = reactor::blocking(move || watcher.finish()).await {
            let path = self.path().display();
            warn(&format!("{path} is still mounted ({error}); take it away: umount -l {path}"));
        }
    }
}

impl Inventory {
    /// Makes a disk a file. The kernel sends requests as soon as the loops run; call
    /// [`Inventory::watch_mounts`] afterwards.
    ///
    /// # Errors
    /// When the id is in use, or nothing can be mounted there.
    pub fn add_fuse_export(
        &self,
        (id, node): (String, String),
        shown: Shown,
        door: NewFuseDoor,
    ) -> Result<(), QmpError> {
        let NewFuseDoor { mountpoint, growable, allow_other } = door;
        let writable = shown.writable;
        let new = NewExport::at_own_door(&id, node, shown);
        self.export_through(new, |_, view| {
            self.is_no_file_of_ours(&mountpoint)?;
            // QEMU's file system is never read-only: programs change modes of files that they cannot write.
            let options = MountOptions { allow_other, read_only: !writable && !self.as_qemu };
            let failed = |error: &(dyn std::error::Error + 'static)| self.no_mount(&mountpoint, error);
            let (device, point) = mount(&mountpoint, options).map_err(|error| failed(&error))?;
            let watcher = Watcher::start(point.clone()).inspect_err(|_| {
                // The first error is the one that is reported.
                let _ = unmount(&point);
            });
            let watcher = RefCell::new(Some(watcher.map_err(|error| failed(&error))?));
            let options =
                FileOptions { growable, for_others: allow_other != AllowOther::Off, as_qemu: self.as_qemu };
            let added = self.fuse.add(id, view, options);
            let (export, sizes) = added.map_err(|error| QmpError::generic(error.to_string()))?;
            self.fuse.serve(device, &export).map_err(|error| failed(&error))?;
            let entry = Arc::clone(export.entry());
            let sizes = RefCell::new(Some(sizes));
            Ok((entry, ExportDoor::Fuse(FuseDoor { export, point, watcher, sizes })))
        })
    }

    /// Answers programs that change the size of their file, and removes an export whose mount another process
    /// took away. Runs on a loop; once for each export is enough.
    pub fn watch_mounts(self: &Rc<Self>) {
        for record in self.exports() {
            let Some(sizes) = record.fuse_door().and_then(|door| door.sizes.borrow_mut().take()) else {
                continue;
            };
            reactor::spawn(Rc::clone(self).answer_sizes(Rc::clone(&record), sizes)).detach();
            reactor::spawn(Rc::clone(self).watch_end(record)).detach();
        }
    }

    async fn answer_sizes(self: Rc<Self>, record: Rc<ExportRecord>, mut sizes: SizeRequests) {
        let Some(door) = record.fuse_door() else { return };
        // The record has the sender of these requests: they do not end by themselves.
        while let Either::Left((Some(request), _)) = select(pin!(sizes.next()), pin!(door.ended())).await {
            let result = self.resize_file(&record.disk, request.size()).await;
            request.answer(result);
        }
    }

    /// As the command block_resize does it; the program that cuts a file off means it.
    async fn resize_file(&self, disk: &Arc<DiskNode>, size: u64) -> Result<(), Error> {
        let _change = self.graph.change().await;
        let name = disk.name();
        if let Ok(Some(job)) = self.graph.job_on(&name) {
            let why = format!("the size cannot change: the disk is in use by {job}");
            return Err(Error::because(ErrorKind::NotSupported, name, why));
        }
        let options = ResizeOptions { shrink: true, bitmaps: true, ..ResizeOptions::default() };
        let resized = disk.disk.resize(size, options).await;
        // Also after a failure half-way: clients get the size that the disk has.
        self.tell_resized(disk);
        Ok(resized?)
    }

    async fn watch_end(self: Rc<Self>, record: Rc<ExportRecord>) {
        let Some(door) = record.fuse_door() else { return };
        door.ended().await;
        if !record.shutting_down.get() && !self.loops.shutdown().is_triggered() {
            tracing::info!(export = record.id, path = %door.path().display(), "the mount was taken away");
            // It is there, and forced to go: nothing can be wrong.
            let _ = self.remove_export(&record.id, Removal::Hard);
        }
    }

    /// Removes all mounts.
    pub async fn unmount_all(&self) {
        for export in self.exports() {
            if let Some(door) = export.fuse_door() {
                door.unmount().await;
            }
        }
    }

    /// Refuses a mount point that another export uses: the two would hide each other. Refuses an image of
    /// ours, too, since a program that opens the image by its name would get the mount instead; users of
    /// QEMU's daemon mean exactly that.
    fn is_no_file_of_ours(&self, point: &Path) -> Result<(), QmpError> {
        let Ok(point) = point.canonicalize() else { return Ok(()) };
        let exports = self.exports();
        let mut there =
            exports.iter().filter(|export| export.fuse_door().is_some_and(|door| door.path() == point));
        if let Some(export) = there.next() {
            let text = format!("export {:?} is mounted at {} already", export.id, point.display());
            return Err(QmpError::generic(text));
        }
        if self.as_qemu {
            return Ok(());
        }
        for disk in self.graph.disks() {
            let layers = self.graph.layers(&disk.name()).map_err(|error| self.refused(&error))?;
            let is_it = |name: &str| Path::new(name).canonicalize().is_ok_and(|path| path == point);
            if layers.iter().any(|layer| is_it(layer.block.name())) {
                let text = format!(
                    "{} is an image of the disk {:?}; mount the disk over another file",
                    point.display(),
                    disk.name()
                );
                return Err(QmpError::generic(text));
            }
        }
        Ok(())
    }

    /// Why a disk is not mounted, and what to do about it.
    fn no_mount(&self, point: &Path, error: &(dyn std::error::Error + 'static)) -> QmpError {
        let failed = QmpError::because(format!("cannot mount a disk at {}", point.display()), error);
        self.hinted_with(
            failed,
            "the sandbox lets nothing be mounted while disks are served; give --fuse at the start, or --sandbox off",
        )
    }
}
