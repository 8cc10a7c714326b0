//! The steps of a change of a lineage. A crash may come after each one; docs/internals/write-order.md says what is then on disk.

use std::io;
use std::path::{Path, PathBuf};

use storage::{FileAccess, LockError, Role};

use crate::entry::Seal;
use crate::error::Error;
use crate::files::{Purpose, files, remove_if_there};
use crate::image::{Shape, name_parent_from_layers};
use crate::layer_id::LayerId;
use crate::manifest::Manifest;
use crate::place::{LAYERS, Place};

/// What of a mode a sealed layer keeps.
const READABLE: u32 = 0o444;

/// An overlay that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewOverlay {
    /// The layer that it is backed by, as its header names it; the format is qcow2.
    pub backing_name: String,
    /// Its size and its clusters.
    pub shape: Shape,
    /// Who may use it.
    pub access: FileAccess,
}

/// A layer that is to be made of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedLayer {
    /// The uppermost of them, as which it reads.
    pub top: PathBuf,
    /// How many, that one included.
    pub layers: usize,
    /// What it is backed by, if it is: the name, as the header of the lowest has it, and the format.
    pub backing: Option<(String, Option<String>)>,
    /// Its size and its clusters.
    pub shape: Shape,
    /// Who may use it.
    pub access: FileAccess,
}

/// A disk whose active layer is sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switched {
    /// The disk's path.
    pub disk: PathBuf,
    /// The path of the layer that was active.
    pub sealed: PathBuf,
}

/// One step. Each does one thing to the file system, and but for the overlay and the switch each is done here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes a link in the directory of the layers that leads to a base beside the disk. It may be there.
    LinkBase {
        /// Where.
        place: Place,
        /// The base's file name.
        name: String,
    },
    /// Makes a layer durable.
    SyncLayer {
        /// Its path.
        path: PathBuf,
    },
    /// Writes the manifest beside, durably, and renames it over the one before. The directory of the layers is made durable by a step of its own.
    WriteManifest {
        /// Where.
        place: Place,
        /// Its entries.
        manifest: Manifest,
    },
    /// The caller makes an overlay in the directory of the layers: what is in it is durable, its name is not yet.
    MakeOverlay {
        /// Its path.
        at: PathBuf,
        /// What it is.
        overlay: NewOverlay,
    },
    /// Renames a layer over one that reads the same, which is lost.
    ReplaceLayer {
        /// Its name.
        from: PathBuf,
        /// The name of the file that it replaces.
        to: PathBuf,
    },
    /// Gives a file one more name.
    Link {
        /// Its name.
        from: PathBuf,
        /// The other one.
        to: PathBuf,
    },
    /// Renames a file over another one.
    Replace {
        /// Its name.
        from: PathBuf,
        /// The name of the file that it replaces.
        to: PathBuf,
        /// Another name of that file.
        kept: PathBuf,
    },
    /// Gives a file a name that no file has.
    Rename {
        /// Its name.
        from: PathBuf,
        /// The new one.
        to: PathBuf,
    },
    /// Removes a name.
    Remove {
        /// Which.
        path: PathBuf,
    },
    /// Makes durable which names a directory has.
    SyncDirectory {
        /// Its path.
        path: PathBuf,
    },
    /// The caller switches disks that are being served to the images that their paths lead to now, closes the layers that were active, and waits until what
    /// was written to those is durable.
    Switch {
        /// All of them at one moment.
        disks: Vec<Switched>,
    },
    /// Has the header of a layer name its parent from where the layer is now: one sector.
    NameParent {
        /// Its path.
        path: PathBuf,
    },
    /// Takes the right to write from a layer, which [`Step::SyncLayer`] makes durable.
    Seal {
        /// Its path.
        path: PathBuf,
    },
    /// Writes the manifest beside, durably, with what sealed layers look like now.
    WriteSeals {
        /// Where.
        place: Place,
        /// Its entries.
        manifest: Manifest,
        /// The layers.
        ids: Vec<LayerId>,
    },
    /// Renames the manifest that [`Step::WriteSeals`] wrote over the one before. What a power cut takes back of it is done by the next command.
    PlaceManifest {
        /// Where.
        place: Place,
    },
}

impl Step {
    /// Whether nothing that it does depends on the neighbours of which the same holds: they are done in any order, at the same time.
    pub(crate) fn is_done_beside_others(&self) -> bool {
        matches!(
            self,
            Self::WriteManifest { .. }
                | Self::MakeOverlay { .. }
                | Self::SyncLayer { .. }
                | Self::WriteSeals { .. }
        )
    }

