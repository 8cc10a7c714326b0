//! One command at a time changes a lineage.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use storage::{LockError, Role};

use crate::error::Error;
use crate::files::{LockGuard, files};
use crate::place::Place;

/// How long a command waits for another one on the same lineage: each takes milliseconds, a thousand forks some seconds.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two tries.
const RETRY: Duration = Duration::from_millis(5);

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
            return Err(Error::NoLineage { directory: place.directory().to_owned() });
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
        match files().lock(&path, Role::Writer, true) {
            Ok(opened) => return opened.map_err(Error::io("cannot open the lock", &path)),
            Err(LockError::Busy { .. }) if Instant::now() < deadline => std::thread::sleep(RETRY),
            Err(source) => return Err(Error::Busy { path, source }),
        }
    }
}
