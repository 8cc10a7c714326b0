//! Checkpoints that a policy does not keep are forgotten, and layers that nothing needs by themselves are merged into the layer above them.
//!
//! A layer is merged away if it is deleted and one other layer alone is backed by it: that layer's file gets what the merged ones have, under the name that it
//! has. Whatever is backed by it reads the same, and its header stays as it is. A layer that two others or a disk are backed by stays.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::change::{Change, Outcome};
use crate::entry::{Entry, UNKNOWN_DISK};
use crate::error::Error;
use crate::image::Backing;
use crate::keep::{Keep, Policy};
use crate::layer_id::LayerId;
use crate::lock::PATIENCE;
use crate::place::{DiskPlace, Place};
use crate::plan::Plan;
use crate::steps::Step;
use crate::survey::Survey;

/// What becomes of what a policy does not keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgetting {
    /// It is listed, and nothing changes.
    Listed,
    /// It goes.
    Done,
    /// It goes, and the policy is that of the lineage from then on; an empty one takes away what it has.
    Saved,
}

/// Layers that become one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merge {
    /// The layer that has all of it afterwards, and its name and id.
    pub into: LayerId,
    /// Those that go, from the upper to the lower.
    pub going: Vec<LayerId>,
    /// Bytes that the files of all take.
    pub bytes: u64,
}

/// What a policy comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// The policy: what was asked for, or the lineage's if nothing was.
    pub policy: Policy,
    /// Checkpoints that it does not keep, by layer.
    pub checkpoints: Vec<LayerId>,
    /// Layers that go at once, and those that stay for others.
    pub removal: Outcome,
    /// What is merged then, the oldest first.
    pub merges: Vec<Merge>,
    /// Disks that are backed by more layers than the policy wants all the same, with their number: the rest is named, or others need it.
    pub too_deep: Vec<(String, usize)>,
}

/// Forgets what `policy` does not keep, or without one what the lineage's does not, of one disk or of all, and removes layers that go at once. Blocks.
///
/// # Errors
/// As [`Change::begin`], [`Change::forget`] and [`Change::apply`].
pub fn forget(
    place: &Place,
    disk: Option<&DiskPlace>,
    policy: Policy,
    forgetting: Forgetting,
) -> Result<Forgotten, Error> {
    let mut change = Change::begin(place, PATIENCE)?;
    if forgetting == Forgetting::Saved {
        change.save_policy(&policy)?;
    }
    let policy = if policy.is_empty() { change.policy().cloned().unwrap_or_default() } else { policy };
    let (plan, forgotten) = change.forget(disk, &policy)?;
    if forgetting != Forgetting::Listed {
        change.apply(&plan)?;
    }
    Ok(forgotten)
}

impl Change {
    /// The lineage's policy.
    pub fn policy(&self) -> Option<&Policy> {
        self.manifest().policy()
    }

    /// Makes a policy that of the lineage, durably; an empty one takes away what it has.
    fn save_policy(&mut self, policy: &Policy) -> Result<(), Error> {
        let mut manifest = self.manifest().clone();
        manifest.set_policy((!policy.is_empty()).then(|| policy.clone()));
        Step::WriteManifest { place: self.place().clone(), manifest: manifest.clone() }.run()?;
        Step::SyncDirectory { path: self.place().layers() }.run()?;
        self.set_manifest(manifest);
        Ok(())
    }

    /// The steps by which checkpoints are forgotten that `policy` does not keep: those of `disk`, or of all disks. A checkpoint with a name stays, and counts as
    /// one of its time. What is to be merged then follows from [`Change::begin_merge`]. Layers that a process has open stay until it has not.
    ///
    /// # Errors
    /// When an image cannot be read.
    pub fn forget(&self, disk: Option<&DiskPlace>, policy: &Policy) -> Result<(Plan, Forgotten), Error> {
        let survey = self.survey()?;
        let is_deleted = |id| self.manifest().entry(id).is_some_and(|entry| entry.deleted);
        let mut gone: BTreeSet<LayerId> =
            survey.layers.keys().copied().filter(|id| is_deleted(*id)).collect();
        let mut forgotten = BTreeSet::new();
        if let Some(keep) = &policy.keep {
            forgotten = self.not_kept(keep, disk);
            gone.extend(&forgotten);
        }
        let mut too_deep = Vec::new();
        if let Some(max) = policy.depth_max {
            let named = |name: &str| disk.is_none_or(|disk| disk.name == name);
            for disk in survey.disks.iter().filter(|disk| named(&disk.name)) {
                let chain = survey.chain(&disk.image.path, &disk.image.backing)?.0;
                let depth = self.shorten(&survey, &chain, max, &mut gone, &mut forgotten);
                if depth > max {
                    too_deep.push((disk.name.clone(), depth));
                }
            }
        }
        let (plan, removal) = self.removal(&survey, &forgotten, usize::MAX, |id, _| gone.contains(&id))?;
        let merges = merges(&survey, &gone, &removal.going);
        let checkpoints = forgotten.into_iter().collect();
        Ok((plan, Forgotten { policy: policy.clone(), checkpoints, removal, merges, too_deep }))
    }

