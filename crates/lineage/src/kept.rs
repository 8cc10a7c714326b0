//! Manifests that this process wrote: its next command parses none again whose file still has that text.

use std::path::{Path, PathBuf};

use crate::manifest::Manifest;

/// Lineages whose manifest is kept: a thousand entries take some 700 KiB.
const KEPT_MAX: usize = 8;

/// A manifest, as it was written.
struct WrittenManifest {
    path: PathBuf,
    text: String,
    manifest: Manifest,
}

/// Keeps the manifest that was written to `path` as `text`. Of more than eight that which was written first goes.
pub(crate) fn keep(path: PathBuf, text: String, manifest: &Manifest) {
    with(|all| {
        all.retain(|kept| kept.path != path);
        all.truncate(KEPT_MAX - 1);
        all.insert(0, WrittenManifest { path, text, manifest: manifest.clone() });
    });
}

/// The manifest whose file at `path` has this text, if this process wrote it.
pub(crate) fn written(path: &Path, text: &[u8]) -> Option<Manifest> {
    with(|all| {
        let kept = all.iter().find(|kept| kept.path == path)?;
        (kept.text.as_bytes() == text).then(|| kept.manifest.clone())
    })
}

#[cfg(not(test))]
fn with<T>(work: impl FnOnce(&mut Vec<WrittenManifest>) -> T) -> T {
    use std::sync::{Mutex, PoisonError};

    static KEPT: Mutex<Vec<WrittenManifest>> = Mutex::new(Vec::new());
    work(&mut KEPT.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A simulation has a thread of its own.
#[cfg(test)]
fn with<T>(work: impl FnOnce(&mut Vec<WrittenManifest>) -> T) -> T {
    use std::cell::RefCell;

    thread_local! {
        static KEPT: RefCell<Vec<WrittenManifest>> = const { RefCell::new(Vec::new()) };
    }
    KEPT.with_borrow_mut(work)
}

/// The process has ended.
#[cfg(test)]
pub(crate) fn forget_all() {
    with(Vec::clear);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keep::Policy;
    use crate::place::Place;

    #[test]
    fn what_another_program_wrote_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::of(directory.path()).unwrap();
        std::fs::create_dir(place.layers()).unwrap();
        let path = place.manifest();
        let mut own = Manifest::default();
        own.set_policy(Some(Policy { depth_max: Some(7), ..Policy::default() }));
        own.write(&place).unwrap();
        assert_eq!(written(&path, &std::fs::read(&path).unwrap()), Some(own.clone()));
        // Another file in its place, as long and of the same time.
        let (text, time) = (std::fs::read(&path).unwrap(), path.metadata().unwrap().modified().unwrap());
        let other = path.with_extension("other");
        std::fs::write(&other, String::from_utf8(text).unwrap().replace('7', "8")).unwrap();
        std::fs::File::options().write(true).open(&other).unwrap().set_modified(time).unwrap();
        std::fs::rename(&other, &path).unwrap();
        let found = Manifest::read(&place).unwrap().unwrap();
        assert_eq!(found.policy().unwrap().depth_max, Some(8));
        // The file itself, written.
        own.write(&place).unwrap();
        std::fs::write(&path, "{}").unwrap();
        Manifest::read(&place).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Manifest::read(&place).unwrap(), None);
    }
}
