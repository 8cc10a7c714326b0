//! What is asked of a lineage, and whether it can be done: checkpoints, rollbacks and forks, several at one moment.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use storage::FileAccess;

use crate::change::Change;
use crate::checkpoint_name::{CheckpointName, CheckpointRef};
use crate::error::Error;
use crate::files::files;
use crate::image::{Backing, ImageFacts, Shape, backing_in_base};
use crate::layer_id::LayerId;
use crate::lock::Lock;
use crate::manifest::Manifest;
use crate::place::{DiskPlace, Place};
use crate::plan::{CHAIN_MAX, FORKS_MAX, Forking, NewCheckpoint, Plan, Sealing, chain_by_manifest};
use crate::survey::Survey;

/// One thing that is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The active layer of a disk is sealed, and the disk continues in an overlay of it.
    Checkpoint {
        /// The disk.
        disk: DiskPlace,
        /// What its active layer becomes.
        new: NewCheckpoint,
    },
    /// A disk continues in an overlay of a checkpoint.
    Rollback {
        /// The disk.
        disk: DiskPlace,
        /// The disk that the checkpoint is of.
        of: DiskPlace,
        /// The checkpoint.
        to: CheckpointRef,
        /// What its active layer becomes.
        new: NewCheckpoint,
    },
    /// New disks begin as a checkpoint is, at paths where nothing is.
    Fork {
        /// The disk that the checkpoint is of.
        of: DiskPlace,
        /// The checkpoint.
        to: CheckpointRef,
        /// The new ones.
        disks: Vec<DiskPlace>,
    },
}

impl Action {
    /// The disk whose lineage is changed.
    pub fn disk(&self) -> &DiskPlace {
        match self {
            Self::Checkpoint { disk, .. } | Self::Rollback { disk, .. } => disk,
            Self::Fork { of, .. } => of,
        }
    }

    /// Disks that are other images afterwards.
    fn changed(&self) -> &[DiskPlace] {
        match self {
            Self::Checkpoint { disk, .. } | Self::Rollback { disk, .. } => std::slice::from_ref(disk),
            Self::Fork { disks, .. } => disks,
        }
    }
}

/// Paths of forks: `new` itself, or so many with a number before the extension.
pub fn fork_paths(new: &Path, count: Option<u32>) -> Vec<PathBuf> {
    let Some(count) = count else { return vec![new.to_owned()] };
    let stem = new.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let extension =
        new.extension().map_or_else(String::new, |extension| format!(".{}", extension.to_string_lossy()));
    (1..=count).map(|number| new.with_file_name(format!("{stem}-{number}{extension}"))).collect()
}

/// Refuses a disk that cannot have the first checkpoint of a directory, before anything is made there. In a lineage [`Change::plan`] alone looks, under the lock:
/// another command may be at work on the disk.
///
/// # Errors
/// Names what stands against it, and what to do.
pub fn check_sealable(disk: &DiskPlace) -> Result<(), Error> {
    let is_lineage = || disk.place.is_lineage();
    let check = || ImageFacts::must_read(&disk.place, &disk.path()).and_then(|image| check_image(&image));
    match is_lineage() {
        true => Ok(()),
        // The first checkpoint may be another command's, at this moment.
        false => check().or_else(|error| if is_lineage() { Ok(()) } else { Err(error) }),
    }
}

/// Refuses an image that cannot be a layer, or that this user cannot seal: found behind the switch, that would leave a layer without a seal.
fn check_image(active: &ImageFacts) -> Result<(), Error> {
    active.check_sealable()?;
    active.check_one_name()?;
    let action = "cannot be sealed: this user is not its owner";
    files().check_owned(&active.path).map_err(Error::io(action, &active.path))
}

impl Change {
    /// The steps of all `actions`, of this lineage, at one moment. Checkpoints that they name are there before. The caller keeps others from writing the disks, by
    /// their locks or by serving them.
    ///
    /// # Errors
    /// When one of them cannot be done: an image cannot be a layer, a name is taken, there is no such checkpoint, a chain would be too long, a layer has
    /// changed, a new disk is there or would be outside the lineage; when two concern one disk.
    pub fn plan(&self, actions: &[Action]) -> Result<Plan, Error> {
        let mut changed = BTreeSet::new();
        for disk in actions.iter().flat_map(Action::changed) {
            if !changed.insert(&disk.name) {
                return Err(Error::Invalid(format!("{} is named twice", disk.path().display())));
            }
        }
        let (mut sealings, mut forkings) = (Vec::new(), Vec::new());
        for action in actions {
            match action {
                Action::Rollback { disk, of, to, new } => {
                    sealings.push(self.rollback(disk, (of, to), new)?);
                }
                Action::Fork { of, to, disks } => forkings.push(self.fork((of, to), disks)?),
                Action::Checkpoint { disk, new } => sealings.push(self.checkpoint(disk, new)?),
            }
        }
        Ok(Plan::of(self.place(), self.manifest(), sealings, &forkings))
    }

