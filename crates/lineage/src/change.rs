//! Commands that change a lineage.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use storage::{FileLock, Role};

use crate::checkpoint_name::{CheckpointName, CheckpointRef};
use crate::error::Error;
use crate::image::ImageFacts;
use crate::layer_id::LayerId;
use crate::lock::Lock;
use crate::manifest::{Manifest, Seal};
use crate::place::{DiskPlace, Place};
use crate::plan::{CHAIN_MAX, FORKS_MAX, NewCheckpoint, Plan, Sealing, chain_by_manifest};
use crate::recover::{Recovered, recover};
use crate::steps::{Access, NewOverlay, Step};
use crate::survey::Survey;

/// What the caller of a change does.
#[expect(async_fn_in_trait, reason = "changes run on one loop: their futures need not be Send")]
pub trait Host {
    /// Why a step failed.
    type Error: From<Error>;

    /// Makes an overlay at a path where nothing is: durable, its name too.
    async fn make_overlay(&self, at: &Path, overlay: &NewOverlay) -> Result<(), Self::Error>;

    /// Switches the disk to the image that its path leads to now. What clients write from then on is written there; the layer that was active, whose
    /// file is `sealed`, is closed and durable afterwards. Nothing to do for a disk that no process has open.
    async fn switch(&self, sealed: &Path) -> Result<(), Self::Error>;

    /// Does a step that works on files alone: here, or on a thread that may block.
    async fn file_step(&self, step: &Step) -> Result<(), Error> {
        step.run()
    }
}

/// A lineage that is locked and in order: one command's changes of it.
#[derive(Debug)]
pub struct Change {
    lock: Lock,
    recovered: Recovered,
}

/// What deletion comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Layers whose files go, the upper ones first.
    pub going: Vec<LayerId>,
    /// Bytes that their files take.
    pub going_bytes: u64,
    /// Layers that are needed: marked as deleted, each with what is backed by it. They go with the last of those.
    pub staying: Vec<(LayerId, Vec<String>)>,
}

impl Change {
    /// Locks the lineage, waiting up to `patience` for another command, and brings it in order ([`recover`]). Blocks.
    ///
    /// # Errors
    /// When it is locked, or cannot be brought in order; [`Error::NoLineage`] without layers.
    pub fn begin(place: &Place, patience: Duration) -> Result<Self, Error> {
        let lock = Lock::take(place, patience)?;
        let recovered = recover(&lock)?;
        Ok(Self { lock, recovered })
    }

    /// As [`Change::begin`], where the directory of the layers is made if it is not there.
    ///
    /// # Errors
    /// As [`Change::begin`].
    pub fn begin_first(place: &Place, patience: Duration) -> Result<Self, Error> {
        Step::MakeLayers { place: place.clone() }.run()?;
        Self::begin(place, patience)
    }

    /// What was found.
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    fn place(&self) -> &Place {
        self.lock.place()
    }

    fn manifest(&self) -> &Manifest {
        &self.recovered.manifest
    }

    /// Looks at all images.
    ///
    /// # Errors
    /// As [`Survey::take`].
    pub fn survey(&self) -> Result<Survey, Error> {
        Survey::take(self.place(), self.manifest())
    }

