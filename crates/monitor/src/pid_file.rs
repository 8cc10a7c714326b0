//! The file that says which process serves.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use graph::names::directory_of;
use rustix::fs::{FlockOperation, flock};
use tool::failure::Failure;

use super::socket_path::names_stay;
use super::take_over::message::Place;
use super::take_over::sockets::{self, Handed};

/// The sticky bit of a directory that every user can write to, as /tmp.
const STICKY: u32 = 0o1000;

/// A pid file, locked while we run and removed at the end.
///
/// The lock, not the file, says that its owner is alive: a file left over by a crash is taken over.
#[derive(Debug)]
pub struct PidFile {
    path: PathBuf,
    file: File,
}

impl PidFile {
    /// Writes our process's number.
    ///
    /// # Errors
    /// When another living process holds the file, or it cannot be written.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let failed = |error: &dyn std::error::Error| {
            Failure::because(format!("cannot write the pid file {}", path.display()), error)
        };
        if let Some(file) = sockets::pid_file(path) {
            // Its lock came with it. What it says is ours to change when we serve.
            return Ok(Self { path: path.to_owned(), file: file.into() });
        }
        let file = open(path).map_err(|error| failed(&error))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut owner = String::new();
            let _ = (&file).take(32).read_to_string(&mut owner);
            return Err(Failure::new(format!(
                "the pid file {} belongs to running process {}",
                path.display(),
                owner.trim()
            )));
        }
        let own = Self { path: path.to_owned(), file };
        own.write().map_err(|error| failed(&error))?;
        Ok(own)
    }

    /// Writes our process's number into a file that another process had.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0)
    }

    /// The file with its lock, for the next process.
    ///
    /// # Errors
    /// When the process may not have more descriptors.
    pub fn handed(&self) -> io::Result<Handed> {
        let place = Place::PidFile(std::path::absolute(&self.path)?);
        Ok(Handed { place, fd: self.file.try_clone()?.into() })
    }
}

/// Opens or makes the file itself. In a directory where others make files too its name may be a trap of theirs: a link to a file that we may
/// write and they may not, or a file of their own whose number they change.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o644);
    // Without NONBLOCK the open of a pipe may wait for its other end.
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::other("it is a symbolic link, and none is followed there"),
        _ => error,
    })?;
    let (found, directory) = (file.metadata()?, directory_of(path).metadata()?);
    let is_shared = directory.mode() & STICKY != 0;
    let trusted = [rustix::process::geteuid().as_raw(), directory.uid()];
    match found.is_file() && found.nlink() == 1 {
        true if is_shared && !trusted.contains(&found.uid()) => {
            Err(io::Error::other(format!("it belongs to another user (uid {})", found.uid())))
        }
        true => Ok(file),
        false => Err(io::Error::other("it is no regular file with this name alone")),
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if names_stay() {
            return;
        }
        // Removed only if it is still ours: another process may have replaced it.
        let ours = self.file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
        let there = fs::symlink_metadata(&self.path).map(|metadata| (metadata.dev(), metadata.ino()));
        if let (Ok(ours), Ok(there)) = (ours, there)
            && ours == there
        {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_file_has_one_living_owner_and_goes_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        fs::write(&path, "left over by a crash, and longer than a number").unwrap();
        let held = PidFile::create(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        let refused = PidFile::create(&path).unwrap_err().to_string();
        assert!(refused.contains(&format!("running process {}", std::process::id())), "{refused}");
        drop(held);
        assert!(!path.exists());
    }

    /// `--pid-file /tmp/pid`, where another user had made `/tmp/pid` a link: the file behind it was emptied.
    #[test]
    fn a_link_in_the_place_of_a_pid_file_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let [path, precious, made] = ["pid", "precious", "made"].map(|name| directory.path().join(name));
        fs::write(&precious, "precious").unwrap();
        for target in [&precious, &made] {
            std::os::unix::fs::symlink(target, &path).unwrap();
            let refused = PidFile::create(&path).unwrap_err().to_string();
            assert!(refused.contains("symbolic link"), "{refused}");
            fs::remove_file(&path).unwrap();
        }
        fs::hard_link(&precious, &path).unwrap();
        let refused = PidFile::create(&path).unwrap_err().to_string();
        assert!(refused.contains("this name alone"), "{refused}");
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        assert!(!made.exists());
    }

    #[test]
    fn a_file_put_in_its_place_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        let held = PidFile::create(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another").unwrap();
        drop(held);
        assert_eq!(fs::read_to_string(&path).unwrap(), "another");
    }
}
