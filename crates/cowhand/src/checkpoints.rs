//! Checkpoints of a disk in use, without a server: layers in the directory `layers` beside the disk, of which the crate `lineage` keeps order.
//!
//! A checkpoint is called by its name or by its id. Names are those of the program: `disk.checkpoint(..)` here is `cowhand checkpoint` there, on the same files.

mod kinds;
mod refused;
#[cfg(feature = "s3")]
mod stores;

use std::path::PathBuf;
use std::sync::Arc;

use ::checkpoints::{Batch, LayerMerge, Request, Sealed, differences, place_of, sealable, worth};
use graph::Change as GraphChange;
use graph::DiskNode;
use lineage::{
    Action, Change, CheckpointRef, DiskPlace, FORKS_MAX, Forgetting, PATIENCE, Policy, Survey, fork_paths,
};

pub use self::kinds::{
    Checkpoint, Collect, Difference, Differences, Forget, Forgotten, Keep, MergedLayers, NeededLayer,
    NewCheckpoint, Removal, Removed, Says,
};
#[cfg(feature = "s3")]
pub use self::stores::{Publish, Published, Push, Restore, Restored, restore};
use crate::disk::Disk;
use crate::error::{Error, ErrorKind};
use crate::in_flight::{Inside, Shared};
use crate::jobs::{Site, merge_of};
use crate::pending::Pending;

/// Ranges that one question gives at most: a list of 160 KiB.
const RANGES_MAX: usize = 4096;

impl Disk {
    /// Takes a checkpoint of the disk as it is, while it is in use: its active layer is sealed as `layers/ID.qcow2` beside it, read-only, and the disk continues in
    /// a new overlay at the path that it has. Requests wait for the switch alone. What completed before is in the checkpoint; layer, overlay and directory are
    /// durable when it completes. Gives the id of the layer.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] where the name is taken; [`ErrorKind::ReadOnly`]; [`ErrorKind::InUse`] while the disk has a job, or another command changes the
    /// lineage for more than 10 s; [`ErrorKind::Unsupported`] for a raw disk, and for what a layer cannot have: LUKS, bitmaps, internal snapshots.
    ///
    /// # Crash
    /// The disk reads the same, with the checkpoint or without it.
    pub fn checkpoint(&self, new: NewCheckpoint) -> Pending<String> {
        self.at_one_moment(async move |site, change, disk| {
            let place = sealable(&site.graph, disk).map_err(|error| site.refused(&error))?;
            let new = new.now().map_err(|error| site.refused(&error.into()))?;
            let id = new.id.to_string();
            act(site, change, disk, Action::Checkpoint { disk: place, new }).await?;
            Ok(id)
        })
    }

    /// Has the disk continue from a checkpoint, in a fresh overlay at the path that it has: requests in flight finish on the old layer, later ones find the new one. The
    /// layer that was active stays as a checkpoint without a name, whose id this gives. The guest must not use the disk meanwhile: what it has in its caches is
    /// of another disk afterwards.
    ///
    /// # Errors
    /// As [`Disk::checkpoint`]; [`ErrorKind::NotFound`] where there is no such checkpoint; [`ErrorKind::Corrupt`] where a layer has been written since it was
    /// sealed.
    ///
    /// # Crash
    /// The disk reads as before or as the checkpoint.
    pub fn rollback(&self, checkpoint: impl Into<String>) -> Pending<String> {
        let checkpoint = checkpoint.into();
        self.at_one_moment(async move |site, change, disk| {
            let place = sealable(&site.graph, disk).map_err(|error| site.refused(&error))?;
            let to = named(&checkpoint)?;
            let new = NewCheckpoint::default().now().map_err(|error| site.refused(&error.into()))?;
            let left = new.id.to_string();
            act(site, change, disk, Action::Rollback { of: place.clone(), disk: place, to, new }).await?;
            Ok(left)
        })
    }

    /// Makes a new disk that begins as a checkpoint is, at `new`, where nothing is, in the directory of the disk; with a `count` so many, with a number before the
    /// extension: `vm-1.qcow2` and so on. All are whole before the first has its name. Gives their paths; they are opened as any disk.
    ///
    /// # Errors
    /// As [`Disk::rollback`]; [`ErrorKind::Exists`] where something is at a path; [`ErrorKind::Invalid`] for another directory, and for more than 10,000.
    ///
    /// # Crash
    /// Each of them is whole or not there.
    pub fn fork(
        &self,
        checkpoint: impl Into<String>,
        new: impl Into<PathBuf>,
        count: Option<u32>,
    ) -> Pending<Vec<PathBuf>> {
        let (checkpoint, new) = (checkpoint.into(), new.into());
        self.at_one_moment(async move |site, change, disk| {
            let of = place_of(&site.graph, disk).map_err(|error| site.refused(&error))?;
            let to = named(&checkpoint)?;
            if count.is_some_and(|count| count == 0 || count > FORKS_MAX) {
                return Err(invalid(format!("{} forks; allowed: 1 to {FORKS_MAX}", count.unwrap_or(0))));
            }
            let paths = fork_paths(&new, count);
            let disks = paths.iter().map(|path| DiskPlace::of(path)).collect::<Result<Vec<_>, _>>();
            let disks = disks.map_err(|error| site.refused(&error.into()))?;
            act(site, change, disk, Action::Fork { of, to, disks }).await?;
            Ok(paths)
        })
    }

