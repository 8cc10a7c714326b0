//! The file that says which process serves.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::failure::Failure;

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
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o644);
        let mut file = options.open(path).map_err(|error| failed(&error))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut owner = String::new();
            let _ = (&file).take(32).read_to_string(&mut owner);
            return Err(Failure::new(format!(
                "the pid file {} belongs to running process {}",
                path.display(),
                owner.trim()
            )));
        }
        file.set_len(0).map_err(|error| failed(&error))?;
        writeln!(file, "{}", std::process::id()).map_err(|error| failed(&error))?;
        Ok(Self { path: path.to_owned(), file })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Only what is still ours: somebody may have put another file in its place.
        let ours = self.file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
        let there = fs::metadata(&self.path).map(|metadata| (metadata.dev(), metadata.ino()));
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
