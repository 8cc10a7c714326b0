//! From options to an open disk: files, locks, formats, the chain.
//!
//! The chain is walked down in a loop, each name followed only where the policy lets it, and opened
//! from the bottom up: a chain of any length costs no stack, and one that is too long or comes back
//! to itself is refused before any of its data is touched.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use qcow2::{Budget, Files, Layer, Options, Qcow2, Raw};
use qcow2_layout::{Header, Incompatible};
use rustix::fs::{Mode, OFlags};
use storage::{FileLock, FileStorage, IoBuf, LockError, Role as LockRole, Storage};

use crate::disk::Disk;
use crate::error::OpenError;
use crate::front::Groups;
use crate::house::House;
use crate::map_memory::default_map_memory;
use crate::names::{Located, Place, Policy, Role};
use crate::options::{Aio, Discard, DiskOptions, FileOptions, LayerOptions};
use crate::probe::{Access, Format, PROBE_BYTES, decide, probe};
use crate::trace::Recorder;

/// Images in a chain at most, unless said otherwise.
pub const CHAIN_MAX_DEFAULT: usize = 1000;

/// How long a lock is waited for that no living process is seen to hold.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// Time between two looks at it.
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// What holds for all images of a process.
#[derive(Clone, Debug)]
pub struct OpenRules {
    /// Where names inside images may lead.
    pub policy: Policy,
    /// Images in a chain at most.
    pub chain_max: usize,
    /// Where throttle groups are found by name; unless said otherwise the process's.
    pub groups: Groups,
    /// Memory that the map and refcount caches of all images share.
    pub map_budget: Arc<Budget>,
    /// Where requests of all disks are recorded, if they are.
    pub trace: Option<Arc<Recorder>>,
}

impl Default for OpenRules {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            chain_max: CHAIN_MAX_DEFAULT,
            groups: Groups::default(),
            map_budget: Budget::new(default_map_memory()),
            trace: None,
        }
    }
}

/// A file of the chain, open and locked.
#[derive(Debug)]
struct OpenFile {
    storage: Arc<dyn Storage>,
    lock: Option<FileLock>,
    /// Names in the image start here.
    place: Place,
}

/// One image of the chain, looked at but not opened by the engine yet.
#[derive(Debug)]
struct Found {
    file: OpenFile,
    data: Option<OpenFile>,
    options: LayerOptions,
    /// `None` for raw.
    header: Option<Header>,
}

/// Opens a disk with its whole chain. Runs on a loop ([`reactor::Reactor::run`]).
///
/// Costs one or two descriptors an image, and reads headers and tables only.
pub async fn open(options: &DiskOptions, rules: &OpenRules) -> Result<Disk, OpenError> {
    let mut chain = find_chain(options, rules).await?;
    let mut locks = Vec::new();
    let house = House::new(Arc::clone(&rules.map_budget));
    let mut layer: Option<Layer> = None;
    while let Some(found) = chain.pop() {
        let Found { file, data, options, header } = found;
        locks.extend(file.lock);
        let (data, data_lock) = data.map_or((None, None), |data| (Some(data.storage), data.lock));
        locks.extend(data_lock);
        layer = Some(match header {
            None => Layer::Raw(Raw::new(file.storage)),
            Some(header) => {
                let active = chain.is_empty();
                let files = Files { file: file.storage, data, backing: layer.take() };
                Layer::Qcow2(open_qcow2(files, &header, &options, active, &house).await?)
            }
        });
    }
    match layer {
        Some(layer) => {
            let bitmaps = match &layer {
                Layer::Qcow2(image) => image.bitmaps().await?,
                Layer::Raw(_) => Vec::new(),
            };
            Ok(Disk::new(layer, bitmaps, options, rules, locks, house))
        }
        None => Err(OpenError::ChainTooLong { max: rules.chain_max }),
    }
}

/// An image file by itself: for tools that look at metadata without opening the disk.
#[derive(Debug)]
pub struct BareImage {
    /// The file.
    pub file: Arc<dyn Storage>,
    /// What it holds.
    pub format: Format,
    /// Held while it is looked at.
    _lock: Option<FileLock>,
}

