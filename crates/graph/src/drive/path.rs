//! Paths that are said to be such.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::drivers::storage_of;
use crate::options::table::is_option_name;

/// How many links lead to a file at most: Linux follows as many.
const LINKS_MAX: usize = 40;

/// Drivers that stand before a path: of files, and of devices.
pub(crate) const PATH_PROTOCOLS: [&str; 3] = [FILE, "host_device", "host_cdrom"];

const FILE: &str = "file";

/// The path in `file:PATH`, which is how QEMU's users write a path with a colon in it; `None` of anything else.
pub(super) fn called_a_path(text: &OsStr) -> Option<OsString> {
    let path = text.as_bytes().strip_prefix(b"file:").filter(|path| !path.is_empty())?;
    let path = OsStr::from_bytes(path);
    // By itself it could be the name of something else.
    let first = path.as_bytes().split(|byte| *byte == b'/').next().unwrap_or_default();
    let here = if first.contains(&b':') || storage_of(Path::new(path)).is_some() { "./" } else { "" };
    Some([OsStr::new(here), path].into_iter().collect())
}

/// The driver and the path in `host_device:PATH` and `host_cdrom:PATH`; `None` of anything else.
pub(super) fn called_a_device(text: &OsStr) -> Option<(&'static str, OsString)> {
    let (protocol, path) = split_protocol(text.as_bytes())?;
    let driver = PATH_PROTOCOLS.into_iter().find(|driver| driver.as_bytes() == protocol)?;
    (driver != FILE && !path.is_empty()).then(|| (driver, OsStr::from_bytes(path).to_owned()))
}

/// Whether `text` is the path of a device, and of nothing else.
pub fn names_device(text: &OsStr) -> bool {
    called_a_device(text).is_some()
}

/// The path that `text` of a user's means where only a path can be meant: what is there is meant as it is written, `file:PATH` is PATH.
pub fn path_of(text: &Path) -> PathBuf {
    if text.symlink_metadata().is_ok() {
        return text.to_owned();
    }
    let text = text.as_os_str();
    let device = || called_a_device(text).map(|(_, path)| path);
    PathBuf::from(called_a_path(text).or_else(device).unwrap_or_else(|| text.to_owned()))
}

/// What stands before and behind the first colon of a name, if no slash stands before it: QEMU takes the first part for a protocol.
pub(crate) fn split_protocol(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = name.iter().position(|byte| matches!(byte, b':' | b'/')).filter(|at| name[*at] == b':')?;
    Some((&name[..colon], &name[colon + 1..]))
}

/// The protocol that a DRIVE begins with, if no driver has it or no path follows it: QEMU's programs make and open no file by such a name.
pub fn unknown_protocol(drive: &OsStr) -> Option<String> {
    let bytes = drive.as_bytes();
    let (protocol, rest) = split_protocol(bytes)?;
    let is_of_paths = PATH_PROTOCOLS.iter().any(|known| known.as_bytes() == protocol) && !rest.is_empty();
    let is_known = is_of_paths || protocol == b"json" || storage_of(Path::new(drive)).is_some();
    let has_options = || first_key(bytes).is_some_and(is_option_name);
    (!is_known && !has_options()).then(|| String::from_utf8_lossy(protocol).into_owned())
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

/// The text before the first `=`, unless a `/` or `,` comes first.
pub(super) fn first_key(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|byte| matches!(byte, b'=' | b'/' | b','))?;
    if bytes[end] != b'=' {
        return None;
    }
    std::str::from_utf8(&bytes[..end]).ok()
}

/// The directory that a file at `path` is in; `.` for a bare name.
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