    /// All checkpoints of the lineage that the disk is of, the oldest first: those of its forks, and deleted ones that others need, too. None before the first one.
    /// Takes no lock, and costs a look at the header of each image.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] and others where an image cannot be read.
    pub fn checkpoints(&self) -> Pending<Vec<Checkpoint>> {
        self.in_lineage(|place| match place.place.is_lineage() {
            true => Ok(kinds::listed(&Survey::look(&place.place)?)),
            false => Ok(Vec::new()),
        })
    }

    /// Deletes checkpoints. A layer that a disk or another layer is backed by stays, without a name, until that is gone or [`Disk::forget`] merges it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where there is none; [`ErrorKind::InUse`] where a process has a layer open that would go.
    ///
    /// # Crash
    /// The next call does the rest.
    pub fn delete_checkpoints(
        &self,
        checkpoints: impl IntoIterator<Item = impl Into<String>>,
        removal: Removal,
    ) -> Pending<Removed> {
        let names: Vec<String> = checkpoints.into_iter().map(Into::into).collect();
        let wanted = names.iter().map(|name| named(name)).collect::<Result<Vec<_>, _>>();
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(error) => return Pending::ended(Err(error)),
        };
        self.in_lineage(move |place| {
            let change = Change::begin(&place.place, PATIENCE)?;
            let wanted: Vec<_> = wanted.into_iter().map(|wanted| (place.clone(), wanted)).collect();
            let (plan, outcome) = change.delete(&wanted)?;
            if removal == Removal::Remove {
                change.apply(&plan)?;
            }
            Ok(Removed::of(outcome))
        })
    }

    /// Removes layers that no checkpoint, no disk and no process needs any more: those of deleted checkpoints whose last fork is gone.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] and others where an image cannot be read: what it needs is unknown then.
    ///
    /// # Crash
    /// The next call does the rest.
    pub fn collect_layers(&self, collect: Collect) -> Pending<Removed> {
        self.in_lineage(move |place| {
            let change = Change::begin(&place.place, PATIENCE)?;
            let (plan, outcome) = change.collect(collect.unnamed, usize::MAX)?;
            if collect.removal == Removal::Remove {
                change.apply(&plan)?;
            }
            Ok(Removed::of(outcome))
        })
    }

    /// Forgets checkpoints of the disk that a policy does not keep, removes their layers where nothing needs them, and begins a job that merges those that one
    /// other layer alone is backed by into that one, the oldest first, while the disk is in use. Every disk and every checkpoint that stays reads as before.
    ///
    /// # Errors
    /// As [`Disk::collect_layers`]; [`ErrorKind::InUse`] while the disk has a job.
    ///
    /// # Crash
    /// Everything reads the same, and the next call does the rest.
    pub fn forget(&self, forget: Forget) -> Pending<Forgotten> {
        let shared = Arc::clone(self.shared());
        self.run(async move |inside| {
            let (keep, depth_max, waste_max) = (forget.keep.clone(), forget.depth_max, forget.waste_max);
            let policy = Policy { keep, depth_max, waste_max };
            if forget.depth_max == Some(0) {
                return Err(invalid("a disk with checkpoints is backed by 1 layer at least".to_owned()));
            }
            if forget.removal == Removal::List {
                let (site, disk) = entered(&shared, &inside).await?;
                return forgotten(&site, &disk, &forget, policy).await.map(|(_, found)| Forgotten::of(found));
            }
            let mut found = None;
            let begin = async |site: &Site, _: &GraphChange<'_>, disk: &Arc<DiskNode>| {
                let (place, forgotten) = forgotten(site, disk, &forget, policy).await?;
                let merge = LayerMerge { place: place.place, waste_max: forgotten.policy.waste_max };
                found = Some(Forgotten::of(forgotten));
                Ok(merge_of(merge, forget.speed_bytes))
            };
            let job = Self::begin_inside(shared, &inside, begin).await?;
            let found = found.ok_or_else(Error::loop_ended)?;
            Ok(Forgotten { job: Some(job), ..found })
        })
    }

    /// The ranges from `offset` on in which a checkpoint and another one, or the disk as it is, may differ: at most 4096, and where the next ones begin. Compares
    /// maps, and reads no data. The layers that both have in common are left out.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where there is no such checkpoint; [`ErrorKind::InUse`] where a checkpoint was taken meanwhile: repeat the call.
    pub fn differences(
        &self,
        checkpoint: impl Into<String>,
        other: Option<String>,
        offset: u64,
    ) -> Pending<Differences> {
        let checkpoint = checkpoint.into();
        let shared = Arc::clone(self.shared());
        self.run(async move |inside| {
            let (site, disk) = entered(&shared, &inside).await?;
            let refused = |error: ::checkpoints::Error| site.refused(&error);
            let place = place_of(&site.graph, &disk).map_err(refused)?;
            let open = async |name: &str| {
                let opened = Sealed::open(&place, &named(name)?, site.graph.rules()).await;
                opened.map_err(refused)
            };
            let one = open(&checkpoint).await?;
            let other = match &other {
                Some(name) => open(name).await.map(Some),
                None => Ok(None),
            };
            let found = match &other {
                Ok(other) => {
                    let top = other.as_ref().map_or_else(|| disk.disk.top_image(), |other| other.root());
                    differences(one.root(), top, offset, RANGES_MAX).await.map_err(refused)
                }
                Err(_) => Ok((Vec::new(), None)),
            };
            for opened in std::iter::once(&one).chain(other.as_ref().ok().and_then(Option::as_ref)) {
                // It was only read.
                let _ = opened.close().await;
            }
            other?;
            Ok(Differences::of(found?))
        })
    }

    /// Does `work` while nothing else changes the layers of the disk. Refuses it while the disk has a job, which knows them.
    fn at_one_moment<T, W>(&self, work: W) -> Pending<T>
    where
        T: Send + 'static,
        W: AsyncFnOnce(&Site, &GraphChange<'_>, &Arc<DiskNode>) -> Result<T, Error> + Send + 'static,
    {
        let shared = Arc::clone(self.shared());
        self.run(async move |inside| {
            let (site, disk) = entered(&shared, &inside).await?;
            let change = site.graph.change().await;
            site.check_free()?;
            work(&site, &change, &disk).await
        })
    }

    /// Does `work` with the place of the disk, on a thread that may wait: it reads headers, and may wait for another command on the lineage.
    fn in_lineage<T: Send + 'static>(
        &self,
        work: impl FnOnce(DiskPlace) -> Result<T, lineage::Error> + Send + 'static,
    ) -> Pending<T> {
        let shared = Arc::clone(self.shared());
        self.run(async move |inside| {
            let (site, disk) = entered(&shared, &inside).await?;
            let place = place_of(&site.graph, &disk).map_err(|error| site.refused(&error))?;
            let done = reactor::blocking(move || work(place)).await;
            done.map_err(|error| site.refused(&error.into()))
        })
    }
}

