//! A driver of storage: what `driver` of a file can be.

use std::path::Path;
use std::sync::OnceLock;

use super::elsewhere::Elsewhere;
use super::over::Over;
use crate::drive::OptionTree;
use crate::options::Spec;

/// A driver of storage.
#[derive(Debug)]
pub struct StorageDriver {
    /// What options call it.
    pub name: &'static str,
    /// Beginnings of file names that mean it, where no driver is given (`nbd:`).
    pub prefixes: &'static [&'static str],
    /// Where it looks.
    pub kind: StorageKind,
}

/// Where a storage driver looks.
#[derive(Debug)]
pub enum StorageKind {
    /// At a path on this machine.
    Path,
    /// Where its own options say.
    Elsewhere(Elsewhere),
    /// At another file, which another driver opens.
    Over(Over),
}

impl StorageDriver {
    /// Whether it opens paths.
    pub(crate) fn is_of_paths(&self) -> bool {
        matches!(self.kind, StorageKind::Path)
    }

    /// Whether it opens nothing and connects to nothing.
    pub(crate) fn is_within_process(&self) -> bool {
        matches!(&self.kind, StorageKind::Elsewhere(elsewhere) if elsewhere.is_within_process)
    }

    /// Its own options, beside those that every file has.
    pub fn specs(&self) -> Vec<&'static Spec> {
        match &self.kind {
            StorageKind::Path => Vec::new(),
            StorageKind::Elsewhere(elsewhere) => (elsewhere.specs)(),
            StorageKind::Over(over) => (over.specs)(),
        }
    }

    /// What messages call it by this file name.
    pub(crate) fn shown(&self, name: &str) -> String {
        match &self.kind {
            StorageKind::Elsewhere(elsewhere) => (elsewhere.shown)(name),
            StorageKind::Path | StorageKind::Over(_) => name.to_owned(),
        }
    }

    /// The options that a file name with its prefix stands for; `None` of paths, which stand for themselves.
    pub(crate) fn options_of(&self, name: &str) -> Option<Result<OptionTree, String>> {
        match &self.kind {
            StorageKind::Path => None,
            StorageKind::Elsewhere(elsewhere) => Some((elsewhere.options_of)(name)),
            StorageKind::Over(over) => Some((over.options_of)(name)),
        }
    }
}

/// There is one driver of a name.
impl PartialEq for StorageDriver {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for StorageDriver {}

static HANDED_IN: OnceLock<&'static [&'static StorageDriver]> = OnceLock::new();

pub(super) fn hand_in(list: &'static [&'static StorageDriver]) {
    let _ = HANDED_IN.set(list);
}

/// All drivers of storage, in the order of the documentation.
pub fn storage_drivers() -> &'static [&'static StorageDriver] {
    #[cfg(test)]
    return crate::catalog::DRIVERS.storage;
    #[cfg(not(test))]
    HANDED_IN.get().copied().unwrap_or_default()
}

/// The storage driver called `name`.
pub(crate) fn storage(name: &str) -> Option<&'static StorageDriver> {
    storage_drivers().iter().find(|driver| driver.name == name).copied()
}

/// The storage driver that a file name means by its beginning.
pub fn storage_of(filename: &Path) -> Option<&'static StorageDriver> {
    let name = filename.as_os_str().as_encoded_bytes();
    let means_it =
        |driver: &&StorageDriver| driver.prefixes.iter().any(|prefix| name.starts_with(prefix.as_bytes()));
    storage_drivers().iter().copied().find(means_it)
}
