//! Files of layers that several disks of the process read: each is open once, under one lock.
//!
//! A file is shared as long as it is only read. Another lock for it, while other disks read it, is refused as if those had opened it
//! themselves.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use storage::{FileLock, FileStorage, LockError, Role};

use crate::names::Identity;
use crate::node_files::Part;
use crate::options::{Aio, FileOptions, Locking};

/// The lock of a file. It is on the description by which the file was opened first, also when the file is opened once more to be used in
/// another way.
pub(crate) type FirstLock = Arc<Mutex<FileLock>>;

/// The files that may be shared.
#[derive(Clone, Debug, Default)]
pub struct SharedFiles(Arc<Mutex<HashMap<Key, Weak<Opened>>>>);

/// What must be the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    identity: Identity,
    name: String,
    direct: bool,
    no_flush: bool,
    threads: bool,
}

impl Key {
    /// Of a file that is opened for reading; `None` if it cannot be shared: its lock lets others write, or it has none.
    pub(crate) fn of(
        identity: Identity,
        name: &str,
        options: &FileOptions,
        force_share: bool,
    ) -> Option<Self> {
        let threads = options.aio == Some(Aio::Threads);
        let is_locked = options.locking != Locking::Off && !force_share;
        let FileOptions { direct, no_flush, .. } = *options;
        is_locked.then(|| Self { identity, name: name.to_owned(), direct, no_flush, threads })
    }
}

/// A file that is open for reading.
#[derive(Debug)]
struct Opened {
    storage: Arc<FileStorage>,
    lock: FirstLock,
}

/// One user's part in a file that may have others. The file stays open and locked as long as one of these is there.
#[derive(Debug)]
pub(crate) struct Share {
    files: SharedFiles,
    key: Key,
    opened: Arc<Opened>,
}

/// How an open file is locked.
#[derive(Clone, Debug)]
pub(crate) struct OpenLock {
    lock: FirstLock,
    share: Option<Arc<Share>>,
    part: Option<Arc<Part>>,
}

impl SharedFiles {
    /// The file, if it is open.
    pub(crate) fn find(&self, key: &Key) -> Option<(Arc<FileStorage>, OpenLock)> {
        let opened = self.0.lock().get(key)?.upgrade()?;
        Some(self.share(key.clone(), opened))
    }

    /// Lets others have the file, which was just opened and locked for reading.
    pub(crate) fn offer(
        &self,
        key: Key,
        storage: Arc<FileStorage>,
        lock: FileLock,
    ) -> (Arc<FileStorage>, OpenLock) {
        let opened = Arc::new(Opened { storage, lock: Arc::new(Mutex::new(lock)) });
        let mut files = self.0.lock();
        files.retain(|_, opened| opened.strong_count() > 0);
        files.insert(key.clone(), Arc::downgrade(&opened));
        drop(files);
        self.share(key, opened)
    }

    fn share(&self, key: Key, opened: Arc<Opened>) -> (Arc<FileStorage>, OpenLock) {
        let (storage, lock) = (Arc::clone(&opened.storage), Arc::clone(&opened.lock));
        let share = Share { files: self.clone(), key, opened };
        (storage, OpenLock { lock, share: Some(Arc::new(share)), part: None })
    }
}

impl OpenLock {
    /// Of a file that has one user.
    pub(crate) fn alone(lock: FileLock) -> Self {
        Self::of(Arc::new(Mutex::new(lock)))
    }

    /// As [`OpenLock::alone`], of one who has its lock already.
    pub(crate) fn of(lock: FirstLock) -> Self {
        Self { lock, share: None, part: None }
    }

    /// Of one of several disks over a node.
    pub(crate) fn of_node(part: Part) -> Self {
        let lock = Arc::clone(part.lock());
        Self { lock, share: None, part: Some(Arc::new(part)) }
    }

    /// The lock.
    pub(crate) fn lock(&self) -> &FirstLock {
        &self.lock
    }

    /// Changes what the lock is for.
    ///
    /// # Errors
    /// When another process, or another disk of this one, uses the file in a way that does not go together with that; then the lock is
    /// as it was.
    pub(crate) fn change(&self, role: Role) -> Result<(), LockError> {
        if let Some(part) = &self.part {
            return part.change(role);
        }
        let change = || self.lock.lock().change(role.wanted(), role.shared());
        let Some(share) = self.share.as_ref().filter(|_| role != Role::Reader) else { return change() };
        // No other disk comes to share it meanwhile.
        let mut files = share.files.0.lock();
        if Arc::strong_count(&share.opened) > 1 {
            // A lock by another description is refused because of theirs.
            return self.lock.lock().test_beside(role);
        }
        change()?;
        files.remove(&share.key);
        Ok(())
    }
}
