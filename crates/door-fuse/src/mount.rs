//! The mount of a file: made by this process where it is root's, by fusermount3 elsewhere.

mod fusermount;

use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};

/// What the table of mounts calls the file system.
pub const FILE_SYSTEM: &str = "fuse.cowhand";

/// What it has as its source.
const SOURCE: &str = "cowhand";

/// Who may use the file beside the user who mounts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllowOther {
    /// Whom its mode lets.
    On,
    /// No other user, not even root.
    Off,
    /// As `On` where the system lets this user say so, as `Off` elsewhere.
    #[default]
    Auto,
}

/// How a file is mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// Who may use it.
    pub allow_other: AllowOther,
    /// The kernel refuses to open it for writing.
    pub read_only: bool,
}

/// Where a file is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// From the root, without links.
    pub path: PathBuf,
    /// The mount's device number, as the table of mounts has it: tells it from others at the same place.
    pub device: String,
}

/// Why a file is not mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There must be a file for the mount to lie over.
    #[error("the mount point cannot be used; make it first, for instance with `touch`")]
    NoPoint(#[source] io::Error),
    /// Only a regular file can be covered by one.
    #[error("the mount point is no regular file; the disk is mounted as a file, over one")]
    NotRegular,
    /// The server of a mount at this place is gone, and it cannot be taken away.
    #[error(
        "a mount is left there whose server is gone; take it away: umount -l {0:?} (as root), or fusermount3 -u -z {0:?}"
    )]
    Stale(PathBuf),
    /// The kernel has no FUSE, or does not let us.
    #[error("/dev/fuse cannot be opened{}", remedy(.0))]
    NoDevice(#[source] io::Error),
    /// The kernel refuses.
    #[error("the kernel refuses the mount")]
    Refused(#[source] io::Error),
    /// The program that mounts for users is not there.
    #[error("fusermount3 cannot be run, which mounts for users other than root; install the package fuse3")]
    NoProgram(#[source] io::Error),
    /// It refuses.
    #[error("fusermount3 refuses: {0}")]
    ProgramRefused(String),
    /// It is not among the mounts of this process.
    #[error("it is mounted, and cannot be found in /proc/self/mountinfo")]
    NotFound,
}

/// What to do where the device is missing. Where it is denied the reason says enough, and in a sandbox it is not the device's.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "",
        _ => "; load the module with `modprobe fuse`",
    }
}

/// Mounts a file over the one at `point`, and gives the device by which the kernel asks. It stays when the device is closed, and then fails
/// whatever programs do with it: see [`unmount`].
///
/// A mount of a server that is gone is replaced.
///
/// # Errors
/// When there is no such file, or neither the kernel nor fusermount3 mounts it. Nothing is mounted then.
pub fn mount(point: &Path, options: MountOptions) -> Result<(OwnedFd, MountPoint), MountError> {
    let path = free_point(point)?;
    let device = if is_root() { by_kernel(&path, options)? } else { fusermount::mount(&path, options)? };
    match top(&path) {
        Some(entry) if entry.file_system == FILE_SYSTEM => {
            Ok((device, MountPoint { path, device: entry.device }))
        }
        _ => Err(MountError::NotFound),
    }
}

/// Takes a mount away, though programs have the file open: they keep it until it is not served any more. Nothing where it is gone, or covered
/// by another one.
///
/// # Errors
/// When the kernel, or fusermount3, refuses.
pub fn unmount(point: &MountPoint) -> io::Result<()> {
    let is_ours = |entry: &Entry| entry.file_system == FILE_SYSTEM && entry.device == point.device;
    if top(&point.path).as_ref().is_some_and(is_ours) { detach(&point.path) } else { Ok(()) }
}

fn detach(path: &Path) -> io::Result<()> {
    if is_root() {
        return Ok(rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?);
    }
    fusermount::unmount(path)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The regular file to be covered, from the root.
fn free_point(point: &Path) -> Result<PathBuf, MountError> {
    let path = match located(point) {
        Err(error) if is_gone(&error) => replace_stale(point)?,
        located => located.map_err(MountError::NoPoint)?,
    };
    match fs::metadata(&path) {
        Ok(metadata) if metadata.is_file() => Ok(path),
        Ok(_) => Err(MountError::NotRegular),
        Err(error) => Err(MountError::NoPoint(error)),
    }
}

/// Whether the server of a mount is gone: for good, or in this moment.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotConnected | io::ErrorKind::ConnectionAborted)
}

/// `point` from the root, without links, if it can be reached.
fn located(point: &Path) -> io::Result<PathBuf> {
    fs::metadata(point)?;
    fs::canonicalize(point)
}

