//! Commands that change a lineage.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use storage::{LockError, Role};

use crate::checkpoint_name::CheckpointRef;
use crate::deliberate::{Bug, has};
use crate::entry::{Entry, UNKNOWN_DISK};
use crate::error::Error;
use crate::files::files;
use crate::layer_id::LayerId;
use crate::lock::Lock;
use crate::manifest::Manifest;
use crate::place::{DiskPlace, Place};
use crate::plan::Plan;
use crate::recover::{Recovered, recover};
use crate::steps::{NewOverlay, Step, Switched, make_layers};
use crate::survey::Survey;

/// Steps that are done at the same time: each overlay takes a descriptor meanwhile.
const AT_ONCE_MAX: usize = 16;

/// What the caller of a change does.
#[expect(async_fn_in_trait, reason = "changes run on one loop: their futures need not be Send")]
pub trait Host {
    /// Why a step failed.
    type Error: From<Error>;

    /// Makes an overlay at a path where nothing is: what is in it is durable, its name need not be. If it takes the place of a disk ([`Plan::replacing`]), it is locked as its writer does
    /// before this ends, until the change has ended: no path of a disk leads to a file that another process could write.
    async fn make_overlay(&self, at: &Path, overlay: &NewOverlay) -> Result<(), Self::Error>;

    /// Switches disks to the images that their paths lead to now: all of them, or none. What clients write from then on is written there. Nothing to do for
    /// disks that no process has open.
    async fn switch(&self, disks: &[Switched]) -> Result<(), Self::Error>;

    /// Closes the layers that were active before [`Host::switch`], and makes durable what was written to them. What fails is reported: it undoes nothing.
    async fn close_sealed(&self, disks: &[Switched]);

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
    /// Layers that are needed: marked as deleted, each with what is backed by it; by a process that has it open where that is nothing. They go with the last of
    /// those.
    pub staying: Vec<(LayerId, Vec<String>)>,
    /// More could go than the caller wants at once.
    pub has_more: bool,
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
        make_layers(place)?;
        Self::begin(place, patience)
    }

    /// What was found.
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    pub(crate) fn place(&self) -> &Place {
        self.lock.place()
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.recovered.manifest
    }

    /// Takes note of a manifest that was written.
    pub(crate) fn set_manifest(&mut self, manifest: Manifest) {
        self.recovered.manifest = manifest;
    }

    /// Looks at all images, before one is removed.
    ///
    /// # Errors
    /// As [`Survey::take`]; also when one of them cannot be read.
    pub fn survey(&self) -> Result<Survey, Error> {
        Survey::of_all(self.place(), self.manifest())
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
        let wants = |id, is_deleted| is_deleted || deleted.contains(&id);
        let (plan, outcome) = self.removal(&survey, &deleted, usize::MAX, wants)?;
        for (id, _) in outcome.staying.iter().filter(|(_, users)| users.is_empty()) {
            check_unused(&self.place().layer(*id))?;
        }
        Ok((plan, outcome))
    }

    /// The steps by which layers go that no checkpoint, no disk and no process needs, `layers_max` at once; with `unnamed` also checkpoints without a name that
    /// nothing is backed by.
    ///
    /// # Errors
    /// When an image cannot be read.
    pub fn collect(&self, unnamed: bool, layers_max: usize) -> Result<(Plan, Outcome), Error> {
        let survey = self.survey()?;
        // One that is known from its image alone may have had a name.
        let may_be_named = |entry: &Entry| entry.name.is_some() || entry.disk == UNKNOWN_DISK;
        let is_unnamed = |id| self.manifest().entry(id).is_some_and(|entry| !may_be_named(entry));
        self.removal(&survey, &BTreeSet::new(), layers_max, |id, deleted| {
            deleted || unnamed && is_unnamed(id)
        })
    }

    /// Runs the steps of a plan that switches no disk. Blocks.
    ///
    /// # Errors
    /// [`Error::Unfinished`] where the change has happened.
    pub fn apply(&self, plan: &Plan) -> Result<(), Error> {
        for (at, step) in plan.steps.iter().enumerate() {
            step.run().map_err(|error| match at < plan.settled {
                true => error,
                false => Error::Unfinished { source: Box::new(error) },
            })?;
        }
        Ok(())
    }

    pub(crate) fn removal(
        &self,
        survey: &Survey,
        deleted: &BTreeSet<LayerId>,
        layers_max: usize,
        wants: impl Fn(LayerId, bool) -> bool,
    ) -> Result<(Plan, Outcome), Error> {
        let is_deleted = |id| self.manifest().entry(id).is_some_and(|entry| entry.deleted);
        let failed = Cell::new(None);
        let goes = |id| match is_unused(&self.place().layer(id)) {
            Ok(unused) => unused,
            Err(error) => {
                failed.set(Some(error));
                false
            }
        };
        // The upper ones first: what is left out is backed by none of those that go.
        let mut going = match has(Bug::NeededLayerRemoved) {
            true => deleted.iter().copied().collect(),
            false => survey.removable(|id, _| wants(id, is_deleted(id)) && goes(id)),
        };
        failed.take().map_or(Ok(()), Err)?;
        let has_more = going.len() > layers_max;
        going.truncate(layers_max);
        let staying = deleted.iter().filter(|id| !going.contains(id)).map(|id| (*id, survey.users(*id)));
        let bytes =
            going.iter().filter_map(|id| survey.layers.get(id)).map(|layer| layer.image.allocated_bytes);
        let staying = staying.collect();
        let outcome = Outcome { going_bytes: bytes.sum(), staying, going: going.clone(), has_more };
        Ok((Plan::remove(self.place(), self.manifest(), deleted, &going), outcome))
    }

    /// Runs the steps. When one fails before the change has happened, all before it are undone. Gives the lineage back, which is locked until that is
    /// dropped: the host's locks of disks go first, or the command that waits for the lineage finds a disk in use.
    ///
    /// # Crash
    /// After any step, each disk reads as before or as after; the next command brings the lineage in order.
    ///
    /// # Errors
    /// [`Error::Unfinished`] where the change has happened.
    pub async fn run<H: Host>(self, plan: Plan, host: &H) -> Result<Self, H::Error> {
        let prepared = self.prepare(plan, host).await?;
        if let Some(disks) = prepared.plan.switched()
            && let Err(error) = host.switch(disks).await
        {
            prepared.undo();
            return Err(error);
        }
        prepared.finish(host).await
    }

    /// Runs the steps before the switch: the paths of the disks lead to their new images. When one fails, all before it are undone.
    ///
    /// # Errors
    /// As [`Change::run`].
    pub async fn prepare<H: Host>(self, plan: Plan, host: &H) -> Result<Prepared, H::Error> {
        let prepared = Prepared { change: self, plan };
        let steps = &prepared.plan.steps[..prepared.plan.prepared()];
        let mut done = Vec::with_capacity(steps.len());
        for group in at_once(steps) {
            let results = join_all(group.iter().map(async |step| match step {
                Step::MakeOverlay { at, overlay } => host.make_overlay(at, overlay).await,
                step => host.file_step(step).await.map_err(H::Error::from),
            }));
            let mut failed = None;
            for (step, result) in group.iter().zip(results.await) {
                match result {
                    Ok(()) => done.push(step),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            if let Some(error) = failed {
                prepared.change.undo(done);
                return Err(error);
            }
        }
        Ok(prepared)
    }

    /// Takes back steps that were done before one failed. What cannot be taken back is what a crash would leave: the next command finds it, and is refused while
    /// a server writes the layer that its disk's path does not lead to any more.
    fn undo<'a>(&self, steps: impl IntoIterator<Item = &'a Step, IntoIter: DoubleEndedIterator>) {
        for step in steps.into_iter().rev().filter(|_| !has(Bug::NotUndone)) {
            if step.undo().is_err() {
                return;
            }
        }
        let _ = recover(&self.lock);
    }
}

