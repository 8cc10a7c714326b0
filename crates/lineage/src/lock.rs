//! One command at a time changes a lineage.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use storage::LockError;

use crate::error::Error;
use crate::files::{LockGuard, files};
use crate::place::Place;

/// How long a command waits for another one on the same lineage: each takes milliseconds, a thousand forks some seconds.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two tries, at least; up to as much more by chance: those who wait do not go on trying at the same moments.
const RETRY: Duration = Duration::from_millis(2);

/// The lock of a lineage, until it is dropped or the process ends.
#[derive(Debug)]
pub struct Lock {
    place: Place,
    _lock: LockGuard,
}

impl Lock {
    /// Takes it, waiting up to `patience`: the commands of a lineage take milliseconds.
    ///
    /// # Errors
    /// [`Error::NoLineage`] without a directory of layers. [`Error::Busy`], which names the holder.
    pub fn take(place: &Place, patience: Duration) -> Result<Self, Error> {
        if !place.is_lineage() {
            return Err(place.no_lineage());
        }
        Ok(Self { place: place.clone(), _lock: lock(place.lock(), patience)? })
    }

    /// The lineage that is locked.
    pub fn place(&self) -> &Place {
        &self.place
    }
}

/// Locks a file, which is made if it is not there, waiting up to `patience`.
///
/// # Errors
/// [`Error::Busy`], which names the holder.
pub(crate) fn lock(path: PathBuf, patience: Duration) -> Result<LockGuard, Error> {
    let deadline = Instant::now() + patience;
    loop {
        match files().lock_in_turn(&path) {
            Ok(opened) => return opened.map_err(Error::io("cannot open the lock", &path)),
            Err(LockError::Busy { .. }) if Instant::now() < deadline => {
                let random = files().random().unwrap_or_default();
                let more = RETRY.as_micros() as u64;
                std::thread::sleep(RETRY + Duration::from_micros(random % more));
            }
            Err(source) => return Err(Error::Busy { path, source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, chown};

    use super::*;

    /// Eight commands at once refused each other for ten seconds: each try held what stood against the others.
    #[test]
    fn many_that_wait_get_the_lock_one_after_the_other() {
        let directory = tempfile::tempdir().unwrap();
        let (path, held) = (directory.path().join("lock"), std::sync::Mutex::new(()));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..40 {
                        let lock = lock(path.clone(), Duration::from_secs(120)).unwrap();
                        let alone = held.try_lock().expect("one has it");
                        // As long as a command takes.
                        std::thread::sleep(Duration::from_millis(1));
                        drop((alone, lock));
                    }
                });
            }
        });
        let first = lock(path.clone(), Duration::ZERO).unwrap();
        assert!(matches!(lock(path.clone(), Duration::ZERO), Err(Error::Busy { .. })));
        drop(first);
        // One who waited in vain stands against no other.
        lock(path, Duration::ZERO).unwrap();
    }

    /// Root took the first checkpoint, and the owner of the disk took none after it.
    #[test]
    fn a_lock_that_root_makes_is_of_the_owner_of_its_directory() {
        const OWNER: u32 = 4711;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        chown(directory.path(), Some(OWNER), Some(OWNER)).unwrap();
        let layers = directory.path().join("layers");
        files().make_directory(&layers).unwrap();
        lock(layers.join("lock"), Duration::ZERO).unwrap();
        for path in [layers.join("lock"), layers] {
            let found = path.metadata().unwrap();
            assert_eq!((found.uid(), found.gid()), (OWNER, OWNER), "{}", path.display());
        }
    }
}
