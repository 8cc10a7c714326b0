//! What there is: the layers and the disks of a lineage, and what is backed by what, as the images say.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use crate::checkpoint_name::CheckpointRef;
use crate::entry::Entry;
use crate::error::Error;
use crate::files::files;
use crate::image::{Backing, ImageFacts};
use crate::keep::Policy;
use crate::layer_id::LayerId;
use crate::manifest::Manifest;
use crate::place::{DiskPlace, LAYERS, Place};

/// A look at a lineage that another command changes meanwhile may miss what it needs: that is looked at again, so often at most.
const LOOKS_MAX: usize = 5;

/// A lineage that was looked at. Headers count; the manifest adds names and times.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Where.
    pub place: Place,
    /// The layers.
    pub layers: BTreeMap<LayerId, Layer>,
    /// The disks, by name.
    pub disks: Vec<Disk>,
    /// Images in the directory of the layers that are none: another program put them there. What they are backed by is needed.
    pub others: Vec<Disk>,
    /// Images that could not be read: what they are backed by is unknown.
    pub unread: Vec<Unread>,
    /// What is to be kept, if it has a policy.
    pub policy: Option<Policy>,
}

/// A sealed layer.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Its image.
    pub image: ImageFacts,
    /// What is recorded of it; `None` where a lost manifest was not rebuilt yet.
    pub entry: Option<Entry>,
    /// Why it is not what it was when it was sealed.
    pub changed: Option<String>,
}

impl Layer {
    /// Looks at a layer; `None` if its file is no image.
    fn read(place: &Place, manifest: &Manifest, id: LayerId) -> Result<Option<Self>, Error> {
        let Some(image) = ImageFacts::read(place, &place.layer(id))? else { return Ok(None) };
        let entry = manifest.entry(id).cloned();
        let seal = entry.as_ref().and_then(|entry| entry.seal);
        let changed = seal.and_then(|seal| seal.difference(image.metadata()));
        Ok(Some(Self { image, entry, changed }))
    }
}

/// A disk: a qcow2 image in the directory, whether or not it has a checkpoint.
#[derive(Clone, Debug)]
pub struct Disk {
    /// Its file's name.
    pub name: String,
    /// Its image.
    pub image: ImageFacts,
}

/// An image that could not be read.
#[derive(Clone, Debug)]
pub struct Unread {
    /// Its file.
    pub path: PathBuf,
    /// Why not.
    pub reason: String,
}

impl Unread {
    fn error(&self) -> Error {
        Error::Corrupt { path: self.path.clone(), reason: self.reason.clone() }
    }
}

impl Survey {
    /// Looks at all images of a lineage. Takes no lock: what a command changes meanwhile is there or not. Costs a header for each image. One that cannot be read is in
    /// the way of those alone that need it.
    ///
    /// # Errors
    /// When the directories cannot be listed.
    pub fn take(place: &Place, manifest: &Manifest) -> Result<Self, Error> {
        let mut survey = Self { policy: manifest.policy().cloned(), ..Self::empty(place) };
        // The disks come first: a layer has its name before a disk is backed by it.
        let failed = || Error::io("cannot list", place.directory());
        for name in files().names(place.directory()).map_err(failed())? {
            let path = place.directory().join(&name);
            let image = survey.read(&path, || ImageFacts::read(place, &path));
            survey.disks.extend(image.map(|image| Disk { name: name.to_string_lossy().into_owned(), image }));
        }
        survey.disks.sort_by(|one, other| one.name.cmp(&other.name));
        let (ids, others) = place.listed()?;
        for id in ids {
            let layer = survey.read(&place.layer(id), || Layer::read(place, manifest, id));
            survey.layers.extend(layer.map(|layer| (id, layer)));
        }
        for name in others {
            let path = place.layers().join(&name);
            if !Place::is_own(&name) && !is_link_to_base(place, &path) {
                let image = survey.read(&path, || ImageFacts::read(place, &path));
                survey.others.extend(image.map(|image| Disk { name: format!("{LAYERS}/{name}"), image }));
            }
        }
        Ok(survey)
    }

    /// Whether each layer that an image is backed by was seen, and has an entry.
    fn is_whole(&self) -> bool {
        let images = self.disks.iter().chain(&self.others).map(|disk| &disk.image);
        let mut below = images.chain(self.layers.values().map(|layer| &layer.image));
        let is_seen = |id| self.layers.get(&id).is_some_and(|layer| layer.entry.is_some());
        below.all(|image| image.backing.layer().is_none_or(is_seen))
    }

    /// As [`Survey::take`], for one who removes what nothing needs.
    ///
    /// # Errors
    /// Also when an image cannot be read: what it is backed by is unknown then.
    pub fn of_all(place: &Place, manifest: &Manifest) -> Result<Self, Error> {
        let survey = Self::take(place, manifest)?;
        survey.unread.first().map_or(Ok(()), |unread| Err(unread.error()))?;
        Ok(survey)
    }

    fn empty(place: &Place) -> Self {
        Self {
            place: place.clone(),
            layers: BTreeMap::new(),
            disks: Vec::new(),
            others: Vec::new(),
            unread: Vec::new(),
            policy: None,
        }
    }

