//! A lineage changed without a server.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use graph::OpenRules;
use graph::options::DiskOptions;
use lineage::{Change, DiskPlace, Error, Host, ImageFacts, NewOverlay, Plan, Switched};
use rustix::fs::{Mode, OFlags, open};
use storage::{FileLock, Role};
use tool::failure::Failure;

use crate::copying;

/// No process has the disk open: nothing is switched.
struct Offline {
    /// Images that are going to take the places of disks.
    replacing: Vec<PathBuf>,
    /// Keep other processes out of those.
    locked: RefCell<Vec<LockedDisk>>,
}

impl Host for Offline {
    type Error = Failure;

    async fn make_overlay(&self, at: &Path, new: &NewOverlay) -> Result<(), Failure> {
        checkpoints::make_overlay(at, new).await?;
        if self.replacing.iter().any(|path| path == at) {
            self.locked.borrow_mut().push(lock(at)?);
        }
        Ok(())
    }

    async fn switch(&self, _disks: &[Switched]) -> Result<(), Failure> {
        Ok(())
    }

    async fn close_sealed(&self, _disks: &[Switched]) {}
}

/// Runs the steps of a change.
///
/// # Errors
/// As [`Change::run`].
pub fn run(change: Change, plan: Plan) -> Result<(), Failure> {
    let replacing = plan.replacing().map(Path::to_owned).collect();
    let host = Offline { replacing, locked: RefCell::default() };
    let change = copying::reactor()?.run(change.run(plan, &host))?;
    drop(host);
    drop(change);
    Ok(())
}

/// A disk with a lock that keeps other writers out.
#[derive(Debug)]
pub struct LockedDisk(#[expect(dead_code, reason = "gives the lock back when it is dropped")] FileLock);

impl LockedDisk {
    /// Locks the disk's image, which is repaired first if it was not closed. The lineage is locked: the path stays the image's.
    ///
    /// # Errors
    /// When it is in use.
    pub fn of(disk: &DiskPlace) -> Result<Self, Failure> {
        let path = disk.path();
        let locked = lock(&path)?;
        match ImageFacts::must_read(&disk.place, &path)?.is_dirty() {
            false => Ok(locked),
            true => {
                drop(locked);
                repair(&path)?;
                lock(&path)
            }
        }
    }
}

fn lock(path: &Path) -> Result<LockedDisk, Failure> {
    let failed =
        |error: &dyn std::error::Error| Failure::because(format!("cannot use {}", path.display()), error);
    let file = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let file: Arc<OwnedFd> = Arc::new(file.map_err(|error| failed(&error))?);
    match FileLock::acquire_role(&file, Role::Writer) {
        Ok(lock) => Ok(LockedDisk(lock)),
        Err(source) => Err(Error::Busy { path: path.to_owned(), source }.into()),
    }
}

/// A writer repairs an image when it opens it.
fn repair(path: &Path) -> Result<(), Failure> {
    let options = DiskOptions::of_path(path);
    copying::reactor()?.run(async {
        let disk = copying::open(&options, &OpenRules::default(), "repair").await?;
        copying::finish(&disk, Ok(()), |error| copying::because("repair", &options, error)).await
    })
}