/// The graph of the disk, and the disk in it.
async fn entered(shared: &Arc<Shared>, inside: &Inside) -> Result<(Arc<Site>, Arc<DiskNode>), Error> {
    let site = shared.site()?;
    let disk = site.node(inside.shared_disk()).await?;
    Ok((site, disk))
}

async fn act(
    site: &Site,
    change: &GraphChange<'_>,
    disk: &Arc<DiskNode>,
    action: Action,
) -> Result<(), Error> {
    let request = Request { disk: Arc::clone(disk), action, last_look: None };
    Batch::run(&site.graph, change, vec![request]).await.map_err(|error| site.refused(&error))
}

/// What a policy comes to; done, unless it is to be listed.
async fn forgotten(
    site: &Site,
    disk: &DiskNode,
    forget: &Forget,
    policy: Policy,
) -> Result<(DiskPlace, lineage::Forgotten), Error> {
    let place = place_of(&site.graph, disk).map_err(|error| site.refused(&error))?;
    let forgetting = match (forget.removal, forget.is_saved) {
        (Removal::List, false) => Forgetting::Listed,
        (Removal::List, true) => {
            return Err(invalid("a policy cannot be saved where its outcome is only listed".to_owned()));
        }
        (Removal::Remove, true) => Forgetting::Saved,
        (Removal::Remove, false) => Forgetting::Done,
    };
    let of = place.clone();
    let found = reactor::blocking(move || lineage::forget(&of.place, Some(&of), policy, forgetting)).await;
    let mut found = found.map_err(|error| site.refused(&error.into()))?;
    let waste_max = found.policy.waste_max;
    let merges = worth(found.merges, (&place.place, site.graph.rules()), waste_max).await;
    found.merges = merges.map_err(|error| site.refused(&error))?;
    Ok((place, found))
}

fn named(checkpoint: &str) -> Result<CheckpointRef, Error> {
    CheckpointRef::parse(checkpoint).map_err(|error| invalid(error.to_string()))
}

fn invalid(text: String) -> Error {
    Error::said(ErrorKind::Invalid, text)
}
