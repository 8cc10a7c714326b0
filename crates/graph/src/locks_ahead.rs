//! Locks of files that are going to be opened under another path: from before the path leads to such a file until it is open no other process can lock it.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use storage::{FileLock, Role};

use crate::error::OpenError;
use crate::names::{Identity, Located};
use crate::shared_files::FirstLock;

/// The locks that were taken ahead, by the files that they are on.
#[derive(Clone, Debug, Default)]
pub struct LocksAhead(Arc<Mutex<HashMap<Identity, FirstLock>>>);

/// A writer's lock of a file, taken ahead. The open of the file for writing takes it over; the file stays locked as long as either is there.
#[derive(Debug)]
pub struct LockAhead {
    locks: LocksAhead,
    identity: Identity,
    lock: FirstLock,
}

impl LocksAhead {
    /// Locks the file at `path` as its writer does. The next open of it for writing by this process, by any of its paths, takes the lock over.
    ///
    /// # Errors
    /// When there is none, or another process uses it.
    pub(crate) fn take(&self, path: &Path) -> Result<LockAhead, OpenError> {
        let find = |source| OpenError::Find { path: path.to_owned(), source };
        let located = Located::by_user(path).map_err(find)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let file = rustix::fs::open(located.open_path(), flags, Mode::empty());
        let file: Arc<OwnedFd> = Arc::new(file.map_err(|errno| find(errno.into()))?);
        let lock = FileLock::acquire_role(&file, Role::Writer);
        let lock = lock.map_err(|source| OpenError::Lock { path: path.to_owned(), source })?;
        let (identity, lock) = (located.identity(), Arc::new(Mutex::new(lock)));
        self.0.lock().insert(identity.clone(), Arc::clone(&lock));
        Ok(LockAhead { locks: self.clone(), identity, lock })
    }

    /// The lock of a file, for an open that takes it over, unless another one has it. One that fails gives it back.
    pub(crate) fn take_over(&self, identity: &Identity) -> Option<FirstLock> {
        let locks = self.0.lock();
        // Here, and of the one who took it ahead.
        locks.get(identity).filter(|lock| Arc::strong_count(lock) == 2).cloned()
    }
}

impl Drop for LockAhead {
    /// No open takes it over from here on.
    fn drop(&mut self) {
        let mut locks = self.locks.0.lock();
        if locks.get(&self.identity).is_some_and(|lock| Arc::ptr_eq(lock, &self.lock)) {
            locks.remove(&self.identity);
        }
    }
}