/// Opens and locks the active layer's file and nothing else, for writing unless `read-only` is set.
pub async fn open_bare(options: &DiskOptions) -> Result<BareImage, OpenError> {
    let layer = &options.layer;
    let writable = !layer.read_only;
    let located = by_user(&options.filename)?;
    let name = options.filename.display().to_string();
    let file = open_file(&located, &name, &layer.file, layer, writable).await?;
    let format = format_of(&file, layer, writable).await?;
    Ok(BareImage { file: file.storage, format, _lock: file.lock })
}

async fn open_qcow2(
    files: Files,
    header: &Header,
    options: &LayerOptions,
    active: bool,
    house: &House,
) -> Result<Qcow2, OpenError> {
    let engine = engine_options(options, active);
    if engine.writable && qcow2::is_dirty(header) {
        repair(&*files.file).await?;
    }
    Ok(Qcow2::open(files, engine, Arc::new(house.clone())).await?)
}

/// An image whose writer died has wrong refcounts (lazy refcounts): they are rebuilt before the
/// first write.
async fn repair(file: &dyn Storage) -> Result<(), OpenError> {
    let path = PathBuf::from(file.name());
    tracing::warn!("{}: the image was not closed; repairing it", path.display());
    match qcow2::check(file, qcow2::Repair::All, &mut |_| ()).await {
        Ok(report) if report.is_clean() => Ok(()),
        Ok(report) => {
            let reason = format!("{} corruptions and {} leaks remain", report.corruptions, report.leaks);
            Err(OpenError::Repair { path, reason })
        }
        Err(error) => Err(OpenError::Repair { path, reason: error.to_string() }),
    }
}

fn engine_options(layer: &LayerOptions, active: bool) -> Options {
    let qcow2 = &layer.qcow2;
    Options {
        writable: active && !layer.read_only,
        ignore_corrupt: false,
        cache: qcow2.caches,
        prefetch: qcow2.prefetch,
        lazy_refcounts: qcow2.lazy_refcounts,
        overlap_check: qcow2.overlap_check,
        discard: layer.discard == Discard::Unmap,
        pass_discard_request: qcow2.pass_discard_request,
        pass_discard_snapshot: qcow2.pass_discard_snapshot,
        pass_discard_other: qcow2.pass_discard_other,
        discard_no_unref: qcow2.discard_no_unref,
        allocation_reserve: qcow2.allocation_reserve,
    }
}

/// All images of the chain, the active one first.
async fn find_chain(options: &DiskOptions, rules: &OpenRules) -> Result<Vec<Found>, OpenError> {
    let mut met = HashSet::new();
    let mut chain: Vec<Found> = Vec::new();
    let mut next = Some((by_user(&options.filename)?, options.layer.clone()));
    while let Some((located, layer)) = next.take() {
        if !met.insert(located.identity()) {
            return Err(OpenError::Cycle { path: located.path().to_owned() });
        }
        if chain.len() == rules.chain_max {
            return Err(OpenError::ChainTooLong { max: rules.chain_max });
        }
        let found = look_at(located, layer, &options.filename, chain.is_empty(), rules).await?;
        if let Some(header) = &found.header {
            next = below(&found, header, rules)?;
        }
        chain.push(found);
    }
    Ok(chain)
}

/// The image below `found`, if there is one.
fn below(
    found: &Found,
    header: &Header,
    rules: &OpenRules,
) -> Result<Option<(Located, LayerOptions)>, OpenError> {
    let Some(mut layer) = found.options.below() else { return Ok(None) };
    let located = match (&layer.file.filename, &header.backing) {
        (Some(by_option), _) => by_user(by_option)?,
        (None, Some(name)) => rules.policy.resolve(&found.file.place, name.as_bytes(), Role::Backing)?,
        (None, None) => return Ok(None),
    };
    if layer.format.is_none() {
        layer.format = header.extensions.backing_format.as_deref().and_then(Format::of_name);
    }
    Ok(Some((located, layer)))
}

