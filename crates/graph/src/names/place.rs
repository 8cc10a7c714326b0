//! The place and the identity of a file.

use std::io;
use std::path::{Path, PathBuf};

/// Where a file was found, by name and in truth: where the names inside it start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub(super) given: PathBuf,
    pub(super) real: PathBuf,
    /// It was handed over as a descriptor, or is no file of this machine: it lies in no directory.
    pub(super) is_descriptor: bool,
}

impl Place {
    /// Of storage that is no file of this machine, called `name`.
    pub(crate) fn elsewhere(name: String) -> Self {
        let given = PathBuf::from(name);
        Self { real: given.clone(), given, is_descriptor: true }
    }

    /// The path it was found by, links and all.
    pub fn given(&self) -> &Path {
        &self.given
    }

    /// The path with all links resolved.
    pub fn real(&self) -> &Path {
        &self.real
    }

    /// The directory in the path by which it was found and the one it really lies in.
    pub(super) fn own_directories(&self) -> io::Result<Vec<PathBuf>> {
        if self.is_descriptor {
            return Ok(Vec::new());
        }
        let named = match self.given.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.canonicalize()?,
            _ => Path::new(".").canonicalize()?,
        };
        Ok(vec![named, self.real.parent().unwrap_or(Path::new("/")).to_owned()])
    }
}

/// Which file it is, under whatever name: two equal ones in a chain are a cycle.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity(FileKey);

/// What a file is known by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum FileKey {
    Inode {
        device: u64,
        inode: u64,
    },
    /// Storage that is no file of this machine: by its name.
    Elsewhere(String),
}

impl Identity {
    pub(super) fn of(stat: &rustix::fs::Stat) -> Self {
        Self(FileKey::Inode { device: stat.st_dev, inode: stat.st_ino })
    }

    /// Of storage that is no file of this machine, and has one name.
    pub(crate) fn elsewhere(name: String) -> Self {
        Self(FileKey::Elsewhere(name))
    }
}
