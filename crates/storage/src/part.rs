//! Files that get their name when they are whole: what they are called until then, and what killed processes left of them.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use crate::{FileLock, Role};

/// What stands between the name that a file gets and the number of the process that makes it.
const PART: &str = ".part-";

/// A name of our own for a file that is going to be called `place`, in the same directory: names inside an image mean the same there. What processes that have
/// ended left under such names is removed.
///
/// # Errors
/// When `place` ends in no name.
pub fn part_of(place: &Path) -> io::Result<PathBuf> {
    let name = place.file_name().ok_or_else(|| io::Error::other("it has no file name"))?;
    let directory = place.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut prefix = OsString::from(".");
    prefix.push(name);
    prefix.push(PART);
    remove_left(directory, &prefix);
    prefix.push(std::process::id().to_string());
    Ok(directory.join(prefix))
}

/// Removes files of processes that are not there. What cannot be looked at or removed stays: nothing needs it to go.
fn remove_left(directory: &Path, prefix: &OsStr) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for name in entries.filter_map(|entry| Some(entry.ok()?.file_name())) {
        let number = name.as_encoded_bytes().strip_prefix(prefix.as_encoded_bytes());
        let number = number.and_then(|number| std::str::from_utf8(number).ok()?.parse().ok());
        if number.is_some_and(has_ended) {
            let path = directory.join(&name);
            // A process of another PID namespace is not seen, but its lock is.
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let Ok(file) = rustix::fs::open(&path, flags, Mode::empty()) else { continue };
            if let Ok(_lock) = FileLock::acquire_role(&Arc::new(file), Role::Writer) {
                let _ = std::fs::remove_file(&path);
            }
        }
    }
}

fn has_ended(number: u32) -> bool {
    // As /proc says, if there is one: the sandbox of a server lets no signals through.
    let looked = std::fs::symlink_metadata(format!("/proc/{number}"));
    looked.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) && Path::new("/proc/self").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A restore that was killed left its file for ever.
    #[test]
    fn what_a_process_that_has_ended_left_goes_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let left = format!(".disk.part-{}", ended.id());
        ended.wait().unwrap();
        let kept = [".disk.part-1", ".disk.part-x", ".other.part-2147483646", "disk"];
        for name in kept.into_iter().chain([left.as_str()]) {
            std::fs::write(path(name), "").unwrap();
        }
        let locked = path(".disk.part-2147483645");
        let made = std::fs::File::options().read(true).write(true).create_new(true).open(&locked).unwrap();
        let file = Arc::new(std::os::fd::OwnedFd::from(made));
        let lock = FileLock::acquire_role(&file, Role::Writer).unwrap();
        let part = part_of(&path("disk")).unwrap();
        assert_eq!(part, path(&format!(".disk.part-{}", std::process::id())));
        assert!(kept.iter().all(|name| path(name).exists()) && !path(&left).exists() && locked.exists());
        drop(lock);
        part_of(&path("disk")).unwrap();
        assert!(!locked.exists());
    }
}
