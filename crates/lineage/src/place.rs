//! Where the files of a lineage are.

use std::io;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::files::files;
use crate::layer_id::LayerId;

/// The directory of the layers, and of the link in it.
pub const LAYERS: &str = "layers";
/// The manifest, in that directory.
const MANIFEST: &str = "lineage.json";
/// The lock, in that directory.
const LOCK: &str = "lock";
/// The lock of the command that merges layers, in that directory.
const MERGE_LOCK: &str = "merge.lock";
/// What names of files on their way begin with, in that directory.
const NEW: &str = "new-";
/// What names of layers that are being made of several begin with.
const MERGED: &str = "merged-";

/// The directory of a lineage, links resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place(PathBuf);

/// A disk of a lineage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskPlace {
    /// Where it is.
    pub place: Place,
    /// Its file's name.
    pub name: String,
}

impl Place {
    /// The directory at `path`.
    ///
    /// # Errors
    /// When there is none.
    pub fn of(path: &Path) -> Result<Self, Error> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let found = files().resolve(path).map_err(Error::io("cannot find the directory", path))?;
        match files().look(&found).is_ok_and(|found| found.is_directory) {
            true => Ok(Self(found)),
            false => Err(Error::io("cannot find the directory", path)(io::ErrorKind::NotADirectory.into())),
        }
    }

    /// The directory of the disks.
    pub fn directory(&self) -> &Path {
        &self.0
    }

    /// The directory of the layers.
    pub fn layers(&self) -> PathBuf {
        self.0.join(LAYERS)
    }

    /// The link that lets `layers/ID.qcow2` lead to the same file from a layer as from a disk.
    pub fn link(&self) -> PathBuf {
        self.layers().join(LAYERS)
    }

    /// Whether it has layers, or could: the directory and the link are there.
    pub fn is_lineage(&self) -> bool {
        files().read_link(&self.link()).is_ok_and(|leads_to| leads_to == Path::new("."))
    }

    /// A layer's file.
    pub fn layer(&self, id: LayerId) -> PathBuf {
        self.layers().join(id.file_name())
    }

    /// The lineage and the layer whose file `path` is, if it is one.
    ///
    /// # Errors
    /// When its directory cannot be found.
    pub fn of_layer(path: &Path) -> Result<Option<(Self, LayerId)>, Error> {
        let id = path.file_name().and_then(|name| name.to_str()).and_then(LayerId::of_file_name);
        let layers = Self::of(path.parent().unwrap_or(Path::new("")))?;
        let is_layers = layers.directory().ends_with(LAYERS);
        let place = layers.directory().parent().map(|parent| Self(parent.to_owned())).filter(|_| is_layers);
        Ok(place.filter(Self::is_lineage).zip(id))
    }

    /// Refuses a path for a new disk among the layers.
    ///
    /// # Errors
    /// Says what is there; also when its directory cannot be found.
    pub fn check_new_disk(path: &Path) -> Result<(), Error> {
        match Self::of_layer(path)? {
            None => Ok(()),
            Some((place, _)) => Err(Error::Invalid(format!(
                "{}: it would be taken for a sealed layer of the lineage: the place of a disk is {}",
                path.display(),
                place.directory().display()
            ))),
        }
    }

    /// Why it is no lineage.
    pub(crate) fn no_lineage(&self) -> Error {
        let directory = self.directory().to_owned();
        match files().look_at_name(&self.manifest()) {
            Ok(_) => Error::NoLink { link: self.link() },
            Err(_) => Error::NoLineage { directory },
        }
    }

    /// What images call the layer.
    pub fn name_in_images(id: LayerId) -> String {
        format!("{LAYERS}/{}", id.file_name())
    }

    /// An overlay on its way.
    pub fn new_overlay(&self, id: LayerId) -> PathBuf {
        self.layers().join(format!("{NEW}{}", id.file_name()))
    }

    /// Whether a file of the layers' directory is one on its way: no command is at work on the lineage, so it belongs to none.
    pub(crate) fn is_on_its_way(name: &str) -> bool {
        name.strip_prefix(NEW).is_some_and(|rest| LayerId::of_file_name(rest).is_some())
            || name == Self::NEW_MANIFEST
    }

    /// A layer that is being made of several, under the lock of merges alone.
    pub(crate) fn new_merged(&self, id: LayerId) -> PathBuf {
        self.layers().join(format!("{MERGED}{}", id.file_name()))
    }

    /// Whether a file of the layers' directory is such a layer.
    pub(crate) fn is_being_merged(name: &str) -> bool {
        name.strip_prefix(MERGED).is_some_and(|rest| LayerId::of_file_name(rest).is_some())
    }

    /// Whether a file of the layers' directory is called as one that commands make there.
    pub(crate) fn is_own(name: &str) -> bool {
        matches!(name, LAYERS | MANIFEST | LOCK | MERGE_LOCK)
            || Self::is_on_its_way(name)
            || Self::is_being_merged(name)
            || LayerId::of_file_name(name).is_some()
    }

    /// The manifest on its way, in the layers' directory.
    pub(crate) const NEW_MANIFEST: &str = "lineage.json.new";

    /// The manifest.
    pub fn manifest(&self) -> PathBuf {
        self.layers().join(MANIFEST)
    }

    /// The lock.
    pub fn lock(&self) -> PathBuf {
        self.layers().join(LOCK)
    }

    /// The lock of merges.
    pub(crate) fn merge_lock(&self) -> PathBuf {
        self.layers().join(MERGE_LOCK)
    }

    /// The disk of this file name.
    ///
    /// # Errors
    /// When a disk cannot be called so.
    pub fn disk(&self, name: &str) -> Result<DiskPlace, Error> {
        match is_file_name(name) {
            true => Ok(DiskPlace { place: self.clone(), name: name.to_owned() }),
            false => {
                Err(Error::Invalid(format!("a disk cannot be called {name:?}: must be the name of a file")))
            }
        }
    }

    /// What is in the directory of the layers and could be ours: the layers, and names of other files, both in order.
    pub(crate) fn listed(&self) -> Result<(Vec<LayerId>, Vec<String>), Error> {
        let layers = self.layers();
        let found = files().names(&layers).map_err(Error::io("cannot list", &layers))?;
        let (mut ids, mut others) = (Vec::with_capacity(found.len()), Vec::new());
        for name in found.into_iter().filter_map(|name| name.into_string().ok()) {
            match LayerId::of_file_name(&name) {
                Some(id) => ids.push(id),
                None => others.push(name),
            }
        }
        ids.sort_unstable();
        others.sort_unstable();
        Ok((ids, others))
    }
}

