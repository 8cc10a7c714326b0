//! What a command finds when it begins: what an earlier one left is completed or removed, layers without an entry get one.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use storage::Role;

use crate::change::check_lock;
use crate::deliberate::{Bug, has};
use crate::entry::{Entry, Seal, UNKNOWN_DISK};
use crate::error::Error;
use crate::files::{FileFacts, files};
use crate::image::{ImageFacts, name_parent_from_layers};
use crate::layer_id::LayerId;
use crate::lock::{Lock, lock};
use crate::manifest::Manifest;
use crate::place::Place;
use crate::steps::take_right_to_write;
use crate::survey::Survey;

/// What was there, and what was done about it.
#[derive(Debug, Default)]
pub struct Recovered {
    /// As it is now.
    pub manifest: Manifest,
    /// Files that were removed: a command was killed before it gave them to a disk.
    pub removed: Vec<PathBuf>,
    /// Layers that got an entry, or had theirs completed.
    pub adopted: Vec<LayerId>,
}

/// Brings a lineage in order. Costs a listing of the layers, and of what has no complete entry a header.
///
/// A layer's file that has the disk's path as its other name, and that nothing is backed by, was not replaced there yet: that checkpoint did not happen, and the
/// name goes. Another one is a checkpoint, whatever the manifest says: no file with an id is removed here that could be the only name of its bytes.
///
/// # Errors
/// When the manifest is of a newer version or no manifest, or the file system refuses. [`Error::Busy`] while a server writes a layer that is to be sealed: it
/// could neither switch to the new image nor go back.
pub fn recover(locked: &Lock) -> Result<Recovered, Error> {
    let place = locked.place();
    let before = Manifest::read(place)?;
    let mut found = Recovered { manifest: before.clone().unwrap_or_default(), ..Recovered::default() };
    let (mut ids, others) = place.listed()?;
    for name in others {
        let path = place.layers().join(&name);
        // A layer that is being made of several is left to its command, if that is alive.
        let is_merged = Place::is_being_merged(&name)
            && (has(Bug::OthersMergeRemoved) || lock(place.merge_lock(), Duration::ZERO).is_ok());
        // A link leads to the base of a disk.
        let is_left = (Place::is_on_its_way(&name) || is_merged)
            && files().look_at_name(&path).is_ok_and(|found| found.is_file);
        if is_left {
            files().remove(&path).map_err(Error::io("cannot remove", &path))?;
            found.removed.push(path);
        }
    }
    let incomplete: Vec<LayerId> =
        ids.iter().copied().filter(|id| !is_complete(&found.manifest, *id)).collect();
    // Until a checkpoint is complete, the directory of the layers may have been made by a command that was killed before its name was durable.
    let is_first =
        !found.manifest.entries().any(|entry| entry.seal.is_some()) && !has(Bug::DirectoryNotAwaited);
    let is_found = !incomplete.is_empty() && !has(Bug::FoundNotAwaited);
    if is_found || is_first {
        // What a killed command renamed is seen, and may not be durable: a layer is changed below only when its names are.
        for path in [&place.layers(), place.directory()] {
            files().sync(path).map_err(Error::io("cannot make durable", path))?;
        }
    }
    // Each layer has an entry: where there are as many of these, none is of a layer that has gone.
    let is_all_there = incomplete.is_empty() && ids.len() == found.manifest.entries().len();
    for id in incomplete {
        complete(place, id, &mut found)?;
    }
    if !is_all_there {
        forget_gone(place, &mut ids, &mut found.manifest)?;
    }
    if before.as_ref() != Some(&found.manifest) {
        let written = found.manifest.write(place).and_then(|()| files().sync(&place.layers()));
        written.map_err(Error::io("cannot write", &place.manifest()))?;
    }
    Ok(found)
}

/// Whether a layer is sealed, and recorded.
fn is_complete(manifest: &Manifest, id: LayerId) -> bool {
    match manifest.entry(id) {
        Some(entry) => entry.seal.is_some(),
        None => has(Bug::NothingAdopted),
    }
}

/// Takes out entries of layers that were deleted, or that did not come to be. `ids` are those of the files that were there.
fn forget_gone(place: &Place, ids: &mut Vec<LayerId>, manifest: &mut Manifest) -> Result<(), Error> {
    // Only what was incomplete may have gone: a look at each of a thousand layers takes as long as the checkpoint.
    ids.retain(|id| is_complete(manifest, *id) || files().look_at_name(&place.layer(*id)).is_ok());
    let is_gone = |entry: &&Entry| ids.binary_search(&entry.id).is_err();
    // One that was sealed and that its user did not delete is missed.
    let gone = manifest.entries().filter(is_gone).filter(|entry| entry.deleted || entry.seal.is_none());
    let gone: Vec<LayerId> = gone.map(|entry| entry.id).collect();
    if !gone.is_empty() && !has(Bug::GoneNotAwaited) {
        // What a killed command removed may come back with a power cut: without its entry it would be a checkpoint.
        files().sync(&place.layers()).map_err(Error::io("cannot make durable", &place.layers()))?;
    }
    for id in gone {
        manifest.take(id);
    }
    Ok(())
}

/// Completes what is recorded of a layer, or removes a name that its command did not come to use.
fn complete(place: &Place, id: LayerId, found: &mut Recovered) -> Result<(), Error> {
    let path = place.layer(id);
    // What another program put there is not ours to seal, nor what a link leads to.
    if files().look_at_name(&path).is_ok_and(|found| !found.is_file) {
        return Ok(());
    }
    let Ok(Some(image)) = ImageFacts::read(place, &path) else { return Ok(()) };
    let is_unused = image.metadata().links > 1
        && is_a_disk(place, image.metadata())?
        && Survey::of_all(place, &found.manifest)?.users(id).is_empty();
    if is_unused && !has(Bug::UnusedNameAdopted) {
        files().remove(&path).map_err(Error::io("cannot remove", &path))?;
        found.removed.push(path);
        found.manifest.take(id);
        return Ok(());
    }
    if !has(Bug::UsedSealed) {
        check_lock(&path, Role::Reader)?;
    }
    name_parent_from_layers(&path).map_err(Error::io("cannot name the parent in", &path))?;
    let sealed = take_right_to_write(&path).and_then(|()| files().sync(&path));
    sealed.map_err(Error::io("cannot seal", &path))?;
    let metadata = files().look(&path).map_err(Error::io("cannot read", &path))?;
    let entry = found.manifest.take(id).unwrap_or_else(|| Entry {
        id,
        parent: None,
        disk: String::from(UNKNOWN_DISK),
        name: None,
        time_sec: u64::try_from(metadata.modified_sec).unwrap_or(0),
        time_nsec: u32::try_from(metadata.modified_nsec).unwrap_or(0),
        labels: Default::default(),
        seal: None,
        deleted: false,
    });
    found.manifest.put(Entry { parent: image.backing.layer(), seal: Some(Seal::of(&metadata)), ..entry });
    found.adopted.push(id);
    Ok(())
}

/// Whether one of the disks is this file.
fn is_a_disk(place: &Place, file: &FileFacts) -> Result<bool, Error> {
    let failed = || Error::io("cannot list", place.directory());
    for name in files().names(place.directory()).map_err(failed())? {
        match files().look_at_name(&place.directory().join(name)) {
            Ok(other) if other.is_same_file(file) => return Ok(true),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed()(error)),
            _ => {}
        }
    }
    Ok(false)
}