    /// The steps of a checkpoint: the active layer of `disk` is sealed, and the disk continues in an overlay of it. The caller keeps others from writing the
    /// disk, by its lock or by serving it.
    ///
    /// # Errors
    /// When the image cannot be a layer, the name is taken, the chain is as long as a chain may be, or the layer below has changed.
    pub fn checkpoint(&self, disk: &DiskPlace, new: NewCheckpoint) -> Result<Plan, Error> {
        let active = ImageFacts::must_read(self.place(), &disk.path())?;
        active.check_sealable()?;
        let chain = chain_by_manifest(self.place(), self.manifest(), &active.path, &active.backing)?;
        if let Some(name) = &new.name {
            self.check_name_free(disk, name, &chain)?;
        }
        // The new overlay, the layer that the active one becomes, those below, and a base.
        if chain.len() + 3 > CHAIN_MAX {
            return Err(Error::TooLong { disk: disk.path(), found: chain.len(), max: CHAIN_MAX });
        }
        self.check_parent(&active, &chain)?;
        let below = new.id;
        let shape = active.shape;
        Ok(Plan::seal(self.manifest(), Sealing { disk, active: &active, new, below, shape }))
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

    /// One look at the uppermost layer: to look at all of them takes longer than the checkpoint.
    fn check_parent(&self, active: &ImageFacts, chain: &[LayerId]) -> Result<(), Error> {
        let Some(id) = chain.first() else { return Ok(()) };
        let path = self.place().layer(*id);
        let found = match path.metadata() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::Missing { id: *id, path: active.path.clone() });
            }
            found => found.map_err(Error::io("cannot read", &path))?,
        };
        let seal: Option<Seal> = self.manifest().entry(*id).and_then(|entry| entry.seal);
        match seal.and_then(|seal| seal.difference(&found)) {
            Some(reason) => Err(Error::Changed { path, reason }),
            None => Ok(()),
        }
    }

    /// The steps of a rollback: the active layer of `disk` becomes a layer that `new` describes, and the disk continues in an overlay of the checkpoint.
    ///
    /// # Errors
    /// When there is no such checkpoint, a layer of it has changed, or the active layer cannot be a layer.
    pub fn rollback(
        &self,
        disk: &DiskPlace,
        to: (&DiskPlace, &CheckpointRef),
        new: NewCheckpoint,
    ) -> Result<Plan, Error> {
        let survey = self.survey()?;
        let (of, wanted) = to;
        if of.place != *self.place() {
            return Err(Error::Invalid(format!(
                "{} is a checkpoint of another lineage",
                wanted.shown(&of.path())
            )));
        }
        let below = survey.find(of, wanted)?;
        let shape = self.check_base(&survey, below)?;
        let active = ImageFacts::must_read(self.place(), &disk.path())?;
        active.check_sealable()?;
        Ok(Plan::seal(self.manifest(), Sealing { disk, active: &active, new, below, shape }))
    }

    /// What an overlay of a layer has of it, if it may have one.
    fn check_base(&self, survey: &Survey, id: LayerId) -> Result<crate::image::Shape, Error> {
        let layer =
            survey.layers.get(&id).ok_or_else(|| Error::Missing { id, path: self.place().layers() })?;
        let (mut chain, _) = survey.chain(&layer.image.path, &layer.image.backing)?;
        chain.insert(0, id);
        survey.check_sealed(&chain)?;
        match chain.len() + 2 > CHAIN_MAX {
            true => {
                Err(Error::TooLong { disk: layer.image.path.clone(), found: chain.len(), max: CHAIN_MAX })
            }
            false => Ok(layer.image.shape),
        }
    }

    /// The steps of forks: new disks over a checkpoint, at paths where nothing is.
    ///
    /// # Errors
    /// When there is no such checkpoint, a layer of it has changed, or a disk would be outside the lineage or is there.
    pub fn fork(&self, of: &DiskPlace, wanted: &CheckpointRef, disks: &[DiskPlace]) -> Result<Plan, Error> {
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
            if disk.path().symlink_metadata().is_ok() {
                return Err(Error::io("cannot make", &disk.path())(std::io::ErrorKind::AlreadyExists.into()));
            }
        }
        let survey = self.survey()?;
        let over = survey.find(of, wanted)?;
        let shape = self.check_base(&survey, over)?;
        // A fork is as private as the disk; of a disk that is gone the layer's readers are known.
        let access = match of.path().metadata() {
            Ok(found) => Access::of(&found),
            Err(_) => {
                let found = self
                    .place()
                    .layer(over)
                    .metadata()
                    .map_err(Error::io("cannot read", &self.place().layer(over)))?;
                let access = Access::of(&found);
                Access { mode: access.mode | 0o600, ..access }
            }
        };
        let ids =
            disks.iter().map(|disk| Ok((LayerId::new()?, disk.clone()))).collect::<std::io::Result<Vec<_>>>();
        let ids = ids.map_err(Error::io("cannot make an id for", self.place().directory()))?;
        Ok(Plan::fork(self.place(), over, shape, access, &ids))
    }

    /// The steps by which checkpoints are deleted, and what comes of it. What is backed by one of them keeps its layer.
    ///
    /// # Errors
    /// When there is no such checkpoint, or a process has a layer open that would go.
    pub fn delete(&self, checkpoints: &[(DiskPlace, CheckpointRef)]) -> Result<(Plan, Outcome), Error> {
        let survey = self.survey()?;
        let mut deleted = BTreeSet::new();
        for (disk, wanted) in checkpoints {
            deleted.insert(survey.find(disk, wanted)?);
        }
        self.removal(&survey, &deleted, |id, entry_deleted| entry_deleted || deleted.contains(&id))
    }

    /// The steps by which layers go that no checkpoint and no disk needs; with `unnamed` also checkpoints without a name that nothing is backed by.
    ///
    /// # Errors
    /// When a process has a layer open that would go.
    pub fn collect(&self, unnamed: bool) -> Result<(Plan, Outcome), Error> {
        let survey = self.survey()?;
        let is_unnamed = |id| self.manifest().entry(id).is_some_and(|entry| entry.name.is_none());
        self.removal(&survey, &BTreeSet::new(), |id, deleted| deleted || unnamed && is_unnamed(id))
    }

    fn removal(
        &self,
        survey: &Survey,
        deleted: &BTreeSet<LayerId>,
        wants: impl Fn(LayerId, bool) -> bool,
    ) -> Result<(Plan, Outcome), Error> {
        let is_deleted = |id| self.manifest().entry(id).is_some_and(|entry| entry.deleted);
        let going = survey.removable(|id, _| wants(id, is_deleted(id)));
        for id in &going {
            check_unused(&self.place().layer(*id))?;
        }
        let staying = deleted.iter().filter(|id| !going.contains(id)).map(|id| (*id, survey.users(*id)));
        let bytes =
            going.iter().filter_map(|id| survey.layers.get(id)).map(|layer| layer.image.allocated_bytes);
        let outcome = Outcome { going_bytes: bytes.sum(), staying: staying.collect(), going: going.clone() };
        Ok((Plan::remove(self.place(), self.manifest(), deleted, &going), outcome))
    }

    /// Runs the steps. When one fails before the change has happened, all before it are undone.
    ///
    /// # Crash
    /// After any step, each disk reads as before or as after; the next command brings the lineage in order.
    ///
    /// # Errors
    /// [`Error::Unfinished`] where the change has happened.
    pub async fn run<H: Host>(self, plan: &Plan, host: &H) -> Result<(), H::Error> {
        for (at, step) in plan.steps.iter().enumerate() {
            let done = match step {
                Step::MakeOverlay { at, overlay } => host.make_overlay(at, overlay).await,
                Step::Switch { sealed } => host.switch(sealed).await,
                step => host.file_step(step).await.map_err(|error| match at < plan.settled {
                    true => error.into(),
                    false => Error::Unfinished { source: Box::new(error) }.into(),
                }),
            };
            if let Err(error) = done {
                if at < plan.settled {
                    self.undo(&plan.steps[..at]);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes back steps that were done before one failed. What cannot be taken back is what a crash would leave: the next command finds it.
    fn undo(&self, steps: &[Step]) {
        for step in steps.iter().rev() {
            if step.undo().is_err() {
                return;
            }
        }
        let _ = recover(&self.lock);
    }
}

/// Refuses to remove a layer that a process has open.
fn check_unused(path: &Path) -> Result<(), Error> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty());
    let file: Arc<OwnedFd> = Arc::new(file.map_err(|error| Error::io("cannot open", path)(error.into()))?);
    match FileLock::acquire_role(&file, Role::Writer) {
        Ok(_) => Ok(()),
        Err(source) => Err(Error::Busy { path: path.to_owned(), source }),
    }
}
