//! Opening a file of this machine: what kind it is, its lock, and what of it other disks have open.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use storage::{FileStorage, LockClock, LockedOpenError, Role as LockRole, UnlockedFile, open_locked};

use crate::drivers::StorageDriver;
use crate::error::OpenError;
use crate::names::Located;
use crate::node_files::Use;
use crate::open_rules::OpenRules;
use crate::options::{self, Aio, FileOptions, LayerOptions};
use crate::shared_files::{FirstLock, Key, OpenLock, SharedFiles};

/// Which lock keeps other users away from a file that is opened.
#[derive(Clone, Copy, Debug)]
pub(super) enum Locking<'a> {
    /// The open itself: it takes the lock.
    Take,
    /// The same, for a disk; a lock that was taken ahead is taken over, and one of other disks over the same node shared.
    Active(&'a OpenRules),
    /// As the first; the file is only read, and the other disks that read it share it.
    Share(&'a SharedFiles),
    /// The lock is held, for what the file is opened for; `None` without locks.
    Held(Option<&'a OpenLock>),
}

/// Opens the file and looks at nothing but what kind of file it is. One that was locked `ahead` is open already.
fn open_file(
    located: &Located,
    ahead: Option<&FirstLock>,
    (name, options, _, writable): How<'_>,
) -> Result<(UnlockedFile, &'static StorageDriver), OpenError> {
    let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    let flags = access | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let opened = match (ahead, located.opened()) {
        (Some(ahead), _) => Ok(Arc::clone(ahead.lock().fd())),
        (None, Some((copy, _))) => copy.map(Arc::new),
        (None, None) => {
            rustix::fs::open(located.open_path(), flags, Mode::empty()).map(Arc::new).map_err(Into::into)
        }
    };
    let fd = opened.map_err(|source| OpenError::Find { path: PathBuf::from(name), source })?;
    let backend = match options.aio {
        Some(Aio::Threads) => reactor::Backend::Threads,
        Some(Aio::IoUring) | None => reactor::Backend::Ring,
    };
    let file = UnlockedFile::from_fd(
        fd,
        name,
        &storage::FileOptions {
            direct: options.direct,
            read_only: !writable,
            no_flush: options.no_flush,
            aio: backend,
        },
    )?;
    let driver = fitting(name, options, file.is_device())?;
    if let Some((_, fd_sets)) = located.opened() {
        fd_sets.note_use(file.fd());
    }
    Ok((file, driver))
}

/// The driver of a file, if it is of the kind that the options say.
fn fitting(name: &str, options: &FileOptions, is_device: bool) -> Result<&'static StorageDriver, OpenError> {
    StorageDriver::fitting(options.driver, is_device)
        .map_err(|source| OpenError::Options { path: PathBuf::from(name), source })
}

/// What a file is opened for: what messages call it, its options and its layer's, and whether it is written.
pub(super) type How<'a> = (&'a str, &'a FileOptions, &'a LayerOptions, bool);

/// A file's storage, its lock and its driver.
type Opened = (Arc<FileStorage>, Option<OpenLock>, &'static StorageDriver);

/// Opens the file, and makes storage of it under its lock, which is taken if it is not held; or shares one that is open.
pub(super) async fn open_locally(
    located: &Located,
    locking: Locking<'_>,
    (name, options, layer, writable): How<'_>,
) -> Result<Opened, OpenError> {
    // The last holder of the lock may have put another file in its place.
    let check_still_named = || {
        let checked = located.check_still_named();
        checked.map_err(|source| OpenError::Find { path: PathBuf::from(name), source })
    };
    let place = match locking {
        Locking::Share(files) if located.opened().is_none() => {
            Key::of(located.identity(), name, options, layer.force_share).map(|key| (files, key))
        }
        _ => None,
    };
    if let Some((storage, held)) = place.as_ref().and_then(|(files, key)| files.find(key)) {
        check_still_named()?;
        let driver = fitting(name, options, storage.is_device())?;
        return Ok((storage, Some(held), driver));
    }
    let is_locked = writable && options.locking != options::Locking::Off;
    let ahead = match locking {
        Locking::Active(rules) if is_locked => rules.locks_ahead.take_over(&located.identity()),
        _ => None,
    };
    let (file, driver) = open_file(located, ahead.as_ref(), (name, options, layer, writable))?;
    if let Some(lock) = ahead {
        let storage = Arc::new(file.measured(Some(&lock.lock()))?);
        return Ok((storage, Some(OpenLock::of(lock)), driver));
    }
    if let Locking::Held(held) = locking {
        let lock = held.map(|held| held.lock().lock());
        return Ok((Arc::new(file.measured(lock.as_deref())?), held.cloned(), driver));
    }
    if options.locking == options::Locking::Off {
        return Ok((Arc::new(file.measured(None)?), None, driver));
    }
    let role = lock_role(layer, writable);
    let locked = |source| OpenError::Lock { path: PathBuf::from(name), source };
    let node = match locking {
        Locking::Active(rules) => Use::of(options, layer, role).map(|of| (&rules.node_files, of)),
        _ => None,
    };
    let common = node.and_then(|(files, (node, user))| Some((files.find(node)?, user)));
    if let Some((common, user)) = common.filter(|(common, _)| common.lock().lock().is_on(file.fd())) {
        // The others may change the length.
        let storage = Arc::new(file.measured(None)?);
        let part = common.join(user).map_err(locked)?;
        return Ok((storage, Some(OpenLock::of_node(part)), driver));
    }
    let opened = open_locked(&file, role, &LoopClock).await;
    let (storage, lock) = opened.map_err(|error| match error {
        LockedOpenError::Lock(source) => locked(source),
        LockedOpenError::Open(source) => source.into(),
    })?;
    check_still_named()?;
    let storage = Arc::new(storage);
    let (storage, held) = match (place, node) {
        (Some((files, key)), _) => files.offer(key, storage, lock),
        (None, Some((files, (node, user)))) => (storage, OpenLock::of_node(files.begin(node, lock, user))),
        (None, None) => (storage, OpenLock::alone(lock)),
    };
    Ok((storage, Some(held), driver))
}

/// The time of the loop that opens.
#[derive(Clone, Copy, Debug)]
pub struct LoopClock;

impl LockClock for LoopClock {
    fn now(&self) -> Duration {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> {
        reactor::sleep(duration)
    }
}

pub(super) fn lock_role(layer: &LayerOptions, writable: bool) -> LockRole {
    match (writable, layer.force_share) {
        (true, _) => LockRole::Writer,
        (false, true) => LockRole::ForceShare,
        (false, false) => LockRole::Reader,
    }
}