/// Takes away what another server, which is gone, left at `point`.
fn replace_stale(point: &Path) -> Result<PathBuf, MountError> {
    let stale = || MountError::Stale(point.to_owned());
    // The file itself cannot be looked at.
    let absolute = std::path::absolute(point).map_err(MountError::NoPoint)?;
    let (directory, name) = absolute.parent().zip(absolute.file_name()).ok_or_else(stale)?;
    let path = fs::canonicalize(directory).map_err(MountError::NoPoint)?.join(name);
    match top(&path) {
        Some(entry) if entry.file_system == FILE_SYSTEM => detach(&path).map_err(|_| stale())?,
        _ => return Err(stale()),
    }
    tracing::warn!(path = %path.display(), "a mount whose server is gone was there: replaced");
    located(&path).map_err(|_| stale())
}

fn by_kernel(path: &Path, options: MountOptions) -> Result<OwnedFd, MountError> {
    let device = File::options().read(true).write(true).open("/dev/fuse").map_err(MountError::NoDevice)?;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let others = if options.allow_other == AllowOther::Off { "" } else { ",allow_other,default_permissions" };
    // rootmode: a regular file.
    let said = format!("fd={},rootmode=100000,user_id={uid},group_id={gid}{others}", device.as_raw_fd());
    let said = CString::new(said).map_err(|error| MountError::Refused(error.into()))?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    flags.set(MountFlags::RDONLY, options.read_only);
    rustix::mount::mount(SOURCE, path, FILE_SYSTEM, flags, said.as_c_str())
        .map_err(|error| MountError::Refused(error.into()))?;
    Ok(device.into())
}

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// MAJOR:MINOR.
    device: String,
    file_system: String,
}

/// The mount at `path` that lies over all others there.
fn top(path: &Path) -> Option<Entry> {
    top_in(&std::fs::read("/proc/self/mountinfo").ok()?, path)
}

fn top_in(table: &[u8], path: &Path) -> Option<Entry> {
    // Later ones lie over earlier ones.
    table.split(|&byte| byte == b'\n').rev().find_map(|line| entry(line, path))
}

/// What a line says, if it is about `path`.
fn entry(line: &[u8], path: &Path) -> Option<Entry> {
    let mut words = line.split(|&byte| byte == b' ');
    let device = words.nth(2)?;
    let place = words.nth(1)?;
    if unescaped(place).as_bytes() != path.as_os_str().as_bytes() {
        return None;
    }
    let file_system = words.skip_while(|word| *word != b"-").nth(1)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some(Entry { device: text(device), file_system: text(file_system) })
}

/// Blanks, tabs, line ends and backslashes stand there as a backslash and three octal digits.
fn unescaped(mut word: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(word.len());
    while let Some((&byte, rest)) = word.split_first() {
        let digits =
            rest.get(..3).filter(|digits| byte == b'\\' && digits.iter().all(|d| (b'0'..b'8').contains(d)));
        let code =
            digits.map(|digits| digits.iter().fold(0u32, |code, digit| code * 8 + u32::from(digit - b'0')));
        match code.and_then(|code| u8::try_from(code).ok()) {
            Some(code) => {
                bytes.push(code);
                word = rest.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(byte);
                word = rest;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = br"22 1 0:20 / / rw,noatime shared:1 - ext4 /dev/vda1 rw
40 22 0:33 / /a\040b rw,nosuid,nodev - fuse.cowhand cowhand rw,user_id=0,group_id=0
41 22 0:34 / /c rw master:1 propagate_from:2 - fuse.cowhand cowhand rw
42 41 0:35 / /c rw - tmpfs tmpfs rw
";

    #[test]
    fn the_last_mount_at_a_place_is_the_one_that_is_seen() {
        let top = |path: &str| top_in(TABLE, Path::new(path));
        let entry =
            |device: &str, kind: &str| Some(Entry { device: device.into(), file_system: kind.into() });
        assert_eq!(top("/a b"), entry("0:33", "fuse.cowhand"));
        assert_eq!(top("/c"), entry("0:35", "tmpfs"));
        assert_eq!(top("/"), entry("0:20", "ext4"));
        assert_eq!(top("/a"), None);
    }

    #[test]
    fn only_three_octal_digits_are_an_escape() {
        assert_eq!(unescaped(br"a\134b\011c\04"), OsString::from("a\\b\tc\\04"));
        assert_eq!(unescaped(br"\777\08x"), OsString::from(r"\777\08x"));
    }
}