impl DiskPlace {
    /// The disk at `path`. A link is followed: the directory is that of the file. The file need not be there.
    ///
    /// # Errors
    /// When its directory is not there, or the file's name is no UTF-8.
    pub fn of(path: &Path) -> Result<Self, Error> {
        let resolved = files().resolve(path);
        let path = resolved.as_deref().unwrap_or(path);
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| {
            Error::Invalid(format!("{}: must be the path of a disk, its name in UTF-8", path.display()))
        })?;
        Place::of(path.parent().unwrap_or(Path::new("")))?.disk(name)
    }

    /// Its path, links resolved.
    pub fn path(&self) -> PathBuf {
        self.place.0.join(&self.name)
    }
}

/// Whether a file of a directory can be called so.
pub(crate) fn is_file_name(name: &str) -> bool {
    const BYTES_MAX: usize = 255;
    let is_special = matches!(name, "" | "." | ".." | LAYERS);
    !is_special && name.len() <= BYTES_MAX && !name.contains(['/', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_ours_are_on_their_way() {
        assert!(
            Place::is_on_its_way("new-0123456789abcdef.qcow2") && Place::is_on_its_way("lineage.json.new")
        );
        for other in [
            "new-disk.qcow2",
            "0123456789abcdef.qcow2",
            "lineage.json",
            "new-",
            "lock",
            "new-0123456789abcdef.qcow2~",
        ] {
            assert!(!Place::is_on_its_way(other), "{other}");
        }
    }

    #[test]
    fn a_disk_is_a_file_of_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::of(directory.path()).unwrap();
        assert_eq!(DiskPlace::of(&directory.path().join("d.qcow2")).unwrap(), place.disk("d.qcow2").unwrap());
        for wrong in ["", "..", "a/b", "layers", "a\0"] {
            assert!(place.disk(wrong).is_err(), "{wrong:?}");
        }
    }
}
