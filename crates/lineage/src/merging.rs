//! Layers are merged while other commands on the lineage go on: the copy is made beside them, under a lock of its own, and takes its place in a moment.
//!
//! A process that has the layers open keeps what it has: the merged layer reads the same. Its files go when it has closed them.

use std::path::PathBuf;
use std::time::Duration;

use crate::change::{Change, is_unused};
use crate::deliberate::{Bug, has};
use crate::entry::Seal;
use crate::error::Error;
use crate::files::{LockGuard, remove_if_there};
use crate::forget::{Merge, is_for_one_layer, merges};
use crate::layer_id::LayerId;
use crate::lock::lock;
use crate::place::Place;
use crate::plan::Plan;
use crate::steps::{MergedLayer, Step, record};
use crate::survey::{Layer, Survey};

/// A merge that has begun: until this is dropped no other command merges on the lineage.
#[derive(Debug)]
pub struct Merging {
    place: Place,
    merge: Merge,
    merged: MergedLayer,
    /// The layer that gets all of it, as it was.
    seal: Option<Seal>,
    _lock: LockGuard,
}

impl Change {
    /// Merges of layers that are deleted, the oldest first.
    ///
    /// # Errors
    /// When an image cannot be read.
    pub fn merges(&self) -> Result<Vec<Merge>, Error> {
        Ok(self.merges_of(&self.survey()?))
    }

    fn merges_of(&self, survey: &Survey) -> Vec<Merge> {
        let is_deleted = |id: &LayerId| self.manifest().entry(*id).is_some_and(|entry| entry.deleted);
        let gone = survey.layers.keys().copied().filter(is_deleted).collect();
        merges(survey, &gone, &[])
    }

    /// Begins a merge; `None` if it is none of [`Change::merges`] any more. The caller makes [`Merging::merged`] at [`Merging::at`], while the lineage need not be
    /// locked; then [`Merging::end`] says by which steps it takes its place.
    ///
    /// # Errors
    /// When a layer has changed since it was sealed; [`Error::Busy`] where another command merges.
    pub fn begin_merge(&self, wanted: &Merge) -> Result<Option<Merging>, Error> {
        let survey = self.survey()?;
        let is_wanted = |merge: &Merge| merge.into == wanted.into && merge.going == wanted.going;
        let Some(merge) = self.merges_of(&survey).into_iter().find(is_wanted) else { return Ok(None) };
        let place = self.place().clone();
        let held = lock(place.merge_lock(), Duration::ZERO)?;
        let layer = |id: LayerId| survey.layers.get(&id).ok_or(Error::Missing { id, path: place.layers() });
        let into = layer(merge.into)?;
        survey.sealed_chain(merge.into)?;
        let merged = MergedLayer {
            top: place.layer(merge.into),
            layers: merge.layers(),
            backing: layer(*merge.lowest())?.image.backing_in_header(),
            shape: into.image.shape,
            access: into.image.metadata().access,
        };
        let seal = into.entry.as_ref().and_then(|entry| entry.seal);
        Ok(Some(Merging { place, merge, merged, seal, _lock: held }))
    }
}

impl Merge {
    /// How many layers become one.
    pub fn layers(&self) -> usize {
        self.going.len() + 1
    }

    /// The lowest layer of those that become one.
    fn lowest(&self) -> &LayerId {
        self.going.last().unwrap_or(&self.into)
    }
}

impl Merging {
    /// Where.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// What becomes one.
    pub fn merge(&self) -> &Merge {
        &self.merge
    }

    /// The layer that is to be made, by the caller: durable, its name too. It reads as the uppermost of them.
    pub fn merged(&self) -> &MergedLayer {
        &self.merged
    }

    /// Where, in the directory of the layers; nothing is there.
    pub fn at(&self) -> PathBuf {
        self.place.new_merged(self.merge.into)
    }

    /// The steps by which the layer that was made takes its place; files go that no process has open. `None`: the lineage has changed meanwhile so that it has
    /// no place. Then, and when a step fails, [`Merging::abandon`] it.
    ///
    /// # Errors
    /// When an image cannot be read.
    pub fn end(&self, change: &Change) -> Result<Option<Plan>, Error> {
        let survey = change.survey()?;
        Ok(match (survey.layers.get(&self.merge.into), survey.layers.get(self.merge.lowest())) {
            (Some(into), Some(lowest)) if self.has_place(change, &survey, into) => {
                Some(self.plan(change, lowest)?)
            }
            _ => None,
        })
    }

    /// Locks the lineage, waiting up to `patience`, and takes the steps of [`Merging::end`]. `false`: what was made has no place. Blocks.
    ///
    /// # Errors
    /// As [`Change::begin`] and [`Change::apply`].
    pub fn put_in_place(&self, patience: Duration) -> Result<bool, Error> {
        let change = Change::begin(&self.place, patience)?;
        match self.end(&change)? {
            Some(plan) => change.apply(&plan).map(|()| true),
            None => Ok(false),
        }
    }

    /// Removes what was made, if it has not taken its place. Blocks.
    pub fn abandon(self) {
        // What stays the next command removes.
        let _ = remove_if_there(&self.at());
    }

    /// Whether the layers are still there, those that go are deleted still (a manifest that was lost meanwhile says so of none), and nothing else has come to need
    /// one of them.
    fn has_place(&self, change: &Change, survey: &Survey, into: &Layer) -> bool {
        let users = survey.all_users();
        let is_deleted = |id: &LayerId| change.manifest().entry(*id).is_some_and(|entry| entry.deleted);
        let chain = survey.chain(&into.image.path, &into.image.backing);
        chain.is_ok_and(|(chain, _)| chain.starts_with(&self.merge.going))
            && into.entry.as_ref().and_then(|entry| entry.seal) == self.seal
            && into.changed.is_none()
            && self.merge.going.iter().all(is_deleted)
            && (self.merge.going.iter().all(|id| is_for_one_layer(&users, *id))
                || has(Bug::ForkMeanwhileMissed))
    }

    fn plan(&self, change: &Change, lowest: &Layer) -> Result<Plan, Error> {
        let (into, new) = (self.merge.into, self.at());
        // Without a seal: which of the two files is there, the next command finds out.
        let mut open = change.manifest().clone();
        if let Some(entry) = open.entry_mut(into) {
            (entry.seal, entry.parent) = (None, lowest.image.backing.layer());
        }
        let mut steps = vec![
            Step::Seal { path: new.clone() },
            Step::SyncLayer { path: new.clone() },
            Step::WriteManifest { place: self.place.clone(), manifest: open.clone() },
            Step::SyncDirectory { path: self.place.layers() },
            Step::ReplaceLayer { from: new, to: self.place.layer(into) },
        ];
        let settled = steps.len();
        // The files that go are needed until the new one has the name for good.
        if !has(Bug::MergedNotAwaited) {
            steps.push(Step::SyncDirectory { path: self.place.layers() });
            steps.extend(record(&self.place, open.clone(), vec![into]));
        }
        let mut unused = Vec::new();
        for id in &self.merge.going {
            // The upper ones first: what one that stays is backed by stays, too.
            if !is_unused(&self.place.layer(*id))? {
                break;
            }
            unused.push(*id);
        }
        if !unused.is_empty() {
            unused.iter().for_each(|id| drop(open.take(*id)));
            steps.extend(unused.iter().map(|id| Step::Remove { path: self.place.layer(*id) }));
            steps.push(Step::SyncDirectory { path: self.place.layers() });
            steps.extend(record(&self.place, open, vec![into]));
        }
        Ok(Plan { steps, settled })
    }
}