    /// Does it. Blocks while the file system works. Does nothing for what the caller does.
    ///
    /// # Errors
    /// Then it has not happened, or, where it made something durable, may have.
    pub fn run(&self) -> Result<(), Error> {
        match self {
            Self::LinkBase { place, name } => link_base(place, name),
            Self::WriteManifest { place, manifest } => {
                manifest.write(place).map_err(Error::io("cannot write", &place.manifest()))
            }
            Self::Link { from, to } => files().link(from, to).map_err(Error::io("cannot link as", to)),
            Self::Replace { from, to, .. } | Self::ReplaceLayer { from, to } => {
                files().rename(from, to).map_err(Error::io("cannot rename over", to))
            }
            Self::Rename { from, to } => files().rename_new(from, to).map_err(Error::io("cannot make", to)),
            Self::Remove { path } => files().remove(path).map_err(Error::io("cannot remove", path)),
            Self::SyncDirectory { path } | Self::SyncLayer { path } => {
                files().sync(path).map_err(Error::io("cannot make durable", path))
            }
            Self::NameParent { path } => {
                name_parent_from_layers(path).map_err(Error::io("cannot name the parent in", path))
            }
            Self::Seal { path } => take_right_to_write(path).map_err(Error::io("cannot seal", path)),
            Self::WriteSeals { place, manifest, ids } => write_seals(place, manifest, ids),
            Self::PlaceManifest { place } => {
                Manifest::put_in_place(place).map_err(Error::io("cannot write", &place.manifest()))
            }
            Self::MakeOverlay { .. } | Self::Switch { .. } => Ok(()),
        }
    }

    /// Takes back what it did, while nothing of it is in use.
    pub(crate) fn undo(&self) -> io::Result<()> {
        match self {
            Self::MakeOverlay { at, .. } => remove_if_there(at),
            Self::Link { to, .. } => remove_if_there(to),
            // A fork that another process has opened meanwhile stays: it is whole.
            Self::Rename { from, to } => match files().lock(to, Role::Writer, false) {
                Err(LockError::Busy { .. }) => Ok(()),
                _locked => files().rename(to, from).and_then(|()| sync_directory_of(to)),
            },
            Self::Replace { to, kept, .. } => files().rename(kept, to).and_then(|()| sync_directory_of(to)),
            _ => Ok(()),
        }
    }
}

/// What is taken back must not come back with a power cut.
fn sync_directory_of(path: &Path) -> io::Result<()> {
    files().sync(path.parent().unwrap_or(Path::new(".")))
}

/// Makes the directory of the layers and the link in it. They may be there. What brings the lineage in order makes them durable.
pub(crate) fn make_layers(place: &Place) -> Result<(), Error> {
    if files().look_at_name(&place.layers()).is_ok_and(|found| !found.is_directory) {
        let reason = "it is there, and no directory: layers lie beside their disks, no link leads to them";
        return Err(Error::Invalid(format!("{}: {reason}", place.layers().display())));
    }
    // A server in its sandbox makes no directories.
    if place.is_lineage() {
        return Ok(());
    }
    let (layers, link) = (place.layers(), place.link());
    let unless_there = |made: io::Result<()>, path: &Path| match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(Error::io("cannot make", path)),
    };
    unless_there(files().make_directory(&layers), &layers)?;
    unless_there(files().link_to(Path::new("."), &link), &link)?;
    if !place.is_lineage() {
        let reason = format!("it is there, and no link to \".\": the directory {LAYERS} is another one's");
        return Err(Error::Invalid(format!("{}: {reason}", link.display())));
    }
    Ok(())
}

fn link_base(place: &Place, name: &str) -> Result<(), Error> {
    let link = place.layers().join(name);
    let leads_to = Path::new("..").join(name);
    match files().link_to(&leads_to, &link) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.map_err(Error::io("cannot make", &link))?,
    }
    match files().read_link(&link) {
        Ok(found) if found == leads_to => {
            files().sync(&place.layers()).map_err(Error::io("cannot make durable", &link))
        }
        _ => Err(Error::Invalid(format!(
            "{}: it is there, and no link to the base of the disk: rename the base, and name it in the disk by `cowhand rebase -u`",
            link.display()
        ))),
    }
}

/// Readable by those who could read it, and writable by no user.
pub(crate) fn take_right_to_write(path: &Path) -> io::Result<()> {
    let file = files().open(path, Purpose::Read)?;
    file.set_mode(file.found()?.access.mode & READABLE)
}

/// The steps that record what sealed layers look like, when they are durable.
pub(crate) fn record(place: &Place, manifest: Manifest, ids: Vec<LayerId>) -> [Step; 2] {
    [Step::WriteSeals { place: place.clone(), manifest, ids }, Step::PlaceManifest { place: place.clone() }]
}

fn write_seals(place: &Place, manifest: &Manifest, ids: &[LayerId]) -> Result<(), Error> {
    let mut manifest = manifest.clone();
    for id in ids {
        let path = place.layer(*id);
        let found = files().look(&path).map_err(Error::io("cannot read", &path))?;
        if let Some(entry) = manifest.entry_mut(*id) {
            entry.seal = Some(Seal::of(&found));
        }
    }
    manifest.write_beside(place).map_err(Error::io("cannot write", &place.manifest()))
}