async fn look_at(
    located: Located,
    options: LayerOptions,
    given: &Path,
    active: bool,
    rules: &OpenRules,
) -> Result<Found, OpenError> {
    let writable = active && !options.read_only;
    let path = located.path().to_owned();
    let name = if active { given.display().to_string() } else { path.display().to_string() };
    let file = open_file(&located, &name, &options.file, &options, writable).await?;
    let format = format_of(&file, &options, writable).await?;
    options.check_format(format).map_err(|source| OpenError::Options { path: path.clone(), source })?;
    let header = match format {
        Format::Raw => None,
        Format::Qcow2 => Some(qcow2::read_header(&*file.storage).await?),
    };
    let data = match &header {
        Some(header) if header.incompatible.contains(Incompatible::EXTERNAL_DATA) => {
            Some(open_data_file(&file, header, &options, writable, rules).await?)
        }
        _ => None,
    };
    Ok(Found { file, data, options, header })
}

async fn format_of(file: &OpenFile, options: &LayerOptions, writable: bool) -> Result<Format, OpenError> {
    let len = PROBE_BYTES.min(usize::try_from(file.storage.length()).unwrap_or(PROBE_BYTES));
    let (result, start) = file.storage.read(0, IoBuf::uninit(len)).await;
    result.map_err(|source| OpenError::Find { path: file.place.real().to_owned(), source })?;
    let access = if writable { Access::Write } else { Access::Read };
    decide(options.format, probe(&start), access)
        .map_err(|source| OpenError::Format { path: file.place.real().to_owned(), source })
}

async fn open_data_file(
    image: &OpenFile,
    header: &Header,
    options: &LayerOptions,
    writable: bool,
    rules: &OpenRules,
) -> Result<OpenFile, OpenError> {
    let located = match (&options.data_file.filename, &header.extensions.data_file) {
        (Some(by_option), _) => by_user(by_option)?,
        (None, Some(name)) => rules.policy.resolve(&image.place, name.as_bytes(), Role::Data)?,
        (None, None) => {
            let error = std::io::Error::new(
                std::io::ErrorKind::NotFound,
                "the image keeps its data in another file but does not name it; give data-file.filename=PATH",
            );
            return Err(OpenError::Find { path: image.place.real().to_owned(), source: error });
        }
    };
    if located.path() == image.place.real() {
        return Err(OpenError::Cycle { path: image.place.real().to_owned() });
    }
    let name = located.path().display().to_string();
    open_file(&located, &name, &options.data_file, options, writable).await
}

fn by_user(path: &Path) -> Result<Located, OpenError> {
    Located::by_user(path).map_err(|source| OpenError::Find { path: path.to_owned(), source })
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
    let fd = rustix::fs::open(located.open_path(), flags, Mode::empty())
        .map_err(|errno| OpenError::Find { path: PathBuf::from(name), source: errno.into() })?;
    let backend = match options.aio {
        Some(Aio::Threads) => reactor::Backend::Threads,
        Some(Aio::IoUring) | None => reactor::Backend::Ring,
    };
    let storage = FileStorage::from_fd(
        fd,
        name,
        &storage::FileOptions {
            direct: options.direct,
            read_only: !writable,
            no_flush: options.no_flush,
            aio: backend,
        },
    )?;
    let lock = match options.locking {
        false => None,
        true => Some(
            lock(&storage, lock_role(layer, writable))
                .await
                .map_err(|source| OpenError::Lock { path: PathBuf::from(name), source })?,
        ),
    };
    Ok(OpenFile { storage: Arc::new(storage), lock, place })
}

/// Takes the lock. A process that was killed may hold it for a moment after it is gone: the kernel
/// first ends what it had in flight. Nobody is then found to hold it, and it is worth waiting.
async fn lock(storage: &FileStorage, role: LockRole) -> Result<FileLock, LockError> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match FileLock::acquire_role(storage.fd(), role) {
            Err(LockError::Busy { holders, .. }) if holders.is_empty() && Instant::now() < deadline => {
                reactor::sleep(LOCK_RETRY).await;
            }
            result => return result,
        }
    }
}

fn lock_role(layer: &LayerOptions, writable: bool) -> LockRole {
    match (writable, layer.force_share) {
        (true, _) => LockRole::Writer,
        (false, true) => LockRole::ForceShare,
        (false, false) => LockRole::Reader,
    }
}
