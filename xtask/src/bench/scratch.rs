//! The directory of a run's images: nothing of it is left behind, however the run ends.

use std::fs;
use std::path::{Path, PathBuf};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::process;

/// What the names of such directories start with; the process id follows.
const PREFIX: &str = "images-";

/// An own directory, removed when dropped and when a signal ends the program.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes a directory inside `parent`, which must have `space_bytes` to spare, and removes those
    /// of runs that were killed.
    pub fn new(parent: &Path, space_bytes: u64) -> Result<Self, String> {
        let unusable = |error: std::io::Error| format!("{}: {error}", parent.display());
        fs::create_dir_all(parent).map_err(unusable)?;
        let parent = parent.canonicalize().map_err(unusable)?;
        remove_left_over(&parent);
        let space = rustix::fs::statvfs(&parent).map_err(|errno| unusable(errno.into()))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if free < space_bytes {
            let mib = |bytes: u64| bytes >> 20;
            return Err(format!(
                "{}: {} MiB are free, images take up to {} MiB; choose another place with --dir",
                parent.display(),
                mib(free),
                mib(space_bytes)
            ));
        }
        let path = parent.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let scratch = Self { path };
        scratch.remove_on_signals()?;
        Ok(scratch)
    }

    /// Where it is: absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes what is inside.
    pub fn empty(&self) -> Result<(), String> {
        let unusable = |error: std::io::Error| format!("{}: {error}", self.path.display());
        fs::remove_dir_all(&self.path).map_err(unusable)?;
        fs::create_dir(&self.path).map_err(unusable)
    }

    /// A signal ends the programs under measurement, then this one, and the images go with them.
    fn remove_on_signals(&self) -> Result<(), String> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|error| error.to_string())?;
        let path = self.path.clone();
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                process::end_all();
                // What cannot be removed is removed by the next run.
                let _ = fs::remove_dir_all(path);
                std::process::exit(128 + signal);
            }
        });
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is removed by the next run.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Directories of processes that are no more.
fn remove_left_over(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(id) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        if id.parse::<u32>().is_ok() && !Path::new("/proc").join(id).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_go_with_the_run_and_those_of_killed_runs_with_the_next() {
        let parent = tempfile::tempdir().unwrap();
        // No process has this id: it is above the most that Linux gives.
        let left_over = parent.path().join("images-4194999");
        fs::create_dir(&left_over).unwrap();
        let scratch = Scratch::new(parent.path(), 1).unwrap();
        fs::write(scratch.path().join("image"), "x").unwrap();
        assert!(!left_over.exists());
        scratch.empty().unwrap();
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
        let path = scratch.path().to_owned();
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn too_little_space_is_an_error_that_names_the_way_out() {
        let parent = tempfile::tempdir().unwrap();
        let error = Scratch::new(parent.path(), u64::MAX).unwrap_err();
        assert!(error.contains("--dir"), "{error}");
    }
}
