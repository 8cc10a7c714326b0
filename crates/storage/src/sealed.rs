//! Files of a lineage (crate `lineage`), where they are opened to be written: no tool, server or library writes a sealed layer (their mode says so, too, but does
//! not stop root), and none writes a disk whose name a power cut could take back.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The directory of the layers, and the link in it that leads to itself.
const LAYERS: &str = "layers";
/// Hexadecimal digits of a layer's id, which its file is called by.
const ID_DIGITS: usize = 16;

/// Whether a directory, links resolved, has the layers of a lineage: it is called `layers`, and has a link of that name to itself. A user who can only put files
/// into a directory cannot make it one.
pub fn is_layers_directory(path: &Path) -> bool {
    path.file_name() == Some(OsStr::new(LAYERS))
        && std::fs::read_link(path.join(LAYERS)).is_ok_and(|leads_to| leads_to == Path::new("."))
}

/// Whether a path, links resolved, is that of a sealed layer: `layers/ID.qcow2`. Files on their way there are called otherwise.
pub fn is_sealed_layer(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str);
    let id = name.and_then(|name| name.strip_suffix(".qcow2"));
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    id.is_some_and(|id| id.len() == ID_DIGITS && id.bytes().all(is_digit))
        && path.parent().is_some_and(is_layers_directory)
}

/// What an open file is to a lineage, by the path that it was opened at, whatever links and descriptors led there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is a sealed layer.
    SealedLayer,
    /// It is in a directory that has layers: a disk, say. That directory.
    BesideLayers(PathBuf),
    /// Anything else.
    Elsewhere,
}

impl Standing {
    pub(crate) fn of(fd: impl AsFd) -> Self {
        let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())) else {
            return Self::Elsewhere;
        };
        match path.parent() {
            _ if is_sealed_layer(&path) => Self::SealedLayer,
            Some(directory) if is_layers_directory(&directory.join(LAYERS)) => {
                Self::BesideLayers(directory.to_owned())
            }
            _ => Self::Elsewhere,
        }
    }
}

/// Makes the names in the directory of a lineage's disk durable, before it is written: a checkpoint, a rollback or a fork that was killed behind
/// its rename may have left a name that a power cut takes back, with all that was written and flushed under it. Costs an open and an fsync,
/// which has nothing to do unless such a command ran moments ago.
///
/// # Errors
/// The kernel's. A directory that this process may not read is made durable with everything else, by `sync`.
pub(crate) fn make_names_durable(directory: &Path) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::open(directory, flags, Mode::empty()) {
        Ok(opened) => rustix::fs::fsync(opened),
        Err(Errno::ACCESS | Errno::PERM) => {
            rustix::fs::sync();
            Ok(())
        }
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileOptions, FileStorage, OpenError};

    /// As root `commit` wrote into a checkpoint, and the forks of it were lost.
    #[test]
    fn a_sealed_layer_is_opened_for_reading_alone_whatever_leads_to_it() {
        let directory = tempfile::tempdir().unwrap();
        let layers = directory.path().join(LAYERS);
        std::fs::create_dir(&layers).unwrap();
        let layer = layers.join("0123456789abcdef.qcow2");
        let written = FileOptions::default();
        let is_refused = |path: &Path| match FileStorage::open(path, &written) {
            Err(error @ OpenError::SealedLayer { .. }) => error.to_string().contains("cowhand fork"),
            opened => opened.map(|_| false).unwrap(),
        };
        std::fs::write(&layer, "").unwrap();
        // Another's directory that is called so.
        assert!(!is_refused(&layer));
        std::os::unix::fs::symlink(".", layers.join(LAYERS)).unwrap();
        let link = directory.path().join("link.qcow2");
        std::os::unix::fs::symlink(&layer, &link).unwrap();
        let around = layers.join("layers/../layers/0123456789abcdef.qcow2");
        for path in [&layer, &link, &around] {
            assert!(is_refused(path), "{}", path.display());
            FileStorage::open(path, &FileOptions { read_only: true, ..written }).unwrap();
        }
        let descriptor = std::fs::File::options().read(true).write(true).open(&layer).unwrap();
        assert!(is_refused(format!("/proc/self/fd/{}", descriptor.as_raw_fd()).as_ref()));
        for other in [
            "new-0123456789abcdef.qcow2",
            "merged-0123456789abcdef.qcow2",
            "0123456789abcdeg.qcow2",
            "disk.qcow2",
        ] {
            std::fs::write(layers.join(other), "").unwrap();
            assert!(!is_refused(&layers.join(other)), "{other}");
        }
        assert!(FileStorage::create_new(layers.join("00000000000000aa.qcow2"), &written).is_ok());
    }

    #[test]
    fn a_file_beside_layers_is_opened_with_a_durable_name() {
        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("disk.qcow2");
        std::fs::write(&disk, "").unwrap();
        let standing = |path: &Path| Standing::of(std::fs::File::open(path).unwrap());
        assert_eq!(standing(&disk), Standing::Elsewhere);
        let layers = directory.path().join(LAYERS);
        std::fs::create_dir(&layers).unwrap();
        std::os::unix::fs::symlink(".", layers.join(LAYERS)).unwrap();
        let link = layers.join("link");
        std::os::unix::fs::symlink(&disk, &link).unwrap();
        let beside = Standing::BesideLayers(directory.path().canonicalize().unwrap());
        for path in [&disk, &link] {
            assert_eq!(standing(path), beside);
            FileStorage::open(path, &FileOptions::default()).unwrap();
        }
        make_names_durable(directory.path()).unwrap();
        assert!(make_names_durable(&disk).is_err(), "no directory");
    }
}