    fn checkpoint(&self, disk: &DiskPlace, new: &NewCheckpoint) -> Result<Sealing, Error> {
        let active = ImageFacts::must_read(self.place(), &disk.path())?;
        check_image(&active)?;
        let bases = active.names_beside(self.place())?;
        let chain = chain_by_manifest(self.place(), self.manifest(), &active.path, &active.backing)?;
        if let Some(name) = &new.name {
            self.check_name_free(disk, name, &chain)?;
        }
        // The layer that the active one becomes, the new overlay, and one more: the disk can be rolled back afterwards.
        check_length(disk.path(), images_below(self.place(), &active, &chain), 3)?;
        if let Some(id) = chain.first() {
            check_layer(self.place(), self.manifest(), *id, &active.path)?;
        }
        let shape = active.shape;
        Ok(Sealing { disk: disk.clone(), active, bases, new: new.clone(), below: new.id, shape })
    }

    fn check_name_free(
        &self,
        disk: &DiskPlace,
        name: &CheckpointName,
        chain: &[LayerId],
    ) -> Result<(), Error> {
        let taken = self.manifest().entries().any(|entry| {
            let is_seen = entry.disk == disk.name || chain.contains(&entry.id);
            !entry.deleted && entry.name.as_ref() == Some(name) && is_seen
        });
        match taken {
            true => Err(Error::NameTaken { disk: disk.path(), name: name.to_string() }),
            false => Ok(()),
        }
    }

    /// Refuses a disk that is backed by a layer which is not what it was when it was sealed. Costs a look at each: a disk at work, whose server has looked when it
    /// opened them, has the uppermost alone looked at, by [`Change::plan`].
    ///
    /// # Errors
    /// Also when one is missing.
    pub fn check_layers(&self, disk: &DiskPlace) -> Result<(), Error> {
        let active = ImageFacts::must_read(self.place(), &disk.path())?;
        let chain = chain_by_manifest(self.place(), self.manifest(), &active.path, &active.backing)?;
        chain.into_iter().try_for_each(|id| check_layer(self.place(), self.manifest(), id, &active.path))
    }

    fn rollback(
        &self,
        disk: &DiskPlace,
        (of, wanted): (&DiskPlace, &CheckpointRef),
        new: &NewCheckpoint,
    ) -> Result<Sealing, Error> {
        if of.place != *self.place() {
            return Err(Error::Invalid(format!(
                "{} is a checkpoint of another lineage",
                wanted.shown(&of.path())
            )));
        }
        let (below, shape) = self.base(of, wanted)?;
        let active = ImageFacts::must_read(self.place(), &disk.path())?;
        check_image(&active)?;
        let bases = active.names_beside(self.place())?;
        let chain = chain_by_manifest(self.place(), self.manifest(), &active.path, &active.backing)?;
        // The layer that the active one becomes, and an overlay of it: it can be forked, and rolled back to.
        check_length(disk.path(), images_below(self.place(), &active, &chain), 2)?;
        Ok(Sealing { disk: disk.clone(), active, bases, new: new.clone(), below, shape })
    }

    /// The layer of a checkpoint, and what an overlay of it has of it, if it may have one.
    fn base(&self, of: &DiskPlace, wanted: &CheckpointRef) -> Result<(LayerId, Shape), Error> {
        let survey = Survey::of_checkpoint(self.place(), self.manifest(), (of, wanted))?;
        let id = survey.find(of, wanted)?;
        let (chain, base) = survey.sealed_chain(id)?;
        let layer =
            survey.layers.get(&id).ok_or_else(|| Error::Missing { id, path: self.place().layers() })?;
        let lowest = chain.last().map(|id| self.place().layer(*id)).unwrap_or_default();
        let outside = base.map_or(0, |base| images_from(&lowest, &base));
        check_length(layer.image.path.clone(), chain.len() + outside, 1)?;
        Ok((id, layer.image.shape))
    }

    fn fork(
        &self,
        (of, wanted): (&DiskPlace, &CheckpointRef),
        disks: &[DiskPlace],
    ) -> Result<Forking, Error> {
        if disks.len() > FORKS_MAX as usize {
            return Err(Error::Invalid(format!(
                "{} forks; one command makes up to {FORKS_MAX}",
                disks.len()
            )));
        }
        for disk in disks {
            if disk.place != *self.place() {
                let (found, needed) = (disk.path(), self.place().directory());
                return Err(Error::Invalid(format!(
                    "{}: a fork must be in the directory of its lineage, {}: what is there is looked at before a layer is removed",
                    found.display(),
                    needed.display()
                )));
            }
            if files().look_at_name(&disk.path()).is_ok() {
                return Err(Error::io("cannot make", &disk.path())(std::io::ErrorKind::AlreadyExists.into()));
            }
        }
        let (over, shape) = self.base(of, wanted)?;
        // A fork is as private as the disk; of a disk that is gone the layer's readers are known.
        let access = match files().look(&of.path()) {
            Ok(found) => found.access,
            Err(_) => {
                let layer = self.place().layer(over);
                let access = files().look(&layer).map_err(Error::io("cannot read", &layer))?.access;
                FileAccess { mode: access.mode | 0o600, ..access }
            }
        };
        let ids =
            disks.iter().map(|disk| Ok((LayerId::new()?, disk.clone()))).collect::<std::io::Result<Vec<_>>>();
        let disks = ids.map_err(Error::io("cannot make an id for", self.place().directory()))?;
        Ok(Forking { over, shape, access, disks })
    }
}

