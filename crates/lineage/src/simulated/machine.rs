//! What the caller of a change does, in the simulation: overlays are made by the engine, and disks that are served switch to them while guests write.

use std::path::Path;

use super::images::{Access, Chain, make_overlay, run};
use super::world::{Machine, World};
use crate::{Error, Host, NewOverlay, Step, Switched};

fn failed(path: &Path, error: String) -> Error {
    Error::io("the engine refuses", path)(std::io::Error::other(error))
}

impl Machine<'_> {
    /// Other processes at work between two steps: guests, and a second manager, which is refused.
    fn between_steps(&self) -> Result<(), Error> {
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
        made.inspect_err(|_| drop(crate::files::remove_if_there(at)))
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
