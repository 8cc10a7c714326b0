//! Which steps a change of a lineage has.

use std::collections::BTreeSet;
use std::path::Path;

use crate::checkpoint_name::CheckpointName;
use crate::error::Error;
use crate::image::{Backing, ImageFacts, Shape};
use crate::labels::Labels;
use crate::layer_id::LayerId;
use crate::manifest::{Entry, Manifest};
use crate::place::{DiskPlace, Place};
use crate::steps::{Access, NewOverlay, Step};

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
    /// Now, in seconds since 1970.
    pub time_sec: u64,
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
pub(crate) struct Sealing<'a> {
    pub(crate) disk: &'a DiskPlace,
    /// The active layer.
    pub(crate) active: &'a ImageFacts,
    /// What it becomes.
    pub(crate) new: NewCheckpoint,
    /// What the new overlay is backed by: that layer, or an older one.
    pub(crate) below: LayerId,
    pub(crate) shape: Shape,
}

impl Plan {
    /// Seals the active layer of a disk, and puts an overlay in its place.
    pub(crate) fn seal(manifest: &Manifest, sealing: Sealing<'_>) -> Self {
        let Sealing { disk, active, new, below, shape } = sealing;
        let (place, path) = (disk.place.clone(), disk.path());
        let (sealed, overlay) = (place.layer(new.id), place.new_overlay(new.id));
        let mut with_entry = manifest.clone();
        with_entry.put(Entry {
            id: new.id,
            parent: active.backing.layer(),
            disk: disk.name.clone(),
            name: new.name,
            time_sec: new.time_sec,
            labels: new.labels,
            seal: None,
            deleted: false,
        });
        let access = Access::of(active.metadata());
        let link_base =
            active.bare_backing().map(|name| Step::LinkBase { place: place.clone(), name: name.to_owned() });
        let new_overlay = NewOverlay { backing_name: Place::name_in_images(below), shape, access };
        let mut steps: Vec<Step> = link_base.into_iter().collect();
        steps.extend([
            // The name of the checkpoint is durable before there is a layer to be called so.
            Step::WriteManifest { place: place.clone(), manifest: with_entry.clone() },
            Step::MakeOverlay { at: overlay.clone(), overlay: new_overlay },
            Step::Link { from: path.clone(), to: sealed.clone() },
            // From the next step on this is the only name of the disk's content.
            Step::SyncDirectory { path: place.layers() },
            Step::Replace { from: overlay, to: path, kept: sealed.clone() },
            // What guests write from the next step on is acknowledged in the overlay: its name must be durable.
            Step::SyncDirectory { path: place.directory().to_owned() },
            Step::Switch { sealed: sealed.clone() },
        ]);
        let settled = steps.len();
        steps.push(Step::NameParent { path: sealed.clone() });
        steps.push(Step::Seal { path: sealed });
        steps.push(Step::Record { place, manifest: with_entry, id: new.id });
        Self { steps, settled }
    }

    /// Makes disks over a layer. All are whole before the first has its name.
    pub(crate) fn fork(
        place: &Place,
        over: LayerId,
        shape: Shape,
        access: Access,
        disks: &[(LayerId, DiskPlace)],
    ) -> Self {
        let overlay = NewOverlay { backing_name: Place::name_in_images(over), shape, access };
        let make = disks
            .iter()
            .map(|(id, _)| Step::MakeOverlay { at: place.new_overlay(*id), overlay: overlay.clone() });
        let name =
            disks.iter().map(|(id, disk)| Step::Rename { from: place.new_overlay(*id), to: disk.path() });
        let mut steps: Vec<Step> = make.chain(name).collect();
        steps.push(Step::SyncDirectory { path: place.directory().to_owned() });
        let settled = steps.len();
        Self { steps, settled }
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
        }
        // A manifest that says so removes the files by the next command.
        let settled = steps.len();
        if !going.is_empty() {
            steps.extend(going.iter().map(|id| Step::Remove { path: place.layer(*id) }));
            steps.push(Step::SyncDirectory { path: place.layers() });
            steps.push(Step::WriteManifest { place: place.clone(), manifest: after });
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
