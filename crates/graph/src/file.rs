//! One file of a disk: found, opened and locked.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use storage::{FileLock, LockClock, LockedOpenError, Role as LockRole, Storage, UnlockedFile, open_locked};

use crate::drivers::{Access, StorageDriver, Target, Wrapped, of_file};
use crate::error::OpenError;
use crate::fd_sets::FdSets;
use crate::names::{Identity, Located, Place};
use crate::options::{Aio, FileOptions, LayerOptions};

/// A file of the chain, open and locked.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) lock: Option<FileLock>,
    /// Names in the image start here.
    pub(crate) place: Place,
    pub(crate) driver: &'static StorageDriver,
}

/// Where a file is, before it is opened.
#[derive(Debug)]
pub(crate) enum Source {
    /// At a path on this machine.
    Path(Located),
    /// Where its driver finds it.
    Elsewhere(&'static StorageDriver, Arc<dyn Target>),
    /// Under storage that its driver makes of it.
    Under(&'static StorageDriver, Wrapped, Box<Source>),
}

impl Source {
    /// What `options` name themselves, if they do.
    pub(crate) fn by_options(
        options: &FileOptions,
        fd_sets: &FdSets,
        writable: bool,
    ) -> Result<Option<Self>, OpenError> {
        if let (Some(driver), Some(over)) = (options.driver, &options.over) {
            let image = Self::by_options(&over.image, fd_sets, writable)?;
            return Ok(image.map(|image| Self::Under(driver, over.clone(), Box::new(image))));
        }
        match (options.driver, &options.target, &options.filename) {
            (Some(driver), Some(target), _) => Ok(Some(Self::Elsewhere(driver, Arc::clone(target)))),
            (_, _, Some(path)) => by_user(path, fd_sets, writable).map(Some),
            (_, _, None) => Ok(None),
        }
    }

    /// Which storage it is, under whatever name.
    pub(crate) fn identity(&self) -> Identity {
        match self {
            Self::Path(located) => located.identity(),
            Self::Elsewhere(_, target) => Identity::elsewhere(target.name()),
            Self::Under(_, _, image) => image.identity(),
        }
    }

    /// Where it is, for messages.
    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Self::Path(located) => located.path().to_owned(),
            Self::Elsewhere(_, target) => PathBuf::from(target.name()),
            Self::Under(_, _, image) => image.path(),
        }
    }

    /// Opens it, and locks it if it is a file of this machine. Messages call it `name`.
    pub(crate) async fn open(
        &self,
        name: &str,
        options: &FileOptions,
        layer: &LayerOptions,
        writable: bool,
    ) -> Result<OpenFile, OpenError> {
        match self {
            Self::Path(located) => open_file(located, name, options, layer, writable).await,
            Self::Elsewhere(driver, target) => {
                let access = Access { writable, direct: options.direct, no_flush: options.no_flush };
                let opened = target.open(access).await;
                let storage = opened.map_err(|source| OpenError::Find { path: name.into(), source })?;
                Ok(OpenFile { storage, lock: None, place: Place::elsewhere(target.name()), driver })
            }
            Self::Under(driver, over, image) => {
                // A file under itself has no end, so the future has no size.
                let file = Box::pin(image.open(name, &over.image, layer, writable)).await?;
                let storage = over.by.wrap(file.storage);
                let storage = storage.map_err(|source| OpenError::Find { path: name.into(), source })?;
                Ok(OpenFile { storage, driver, ..file })
            }
        }
    }
}

/// A file that the user named, or one of a set of descriptors that is opened as it will be used.
pub(crate) fn by_user(path: &Path, fd_sets: &FdSets, writable: bool) -> Result<Source, OpenError> {
    let located = match FdSets::number(path) {
        None => Located::by_user(path),
        Some(set) => set
            .and_then(|set| fd_sets.open(set, writable))
            .map_err(std::io::Error::other)
            .and_then(|fd| Located::descriptor(path, fd, fd_sets)),
    };
    located.map(Source::Path).map_err(|source| OpenError::Find { path: path.to_owned(), source })
}

async fn open_file(
    located: &Located,
    name: &str,
    options: &FileOptions,
    layer: &LayerOptions,
    writable: bool,
) -> Result<OpenFile, OpenError> {
    let place = located.place().clone();
    let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    let flags = access | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let opened = match located.opened() {
        Some((copy, _)) => copy,
        None => rustix::fs::open(located.open_path(), flags, Mode::empty()).map_err(Into::into),
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
    let is_block_device = file.is_block_device();
    let driver = of_file(is_block_device);
    StorageDriver::check(options.driver, is_block_device)
        .map_err(|source| OpenError::Options { path: PathBuf::from(name), source })?;
    if let Some((_, fd_sets)) = located.opened() {
        fd_sets.note_use(file.fd());
    }
    if !options.locking {
        let storage = Arc::new(file.measured(None)?);
        return Ok(OpenFile { storage, lock: None, place, driver });
    }
    let opened = open_locked(&file, lock_role(layer, writable), &LoopClock).await;
    let (storage, lock) = opened.map_err(|error| match error {
        LockedOpenError::Lock(source) => OpenError::Lock { path: PathBuf::from(name), source },
        LockedOpenError::Open(source) => source.into(),
    })?;
    // The last holder of the lock may have put another file in its place.
    located.check_still_named().map_err(|source| OpenError::Find { path: PathBuf::from(name), source })?;
    Ok(OpenFile { storage: Arc::new(storage), lock: Some(lock), place, driver })
}

/// The time of the loop that opens.
struct LoopClock;

impl LockClock for LoopClock {
    fn now(&self) -> Duration {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> {
        reactor::sleep(duration)
    }
}

fn lock_role(layer: &LayerOptions, writable: bool) -> LockRole {
    match (writable, layer.force_share) {
        (true, _) => LockRole::Writer,
        (false, true) => LockRole::ForceShare,
        (false, false) => LockRole::Reader,
    }
}
