//! One file of a disk: found, opened and locked.

mod opening;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use storage::{Role as LockRole, Storage};

pub use self::opening::LoopClock;
use self::opening::{Locking, lock_role, open_locally};
use crate::drivers::{Access, StorageDriver, Target};
use crate::error::OpenError;
use crate::fd_sets::FdSets;
use crate::names::{Followed, Identity, Located, Place};
use crate::open_rules::OpenRules;
use crate::options::{FileOptions, LayerOptions, Wrapped};
use crate::shared_files::{OpenLock, SharedFiles};

/// A file of the chain, open and locked.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) origin: Origin,
    /// Names in the image start here.
    pub(crate) place: Place,
    pub(crate) driver: &'static StorageDriver,
}

/// Where an open file came from, and its lock: what it takes to open it once more, in another way. The file stays locked as long as one
/// of these is there.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    source: Source,
    lock: Option<OpenLock>,
}

/// Where a file is, before it is opened.
#[derive(Clone, Debug)]
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
            let below = Self::by_options(&over.below, fd_sets, writable)?;
            return Ok(below.map(|below| Self::Under(driver, over.clone(), Box::new(below))));
        }
        match (options.driver, &options.target, &options.filename) {
            (Some(driver), Some(target), _) => Ok(Some(Self::Elsewhere(driver, Arc::clone(target)))),
            (_, _, Some(path)) => {
                let source = by_user(path, fd_sets, writable)?;
                source.check_identity(options.must_be.as_ref())?;
                Ok(Some(source))
            }
            (_, _, None) => Ok(None),
        }
    }

    /// Refuses a file other than `must_be`: the name was given to another file since the chain was read.
    fn check_identity(&self, must_be: Option<&Identity>) -> Result<(), OpenError> {
        match must_be {
            Some(must_be) if *must_be != self.identity() => {
                let source = std::io::Error::other("another file took its place meanwhile; try again");
                Err(OpenError::Find { path: self.path(), source })
            }
            _ => Ok(()),
        }
    }

    /// Puts into `options` what leads to this file: the name it was found by, or its driver's own options. Names inside the image
    /// start at that name.
    fn name_in(&self, options: &mut FileOptions) {
        match self {
            Self::Path(located) => options.filename = Some(located.place().given().to_owned()),
            Self::Elsewhere(driver, target) => {
                (options.driver, options.target) = (Some(*driver), Some(Arc::clone(target)));
            }
            // Only options put storage over a file, so they name it.
            Self::Under(..) => {}
        }
    }

    /// What a name in an image leads to.
    pub(crate) fn followed(followed: Followed) -> Self {
        match followed {
            Followed::File(located) => Self::Path(located),
            Followed::Elsewhere(driver, target) => Self::Elsewhere(driver, target),
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

    /// Whether it is a file of this machine, whatever storage is over it.
    fn is_local(&self) -> bool {
        match self {
            Self::Path(_) => true,
            Self::Elsewhere(..) => false,
            Self::Under(_, _, image) => image.is_local(),
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
        self,
        name: &str,
        options: &FileOptions,
        layer: &LayerOptions,
        writable: bool,
    ) -> Result<OpenFile, OpenError> {
        self.open_under(Locking::Take, name, options, layer, writable).await
    }

    /// As [`Source::open`], of a disk; for writing under the lock that was taken ahead, if one was.
    pub(crate) async fn open_active(
        self,
        rules: &OpenRules,
        name: &str,
        options: &FileOptions,
        layer: &LayerOptions,
        writable: bool,
    ) -> Result<OpenFile, OpenError> {
        self.open_under(Locking::Active(rules), name, options, layer, writable).await
    }

    /// As [`Source::open`], for reading; shared with the other disks that read it.
    pub(crate) async fn open_shared(
        self,
        files: &SharedFiles,
        name: &str,
        options: &FileOptions,
        layer: &LayerOptions,
    ) -> Result<OpenFile, OpenError> {
        self.open_under(Locking::Share(files), name, options, layer, false).await
    }

    async fn open_under(
        self,
        locking: Locking<'_>,
        name: &str,
        options: &FileOptions,
        layer: &LayerOptions,
        writable: bool,
    ) -> Result<OpenFile, OpenError> {
        match self {
            Self::Path(located) => {
                let how = (name, options, layer, writable);
                let (storage, lock, driver) = open_locally(&located, locking, how).await?;
                let place = located.place().clone();
                let source = Self::Path(located.held_by(storage.fd()));
                Ok(OpenFile { storage, origin: Origin { source, lock }, place, driver })
            }
            Self::Elsewhere(driver, target) => {
                let access = Access { writable, direct: options.direct, no_flush: options.no_flush };
                let opened = target.open(access).await;
                let storage = opened.map_err(|source| OpenError::Find { path: name.into(), source })?;
                let place = Place::elsewhere(target.name());
                let origin = Origin { source: Self::Elsewhere(driver, target), lock: None };
                Ok(OpenFile { storage, origin, place, driver })
            }
            Self::Under(driver, over, image) => {
                // A file under itself has no end, so the future has no size.
                let image = image.open_under(locking, name, &over.below, layer, writable);
                let file = Box::pin(image).await?;
                let storage = over.by.wrap(file.storage);
                let storage = storage.map_err(|source| OpenError::Find { path: name.into(), source })?;
                let Origin { source, lock } = file.origin;
                let source = Self::Under(driver, over, Box::new(source));
                Ok(OpenFile { storage, origin: Origin { source, lock }, place: file.place, driver })
            }
        }
    }

    /// The same, to be opened once more: what a set of descriptors has for it depends on what the file is opened for.
    fn anew(&self, writable: bool) -> Result<Self, OpenError> {
        match self {
            Self::Path(located) => match located.opened() {
                Some((_, fd_sets)) => by_user(located.place().given(), fd_sets, writable),
                None => Ok(self.clone()),
            },
            Self::Elsewhere(..) => Ok(self.clone()),
            Self::Under(driver, over, image) => {
                Ok(Self::Under(driver, over.clone(), Box::new(image.anew(writable)?)))
            }
        }
    }
}

impl Origin {
    /// Opens the file once more while it is open, under the lock that it has. Messages call it `name`. The same file is opened, whatever
    /// its path leads to now.
    pub(crate) async fn open_again(
        &self,
        name: &str,
        options: &FileOptions,
        layer: &LayerOptions,
        writable: bool,
    ) -> Result<OpenFile, OpenError> {
        let source = self.source.anew(writable)?;
        source.open_under(Locking::Held(self.lock.as_ref()), name, options, layer, writable).await
    }

    /// Opens `source`, which is the same file under another driver or none, under the lock of this one.
    /// Messages call it `name`.
    pub(crate) async fn open_under(
        &self,
        source: Source,
        name: &str,
        options: &FileOptions,
        layer: &LayerOptions,
        writable: bool,
    ) -> Result<OpenFile, OpenError> {
        source.open_under(Locking::Held(self.lock.as_ref()), name, options, layer, writable).await
    }

    /// Whether `source` leads to the same file of this machine.
    pub(crate) fn is_same_file(&self, source: &Source) -> bool {
        source.is_local() && self.source.is_local() && source.identity() == self.source.identity()
    }

    /// Which storage it is.
    pub(crate) fn identity(&self) -> Identity {
        self.source.identity()
    }

    /// Whether it is a file of this machine, whatever storage is over it.
    pub(crate) fn is_local(&self) -> bool {
        self.source.is_local()
    }

    /// Options by which the file is found again: `options` as they are where they name it.
    pub(crate) fn options(&self, options: &FileOptions) -> FileOptions {
        let mut options = options.clone();
        if !options.is_named() {
            self.source.name_in(&mut options);
        }
        options.must_be = Some(self.identity());
        options
    }

    /// What leads to the file from everywhere: a full path, or what its driver calls it.
    pub(crate) fn full_name(&self) -> String {
        let path = self.source.path();
        match &self.source {
            Source::Path(_) => std::path::absolute(&path).unwrap_or(path).display().to_string(),
            Source::Elsewhere(..) | Source::Under(..) => path.display().to_string(),
        }
    }

    /// What messages call the file.
    pub(crate) fn name(&self) -> String {
        self.source.path().display().to_string()
    }

    /// Changes what the file's lock is for. Nothing else of the file changes, and there is no moment without a lock.
    ///
    /// # Errors
    /// When another process, or another disk of this one, uses the file in a way that does not go together with that; then the lock is
    /// as it was.
    pub(crate) fn lock_for(&self, layer: &LayerOptions, writable: bool) -> Result<(), OpenError> {
        self.lock_as(lock_role(layer, writable))
    }

    /// As [`Origin::lock_for`], for what `role` says.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn lock_as(&self, role: LockRole) -> Result<(), OpenError> {
        let Some(lock) = &self.lock else { return Ok(()) };
        lock.change(role).map_err(|source| OpenError::Lock { path: self.source.path(), source })
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