    /// What is read of the file at `path`; nothing where it is gone meanwhile, or cannot be read.
    fn read<T>(&mut self, path: &Path, read: impl FnOnce() -> Result<Option<T>, Error>) -> Option<T> {
        if_there(read()).unwrap_or_else(|error| {
            let reason = match error {
                Error::Io { action, source, .. } => format!("{action}: {source}"),
                Error::Corrupt { reason, .. } | Error::Unsupported { reason, .. } => reason,
                other => other.to_string(),
            };
            self.unread.push(Unread { path: path.to_owned(), reason });
            None
        })
    }

    /// Looks at what a checkpoint of a disk needs alone, and at what the disk needs: a fork costs the same however many others there are. [`Survey::find`] and
    /// [`Survey::sealed_chain`] give for it what they give for the whole; who uses a layer it does not say. The manifest is in order: it has every layer.
    ///
    /// # Errors
    /// When one of these images cannot be read.
    pub(crate) fn of_checkpoint(
        place: &Place,
        manifest: &Manifest,
        (disk, wanted): (&DiskPlace, &CheckpointRef),
    ) -> Result<Self, Error> {
        let mut survey = Self::empty(place);
        if let Some(image) = if_there(ImageFacts::read(place, &disk.path()))? {
            survey.add_chain(manifest, image.backing.layer())?;
            survey.disks.push(Disk { name: disk.name.clone(), image });
        }
        let is_wanted = |entry: &&Entry| match wanted {
            CheckpointRef::Id(id) => entry.id == *id,
            CheckpointRef::Name(name) => entry.name.as_ref() == Some(name) && entry.disk == disk.name,
        };
        for entry in manifest.entries().filter(is_wanted) {
            survey.add_chain(manifest, Some(entry.id))?;
        }
        Ok(survey)
    }

    /// Looks at a layer and those below it. One that is missing is reported when the chain is asked for.
    fn add_chain(&mut self, manifest: &Manifest, mut next: Option<LayerId>) -> Result<(), Error> {
        while let Some(id) = next.filter(|id| !self.layers.contains_key(id)) {
            let Some(layer) = if_there(Layer::read(&self.place, manifest, id))? else { break };
            next = layer.image.backing.layer();
            self.layers.insert(id, layer);
        }
        Ok(())
    }

    /// Looks at the lineage at `place`. Takes no lock.
    ///
    /// # Errors
    /// As [`Survey::take`]; [`Error::NoLineage`] when there is none.
    pub fn look(place: &Place) -> Result<Self, Error> {
        if !place.is_lineage() {
            return Err(place.no_lineage());
        }
        let mut looks = 0;
        loop {
            let manifest = Manifest::read(place)?;
            // One that is lost comes back by the next command alone.
            let is_lost = manifest.is_none();
            let survey = Self::take(place, &manifest.unwrap_or_default())?;
            looks += 1;
            if is_lost || survey.is_whole() || looks == LOOKS_MAX {
                return Ok(survey);
            }
        }
    }

    /// The layers below `backing`, from the upper to the lower, and the base outside that the last one names.
    ///
    /// # Errors
    /// When one is missing, or they go round in a circle.
    pub fn chain(&self, of: &Path, backing: &Backing) -> Result<(Vec<LayerId>, Option<String>), Error> {
        let (mut chain, mut met) = (Vec::new(), HashSet::new());
        let (mut of, mut backing) = (of, backing);
        loop {
            let id = match backing {
                Backing::None => return Ok((chain, None)),
                Backing::Outside(name) => return Ok((chain, Some(name.clone()))),
                Backing::Layer(id) => *id,
            };
            let layer = self.layers.get(&id).ok_or_else(|| self.missing(id, of))?;
            if !met.insert(id) {
                let reason = format!("layer {id} is below itself");
                return Err(Error::Corrupt { path: of.to_owned(), reason });
            }
            chain.push(id);
            (of, backing) = (&layer.image.path, &layer.image.backing);
        }
    }

    fn missing(&self, id: LayerId, of: &Path) -> Error {
        let path = self.place.layer(id);
        let unread = self.unread.iter().find(|unread| unread.path == path);
        unread.map_or_else(|| Error::Missing { id, path: of.to_owned() }, Unread::error)
    }

    /// A layer and those below it, from the upper to the lower, and the base outside that the last one names. All are as they were sealed.
    ///
    /// # Errors
    /// When one is missing, or has been written since.
    pub fn sealed_chain(&self, id: LayerId) -> Result<(Vec<LayerId>, Option<String>), Error> {
        let layer = self.layers.get(&id).ok_or_else(|| Error::Missing { id, path: self.place.layers() })?;
        let (mut chain, base) = self.chain(&layer.image.path, &layer.image.backing)?;
        chain.insert(0, id);
        self.check_sealed(&chain)?;
        Ok((chain, base))
    }

