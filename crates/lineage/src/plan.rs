//! Which steps a change of a lineage has.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use storage::FileAccess;

use crate::checkpoint_name::CheckpointName;
use crate::deliberate::{Bug, has};
use crate::entry::Entry;
use crate::error::Error;
use crate::image::{Backing, ImageFacts, Shape};
use crate::labels::Labels;
use crate::layer_id::LayerId;
use crate::manifest::Manifest;
use crate::place::{DiskPlace, Place};
use crate::steps::{NewOverlay, Step, Switched, record};

/// Images of a chain, the active one included: what cowhand opens.
pub const CHAIN_MAX: usize = 1000;
/// Disks that one command makes: each takes an id and a header before the first has its name.
pub const FORKS_MAX: u32 = 10_000;

/// What is recorded of a checkpoint that is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCheckpoint {
    /// The layer that the active one becomes.
    pub id: LayerId,
    /// Its name, if it has one.
    pub name: Option<CheckpointName>,
    /// Its labels.
    pub labels: Labels,
    /// Now, since 1970.
    pub time: Duration,
}

impl NewCheckpoint {
    /// One of this moment.
    ///
    /// # Errors
    /// When a checkpoint cannot be called so, or have these labels (`KEY=VALUE`).
    pub fn now(name: Option<&str>, labels: &[String]) -> Result<Self, Error> {
        let name = name.map(CheckpointName::parse).transpose();
        let name = name.map_err(|error| Error::Invalid(error.to_string()))?;
        let labels = Labels::parse(labels.iter().map(String::as_str)).map_err(Error::Invalid)?;
        let id = LayerId::new().map_err(|error| Error::Invalid(format!("there is no id: {error}")))?;
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self { id, name, labels, time })
    }

    /// What it is called: its name, or else the id of its layer.
    pub fn called(&self) -> String {
        self.name.as_ref().map_or_else(|| self.id.to_string(), ToString::to_string)
    }
}

/// A change, as steps in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The steps.
    pub steps: Vec<Step>,
    /// After so many of them the change has happened: an error is no reason to undo it.
    pub settled: usize,
}

/// The layer that the active one becomes, and the overlay that takes its place.
pub(crate) struct Sealing {
    pub(crate) disk: DiskPlace,
    /// The active layer.
    pub(crate) active: ImageFacts,
    /// Files beside the disk that are to be found from the directory of the layers, too.
    pub(crate) bases: Vec<String>,
    /// What it becomes.
    pub(crate) new: NewCheckpoint,
    /// What the new overlay is backed by: that layer, or an older one.
    pub(crate) below: LayerId,
    pub(crate) shape: Shape,
}

/// Disks over a layer.
pub(crate) struct Forking {
    pub(crate) over: LayerId,
    pub(crate) shape: Shape,
    pub(crate) access: FileAccess,
    /// The disks, each with an id for its file on its way.
    pub(crate) disks: Vec<(LayerId, DiskPlace)>,
}