/// A change whose files are there. It has happened when the disks are switched.
#[derive(Debug)]
pub struct Prepared {
    change: Change,
    plan: Plan,
}

impl Prepared {
    /// The disks to be switched.
    pub fn switched(&self) -> &[Switched] {
        self.plan.switched().unwrap_or_default()
    }

    /// Whether the lineage has a policy.
    pub fn has_policy(&self) -> bool {
        self.change.policy().is_some()
    }

    /// Takes all back, while no process uses the new images. Blocks.
    pub fn undo(self) {
        self.change.undo(&self.plan.steps[..self.plan.prepared()]);
    }

    /// Runs the steps behind the switch. Gives the lineage back, as [`Change::run`].
    ///
    /// # Errors
    /// [`Error::Unfinished`]: the change has happened.
    pub async fn finish<H: Host>(self, host: &H) -> Result<Change, H::Error> {
        if let Some(disks) = self.plan.switched() {
            host.close_sealed(disks).await;
        }
        for group in at_once(&self.plan.steps[self.plan.settled..]) {
            let done = join_all(group.iter().map(|step| host.file_step(step)));
            let done: Result<(), Error> = done.await.into_iter().collect();
            done.map_err(|error| Error::Unfinished { source: Box::new(error) })?;
        }
        Ok(self.change)
    }
}

/// Steps in groups: those of a group are done at the same time, so that what each makes durable is awaited once.
fn at_once(steps: &[Step]) -> impl Iterator<Item = &[Step]> {
    let groups = steps.chunk_by(|a, b| a.is_done_beside_others() && b.is_done_beside_others());
    groups.flat_map(|group| group.chunks(AT_ONCE_MAX))
}

/// Whether no process has the layer open.
pub(crate) fn is_unused(path: &Path) -> Result<bool, Error> {
    match check_unused(path) {
        Ok(()) => Ok(true),
        Err(Error::Busy { source: LockError::Busy { .. }, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Refuses to remove a layer that a process has open.
fn check_unused(path: &Path) -> Result<(), Error> {
    check_lock(path, Role::Writer)
}

/// Refuses a file that another process uses in a way that one who opens it for this does not suffer.
pub(crate) fn check_lock(path: &Path, role: Role) -> Result<(), Error> {
    match files().test_lock(path, role) {
        Ok(opened) => opened.map_err(Error::io("cannot open", path)),
        Err(source) => Err(Error::Busy { path: path.to_owned(), source }),
    }
}