/// Looks at the layers of a lineage, at each once however many disks are backed by it. Costs the manifest, a header of each disk and a look at each layer.
#[derive(Debug)]
pub struct AsSealed {
    place: Place,
    manifest: Manifest,
    /// Layers that are as they were sealed, and so are all below.
    found: HashSet<LayerId>,
}

impl AsSealed {
    /// Of the lineage at `place`. Takes no lock.
    ///
    /// # Errors
    /// When its manifest cannot be used.
    pub fn of(place: &Place) -> Result<Self, Error> {
        let manifest = Manifest::read(place)?.unwrap_or_default();
        Ok(Self { place: place.clone(), manifest, found: HashSet::new() })
    }

    /// Refuses a disk that is backed by a layer which is not what it was when it was sealed. A merge may be putting another file in the place of one: then its end is
    /// waited for, up to `patience`. What is missing is left to those who open it.
    ///
    /// # Errors
    /// Names the layer.
    pub fn check(&mut self, disk: &DiskPlace, patience: Duration) -> Result<(), Error> {
        match self.look(disk) {
            Err(changed @ Error::Changed { .. }) => {
                let _lock = match Lock::take(&self.place, patience) {
                    // Who may not take it cannot tell.
                    Err(Error::Io { .. }) => return Err(changed),
                    locked => locked?,
                };
                *self = Self::of(&self.place)?;
                self.look(disk)
            }
            looked => looked,
        }
    }

    fn look(&mut self, disk: &DiskPlace) -> Result<(), Error> {
        let Some(image) = ImageFacts::read(&self.place, &disk.path())? else { return Ok(()) };
        let chain = chain_by_manifest(&self.place, &self.manifest, &image.path, &image.backing)?;
        let new: Vec<LayerId> = chain.into_iter().take_while(|id| !self.found.contains(id)).collect();
        for id in &new {
            match check_layer(&self.place, &self.manifest, *id, &image.path) {
                Err(Error::Missing { .. }) => {}
                looked => looked?,
            }
        }
        self.found.extend(new);
        Ok(())
    }
}

/// Refuses a layer that is not what it was when it was sealed. `of` is backed by it.
///
/// # Errors
/// Also when it is missing.
fn check_layer(place: &Place, manifest: &Manifest, id: LayerId, of: &Path) -> Result<(), Error> {
    let path = place.layer(id);
    let found = match files().look(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Error::Missing { id, path: of.to_owned() });
        }
        found => found.map_err(Error::io("cannot read", &path))?,
    };
    let seal = manifest.entry(id).and_then(|entry| entry.seal);
    match seal.and_then(|seal| seal.difference(&found)) {
        Some(reason) => Err(Error::Changed { path, reason }),
        None => Ok(()),
    }
}

/// Backing files of an image of the lineage: the layers of `chain`, from the upper to the lower, and those outside. Costs a header of the lowest layer and of each
/// image outside. What is not there, or names files in a way of its own, is one image.
fn images_below(place: &Place, of: &ImageFacts, chain: &[LayerId]) -> usize {
    let lowest = chain.last().map(|id| ImageFacts::read(place, &place.layer(*id)));
    let lowest = match &lowest {
        None => Some(of),
        Some(read) => read.as_ref().ok().and_then(Option::as_ref),
    };
    let outside = lowest.map_or(0, |lowest| match &lowest.backing {
        Backing::Outside(name) => images_from(&lowest.path, name),
        Backing::None | Backing::Layer(_) => 0,
    });
    chain.len() + outside
}

/// The image that the one at `of` calls `name`, and those below it.
fn images_from(of: &Path, name: &str) -> usize {
    let (mut of, mut name, mut found) = (of.to_owned(), name.to_owned(), 0);
    while found < CHAIN_MAX {
        found += 1;
        let path: PathBuf = of.parent().unwrap_or(Path::new("")).join(&name);
        let Some(next) = backing_in_base(&path) else { break };
        (of, name) = (path, next);
    }
    found
}

/// Refuses a chain that would not open. `more` images come over the `below` that `path` has.
fn check_length(path: PathBuf, below: usize, more: usize) -> Result<(), Error> {
    match below + more > CHAIN_MAX {
        true => Err(Error::TooLong { disk: path, found: below, max: CHAIN_MAX }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_forks_are_numbered_before_the_extension() {
        let paths = |new: &str, count| fork_paths(Path::new(new), count);
        assert_eq!(paths("/a/vm.qcow2", None), [Path::new("/a/vm.qcow2")]);
        assert_eq!(paths("/a/vm.qcow2", Some(2)), [Path::new("/a/vm-1.qcow2"), Path::new("/a/vm-2.qcow2")]);
        assert_eq!(paths("vm", Some(1)), [Path::new("vm-1")]);
    }
}
