//! What the caller of a change does, in the simulation: overlays are made by the engine, and disks that are served switch to them while guests write.

use std::path::Path;

use futures_util::pending;
use storage::{LockError, Role};

use super::images::{Access, Chain, make_overlay, run};
use super::world::{Machine, Sealing, World};
use crate::deliberate::{Bug, has};
use crate::{Error, Host, NewOverlay, Step, Switched};

fn failed(path: &Path, error: String) -> Error {
    Error::io("the engine refuses", path)(std::io::Error::other(error))
}

impl Machine<'_> {
    /// Locks a file as its writer does.
    pub(super) fn hold(&self, path: &Path) -> Result<(), Error> {
        let held = crate::files::files().lock(path, Role::Writer, false);
        let held = held.map_err(|source| Error::Busy { path: path.to_owned(), source })?;
        self.held.borrow_mut().push(held.map_err(Error::io("cannot lock", path))?);
        Ok(())
    }

    /// As a command does that changes disks which no server has.
    pub(super) fn hold_disks(&self) -> Result<(), Error> {
        let disks = self.sealings.borrow().iter().map(|sealing| sealing.disk.clone()).collect::<Vec<_>>();
        let is_offline = |disk: &&String| !self.world.borrow().served.contains_key(*disk);
        let paths: Vec<_> =
            disks.iter().filter(is_offline).map(|disk| self.world.borrow().path(disk)).collect();
        paths.iter().try_for_each(|path| self.hold(path))
    }

    /// A second writer is refused wherever the path of a disk leads that is being changed.
    fn check_locked(&self) -> Result<(), Error> {
        let world = self.world.borrow();
        for path in self.sealings.borrow().iter().map(|sealing| world.path(&sealing.disk)) {
            let second = crate::files::files().lock(&path, Role::Writer, false);
            if !matches!(second, Err(LockError::Busy { .. })) && !world.files.is_dead() {
                return Err(failed(&path, format!("a second writer: {second:?}")));
            }
        }
        Ok(())
    }

    /// Other processes at work between two steps: guests, and a second manager, which is refused.
    fn between_steps(&self) -> Result<(), Error> {
        self.check_locked()?;
        let mut world = self.world.borrow_mut();
        if world.rng.chance(1, 3) {
            let written = world.write_served();
            written.map_err(|error| failed(world.place.directory(), error))?;
        }
        if world.rng.chance(1, 8) && !world.files.is_dead() {
            let second = crate::Change::begin(&world.place, std::time::Duration::ZERO);
            if !matches!(second, Err(Error::Busy { .. })) {
                return Err(failed(&world.place.lock(), format!("two managers at once: {second:?}")));
            }
        }
        Ok(())
    }
}

impl Host for Machine<'_> {
    type Error = Error;

    async fn make_overlay(&self, at: &Path, overlay: &NewOverlay) -> Result<(), Error> {
        self.between_steps()?;
        let files = self.world.borrow().files.clone();
        let made = run(make_overlay(&files, at, overlay)).map_err(|error| failed(at, error));
        // As the shipped one: nothing is left of what cannot be made.
        made.inspect_err(|_| drop(crate::files::remove_if_there(at)))?;
        let is_replacing = |sealing: &Sealing| self.world.borrow().place.new_overlay(sealing.id) == at;
        if self.sealings.borrow().iter().any(is_replacing) && !has(Bug::OverlayNotLocked) {
            self.hold(at)?;
        }
        Ok(())
    }

    async fn switch(&self, disks: &[Switched]) -> Result<(), Error> {
        self.between_steps()?;
        let mut world = self.world.borrow_mut();
        if world.rng.chance(1, 24) {
            return Err(Error::Invalid("a disk cannot be switched".into()));
        }
        let fate = world.files.set_fate(None);
        let switched = disks.iter().try_for_each(|switched| self.switch_one(&mut world, switched));
        world.files.set_fate(fate);
        switched
    }

    async fn close_sealed(&self, disks: &[Switched]) {
        let mut world = self.world.borrow_mut();
        // Guests are on the new images: what is open below them is opened again as it is called now.
        for name in disks.iter().filter_map(|switched| switched.disk.file_name()?.to_str()) {
            let Some(before) = world.served.remove(name) else { continue };
            drop(before);
            let path = world.path(name);
            if let Ok(chain) = run(Chain::open(&world.files, &path, Access::Write)) {
                world.served.insert(name.to_owned(), chain);
            }
        }
    }

    async fn file_step(&self, step: &Step) -> Result<(), Error> {
        // What is done at the same time ends in any order.
        if step.is_done_beside_others() && self.world.borrow_mut().rng.chance(1, 2) {
            pending!();
        }
        self.between_steps()?;
        step.run()
    }
}

impl Machine<'_> {
    fn switch_one(&self, world: &mut World, switched: &Switched) -> Result<(), Error> {
        let name = switched.disk.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let content = world.disks.get(name).cloned();
        for sealing in self.sealings.borrow_mut().iter_mut().filter(|sealing| sealing.disk == name) {
            sealing.sealed.clone_from(&content);
            if let Some(to) = &sealing.to {
                world.disks.insert(name.to_owned(), to.clone());
            }
        }
        let Some(before) = world.served.get(name) else { return Ok(()) };
        run(before.close()).map_err(|error| failed(&switched.sealed, error))?;
        let opened = run(Chain::open(&world.files, &switched.disk, Access::Write));
        let opened = opened.map_err(|error| failed(&switched.disk, error))?;
        world.served.insert(name.to_owned(), opened);
        Ok(())
    }
}
