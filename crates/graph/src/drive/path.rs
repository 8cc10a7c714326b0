//! Paths that are said to be such.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::drivers::storage_of;
use crate::names::directory_of;

/// How many links lead to a file at most: Linux follows as many.
const LINKS_MAX: usize = 40;

/// The path in `file:PATH`, which is how QEMU's users write a path with a colon in it; `None` of anything else.
pub(super) fn called_a_path(text: &OsStr) -> Option<OsString> {
    let path = text.as_bytes().strip_prefix(b"file:").filter(|path| !path.is_empty())?;
    let path = OsStr::from_bytes(path);
    // By itself it could be the name of something else.
    let first = path.as_bytes().split(|byte| *byte == b'/').next().unwrap_or_default();
    let here = if first.contains(&b':') || storage_of(Path::new(path)).is_some() { "./" } else { "" };
    Some([OsStr::new(here), path].into_iter().collect())
}

/// The path that `text` of a user's means where only a path can be meant: what is there is meant as it is written, `file:PATH` is PATH.
pub fn path_of(text: &Path) -> PathBuf {
    let as_written = text.symlink_metadata().is_ok();
    let path = called_a_path(text.as_os_str()).filter(|_| !as_written);
    path.map_or_else(|| text.to_owned(), PathBuf::from)
}

/// The path of the file `name` with all links resolved, also if no file is there yet.
///
/// # Errors
/// When links lead in a circle.
pub fn place_of(name: &Path) -> io::Result<PathBuf> {
    let mut place = name.to_owned();
    for _ in 0..LINKS_MAX {
        match place.read_link() {
            Ok(link) => place = directory_of(&place).join(link),
            Err(_) => return Ok(place),
        }
    }
    Err(rustix::io::Errno::LOOP.into())
}
