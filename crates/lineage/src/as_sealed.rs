//! Whether sealed layers are what they were when they were sealed, of disks that are about to be used.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::error::Error;
use crate::files::files;
use crate::image::ImageFacts;
use crate::layer_id::LayerId;
use crate::lock::Lock;
use crate::manifest::Manifest;
use crate::place::{DiskPlace, Place};
use crate::plan::chain_by_manifest;

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
pub(crate) fn check_layer(place: &Place, manifest: &Manifest, id: LayerId, of: &Path) -> Result<(), Error> {
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