impl Plan {
    /// Seals the active layers of disks and puts overlays in their places; makes disks over layers. All new images are whole before the first has its name.
    pub(crate) fn of(
        place: &Place,
        manifest: &Manifest,
        sealings: Vec<Sealing>,
        forkings: &[Forking],
    ) -> Self {
        let (mut manifest, mut ids) = (manifest.clone(), Vec::new());
        let (mut bases, mut overlays, mut links) = (Vec::new(), Vec::new(), Vec::new());
        let (mut names, mut switched) = (Vec::new(), Vec::new());
        let (mut seals, mut synced) = (Vec::new(), Vec::new());
        let make = |id, over, shape, access| Step::MakeOverlay {
            at: place.new_overlay(id),
            overlay: NewOverlay { backing_name: Place::name_in_images(over), shape, access },
        };
        for Sealing { disk, active, bases: names_beside, new, below, shape } in sealings {
            let (id, path, sealed) = (new.id, disk.path(), place.layer(new.id));
            bases.extend(names_beside.into_iter().map(|name| Step::LinkBase { place: place.clone(), name }));
            manifest.put(Entry {
                id,
                parent: active.backing.layer(),
                disk: disk.name,
                name: new.name,
                time_sec: new.time.as_secs(),
                time_nsec: new.time.subsec_nanos(),
                labels: new.labels,
                seal: None,
                deleted: false,
            });
            overlays.push(make(id, below, shape, active.metadata().access));
            links.push(Step::Link { from: path.clone(), to: sealed.clone() });
            names.push(Step::Replace { from: place.new_overlay(id), to: path.clone(), kept: sealed.clone() });
            seals.extend([Step::NameParent { path: sealed.clone() }, Step::Seal { path: sealed.clone() }]);
            synced.push(Step::SyncLayer { path: sealed.clone() });
            switched.push(Switched { disk: path, sealed });
            ids.push(id);
        }
        for Forking { over, shape, access, disks } in forkings {
            for (id, disk) in disks {
                overlays.push(make(*id, *over, *shape, *access));
                names.push(Step::Rename { from: place.new_overlay(*id), to: disk.path() });
            }
        }
        let is_sealing = !ids.is_empty();
        let mut steps = bases;
        if is_sealing {
            // Durable with the layer's name: a layer without an entry is one more name of the disk's file.
            steps.push(Step::WriteManifest { place: place.clone(), manifest: manifest.clone() });
        }
        steps.extend(overlays);
        if is_sealing {
            steps.extend(links);
            if !has(Bug::LayerNotAwaited) {
                // From the next step on this is the only name of a disk's content.
                steps.push(Step::SyncDirectory { path: place.layers() });
            }
        }
        steps.extend(names);
        if !has(Bug::OverlayNotAwaited) {
            // What guests write from the next step on is acknowledged in the overlays: their names must be durable.
            steps.push(Step::SyncDirectory { path: place.directory().to_owned() });
        }
        if is_sealing {
            steps.push(Step::Switch { disks: switched });
        }
        let settled = steps.len();
        if is_sealing {
            steps.extend(seals);
            if !has(Bug::SealNotAwaited) {
                // Before a manifest has the name that says how they look.
                steps.extend(synced);
            }
            steps.extend(record(place, manifest, ids));
        }
        Self { steps, settled }
    }

    /// The steps before the switch, or, where no disk is switched, before the change has happened.
    pub(crate) fn prepared(&self) -> usize {
        let switch = self.steps.iter().position(|step| matches!(step, Step::Switch { .. }));
        switch.unwrap_or(self.settled)
    }

    /// Images that take the places of disks, by the paths that they are made at.
    pub fn replacing(&self) -> impl Iterator<Item = &Path> {
        self.steps.iter().filter_map(|step| match step {
            Step::Replace { from, .. } => Some(&**from),
            _ => None,
        })
    }

    /// The disks that are switched, if there are some.
    pub fn switched(&self) -> Option<&[Switched]> {
        self.steps.iter().find_map(|step| match step {
            Step::Switch { disks } => Some(&**disks),
            _ => None,
        })
    }

    /// Marks layers as deleted, and removes files of `going`, in this order.
    pub(crate) fn remove(
        place: &Place,
        manifest: &Manifest,
        deleted: &BTreeSet<LayerId>,
        going: &[LayerId],
    ) -> Self {
        let mut marked = manifest.clone();
        for id in deleted.iter().chain(going) {
            if let Some(entry) = marked.entry_mut(*id) {
                // Another checkpoint may have the name.
                (entry.deleted, entry.name) = (true, None);
            }
        }
        let mut after = marked.clone();
        for id in going {
            after.take(*id);
        }
        let mut steps = Vec::new();
        if marked != *manifest {
            steps.push(Step::WriteManifest { place: place.clone(), manifest: marked });
            steps.push(Step::SyncDirectory { path: place.layers() });
        }
        // A manifest that says so removes the files by the next command.
        let settled = steps.len();
        if !going.is_empty() {
            steps.extend(going.iter().map(|id| Step::Remove { path: place.layer(*id) }));
            steps.push(Step::SyncDirectory { path: place.layers() });
            steps.push(Step::WriteManifest { place: place.clone(), manifest: after });
            steps.push(Step::SyncDirectory { path: place.layers() });
        }
        Self { steps, settled }
    }
}

/// The layers below `backing` as the manifest says, or, where it says nothing, as the images do: sealed layers do not change what they are backed by. Costs no
/// header where the manifest is complete.
pub(crate) fn chain_by_manifest(
    place: &Place,
    manifest: &Manifest,
    of: &Path,
    backing: &Backing,
) -> Result<Vec<LayerId>, Error> {
    let mut chain = Vec::new();
    let mut next = backing.layer();
    while let Some(id) = next {
        if chain.len() > CHAIN_MAX {
            let reason = format!("it is backed by more than {CHAIN_MAX} layers");
            return Err(Error::Corrupt { path: of.to_owned(), reason });
        }
        chain.push(id);
        next = match manifest.entry(id) {
            Some(entry) => entry.parent,
            None => ImageFacts::must_read(place, &place.layer(id))?.backing.layer(),
        };
    }
    Ok(chain)
}