    /// The layers below a disk, from the upper to the lower. Empty for a disk that is not there.
    ///
    /// # Errors
    /// As [`Survey::chain`].
    pub fn chain_of_disk(&self, name: &str) -> Result<Vec<LayerId>, Error> {
        match self.disk(name) {
            Some(disk) => Ok(self.chain(&disk.image.path, &disk.image.backing)?.0),
            None => Ok(Vec::new()),
        }
    }

    /// The disk of this file name.
    pub fn disk(&self, name: &str) -> Option<&Disk> {
        self.disks.iter().find(|disk| disk.name == name)
    }

    /// The checkpoint of a disk: one that the disk is backed by, else one that was taken of it.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(&self, disk: &DiskPlace, wanted: &CheckpointRef) -> Result<LayerId, Error> {
        let none = || Error::NoCheckpoint { disk: disk.path(), wanted: wanted.clone() };
        let name = match wanted {
            CheckpointRef::Id(id) => return if self.layers.contains_key(id) { Ok(*id) } else { Err(none()) },
            CheckpointRef::Name(name) => name,
        };
        let is_called = |id: &LayerId| {
            let entry = self.layers.get(id).and_then(|layer| layer.entry.as_ref());
            entry.is_some_and(|entry| !entry.deleted && entry.name.as_ref() == Some(name))
        };
        let of_disk = |id: &LayerId| {
            let entry = self.layers.get(id).and_then(|layer| layer.entry.as_ref());
            entry.is_some_and(|entry| entry.disk == disk.name)
        };
        let below = self.chain_of_disk(&disk.name)?.into_iter().find(is_called);
        below.or_else(|| self.layers.keys().copied().find(|id| is_called(id) && of_disk(id))).ok_or_else(none)
    }

    /// Layers and disks that are backed by a layer directly, by their files' names.
    pub fn users(&self, id: LayerId) -> Vec<String> {
        self.all_users().remove(&id).unwrap_or_default()
    }

    /// [`Survey::users`] of all layers that have some.
    pub fn all_users(&self) -> BTreeMap<LayerId, Vec<String>> {
        let mut users: BTreeMap<LayerId, Vec<String>> = BTreeMap::new();
        let disks = self.disks.iter().chain(&self.others).map(|disk| (disk.name.clone(), &disk.image));
        for (name, image) in disks.chain(self.layers.iter().map(|(id, layer)| (id.file_name(), &layer.image)))
        {
            match &image.backing {
                Backing::None => {}
                Backing::Layer(id) => users.entry(*id).or_default().push(name),
                // In another spelling, json: for one.
                Backing::Outside(text) => {
                    for id in self.layers.keys().filter(|id| text.contains(&id.to_string())) {
                        users.entry(*id).or_default().push(name.clone());
                    }
                }
            }
        }
        users
    }

    /// Layers that can go, the upper ones first: those that `wants` says, and that nothing is backed by but others that go.
    pub fn removable(&self, wants: impl Fn(LayerId, &Layer) -> bool) -> Vec<LayerId> {
        let mut users: BTreeMap<LayerId, usize> =
            self.all_users().into_iter().map(|(id, users)| (id, users.len())).collect();
        let is_free = |users: &BTreeMap<LayerId, usize>, id: LayerId| {
            users.get(&id).is_none_or(|count| *count == 0)
                && self.layers.get(&id).is_some_and(|layer| wants(id, layer))
        };
        let mut going: Vec<LayerId> = self.layers.keys().copied().filter(|id| is_free(&users, *id)).collect();
        let mut next = 0;
        while let Some(id) = going.get(next).copied() {
            next += 1;
            let Some(below) = self.layers.get(&id).and_then(|layer| layer.image.backing.layer()) else {
                continue;
            };
            if let Some(count) = users.get_mut(&below) {
                *count -= 1;
            }
            if is_free(&users, below) {
                going.push(below);
            }
        }
        going
    }

    /// Refuses a chain with a layer that is not what it was when it was sealed.
    ///
    /// # Errors
    /// Names the layer.
    pub fn check_sealed(&self, chain: &[LayerId]) -> Result<(), Error> {
        let changed = chain
            .iter()
            .filter_map(|id| self.layers.get(id))
            .find_map(|layer| Some((layer, layer.changed.as_ref()?)));
        match changed {
            Some((layer, reason)) => {
                Err(Error::Changed { path: layer.image.path.clone(), reason: reason.clone() })
            }
            None => Ok(()),
        }
    }
}

/// Nothing where there is no file.
fn if_there<T>(read: Result<Option<T>, Error>) -> Result<Option<T>, Error> {
    match read {
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        read => read,
    }
}

/// Whether a name in the directory of the layers leads to a file beside the disks, which is looked at there. The file may have gone: then nothing that is there
/// needs the link.
fn is_link_to_base(place: &Place, path: &Path) -> bool {
    let Ok(leads_to) = files().read_link(path) else { return false };
    let is_gone = || leads_to.strip_prefix("..").is_ok_and(|name| Some(name.as_os_str()) == path.file_name());
    match files().resolve(path) {
        Ok(real) => real.parent() == Some(place.directory()),
        Err(_) => is_gone(),
    }
}