    /// Checkpoints without a name that are not kept.
    fn not_kept(&self, keep: &Keep, disk: Option<&DiskPlace>) -> BTreeSet<LayerId> {
        let mut of_disks: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        let counts = |entry: &&Entry| {
            let is_named = disk.is_none_or(|disk| disk.name == entry.disk);
            is_named && !entry.deleted && entry.disk != UNKNOWN_DISK
        };
        for entry in self.manifest().entries().filter(counts) {
            of_disks.entry(&entry.disk).or_default().push(entry);
        }
        let mut not_kept = BTreeSet::new();
        for entries in of_disks.values() {
            let times: Vec<Duration> = entries.iter().map(|entry| entry.time()).collect();
            let kept = keep.kept(&times);
            let others = entries.iter().enumerate().filter(|(at, _)| !kept.contains(at));
            not_kept.extend(others.filter(|(_, entry)| entry.name.is_none()).map(|(_, entry)| entry.id));
        }
        not_kept
    }

    /// Forgets the oldest checkpoints without a name of a chain until it is at most `max` layers deep. Gives how deep it is then.
    fn shorten(
        &self,
        survey: &Survey,
        chain: &[LayerId],
        max: usize,
        gone: &mut BTreeSet<LayerId>,
        forgotten: &mut BTreeSet<LayerId>,
    ) -> usize {
        let users = survey.all_users();
        let is_single = |id: &LayerId| is_for_one_layer(&users, *id);
        let mut depth = chain.iter().filter(|id| !(gone.contains(id) && is_single(id))).count();
        for id in chain.iter().rev().filter(|id| is_single(id)) {
            let entry = self.manifest().entry(*id);
            let is_free = entry.is_some_and(|entry| entry.name.is_none() && entry.disk != UNKNOWN_DISK);
            if depth > max && is_free && gone.insert(*id) {
                forgotten.insert(*id);
                depth -= 1;
            }
        }
        depth
    }
}

/// Whether one layer is backed by a layer, and nothing else.
pub(crate) fn is_for_one_layer(users: &BTreeMap<LayerId, Vec<String>>, id: LayerId) -> bool {
    let users = users.get(&id).map_or(&[][..], Vec::as_slice);
    matches!(users, [only] if LayerId::of_file_name(only).is_some())
}

/// Runs of layers that become one when `gone` are deleted, and `removed` are not there any more; the oldest first. Not of those that nothing needs.
pub(crate) fn merges(survey: &Survey, gone: &BTreeSet<LayerId>, removed: &[LayerId]) -> Vec<Merge> {
    let mut users = survey.all_users();
    for id in removed {
        let name = id.file_name();
        users.values_mut().for_each(|users| users.retain(|user| *user != name));
    }
    let goes = |id: LayerId| gone.contains(&id) && !removed.contains(&id) && is_for_one_layer(&users, id);
    // A process may have them open still.
    let unneeded = survey.removable(|id, _| gone.contains(&id));
    let mut merges = Vec::new();
    for (id, layer) in survey.layers.iter().filter(|(id, _)| !goes(**id) && !unneeded.contains(id)) {
        let (mut going, mut bytes) = (Vec::new(), layer.image.allocated_bytes);
        let mut below = &layer.image.backing;
        while let Backing::Layer(next) = below
            && goes(*next)
            && let Some(layer) = survey.layers.get(next)
        {
            going.push(*next);
            bytes += layer.image.allocated_bytes;
            below = &layer.image.backing;
        }
        if !going.is_empty() {
            merges.push(Merge { into: *id, going, bytes });
        }
    }
    let time = |id: &LayerId| survey.layers.get(id)?.entry.as_ref().map(Entry::time);
    merges.sort_by_key(|merge| (merge.going.last().and_then(time), merge.into));
    merges
}
