//! `cache-file`, `cache-size` and `prefetch-trace`: what was read of a remote file is kept on this machine.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_lock::Mutex as AsyncMutex;
use parking_lot::Mutex;
use qcow2::Budget;
use remote::cache::{BYTES_MAX_LEAST, CacheFile, CacheState, CachedStorage, Figures, Identity};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use storage::{FileOptions, FileStorage, Role, Storage, UnlockedFile, open_locked};

use super::store::wrong;
use graph::BackgroundTasks;
use graph::LoopClock;
use graph::drivers::{Hint, TraceFile};
use graph::{MadeFile, make_file};

/// How long a disk that is closed waits for caches.
const SETTLING_MAX: Duration = Duration::from_secs(2);

/// How often a name is looked at that others change at the same time.
const LOOKS_MAX: usize = 8;

/// What is kept of a remote file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caching {
    /// `cache-file`.
    pub(super) file: Option<PathBuf>,
    /// `cache-size`, in bytes; 0 is any number.
    pub(super) bytes_max: u64,
    /// `prefetch-trace`.
    pub(super) trace: Option<PathBuf>,
}

impl Default for Caching {
    fn default() -> Self {
        Self { file: None, bytes_max: 10 << 30, trace: None }
    }
}

/// One is opened at a time: two disks do not open one file.
static OPENING: AsyncMutex<()> = AsyncMutex::new(());

/// The caches that are open.
static OPEN: Mutex<Vec<CacheEntry>> = Mutex::new(Vec::new());

/// An open cache, with the device and inode number of its file.
struct CacheEntry {
    file: (u64, u64),
    path: PathBuf,
    cached: Weak<CachedStorage>,
    tasks: Arc<BackgroundTasks>,
    /// What earlier starts read; the first disk that starts takes it.
    trace: Option<TraceFile>,
    /// As [`Remote::piece_bytes`].
    piece_bytes: u64,
}

/// What is to be read ahead of `storage`, if that is a cached file whose trace has not been taken yet.
pub(crate) fn take_hint(storage: &Arc<dyn Storage>) -> Option<Hint> {
    let address = Arc::as_ptr(storage).cast::<()>();
    let mut open = OPEN.lock();
    let known = open.iter_mut().find(|known| known.cached.as_ptr().cast::<()>() == address)?;
    let (cached, trace) = (known.cached.upgrade()?, known.trace.take()?);
    let (bytes_max, piece_bytes) = (cached.bytes_max(), known.piece_bytes);
    Some(Hint { bytes_max, piece_bytes, file: Arc::new(cached.ahead()), trace })
}

/// Opens the trace that `caching` names, if it names one.
pub(super) fn open_trace(caching: &Caching) -> io::Result<Option<TraceFile>> {
    let Some(path) = &caching.trace else { return Ok(None) };
    if caching.file.is_none() {
        return Err(wrong("option file.prefetch-trace is for a cache; give cache-file with it"));
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let at = |errno: Errno| {
        let error = io::Error::from(errno);
        io::Error::new(error.kind(), format!("prefetch-trace {}: {error}", path.display()))
    };
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(at)?;
    let mode = rustix::fs::fstat(&fd).map_err(at)?.st_mode;
    if FileType::from_raw_mode(mode) != FileType::RegularFile {
        return Err(wrong(format!("prefetch-trace {}: it is no regular file", path.display())));
    }
    Ok(Some(TraceFile { path: path.clone(), file: fd.into() }))
}

/// A cache that disks of this process use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenCache {
    /// Its file.
    pub path: PathBuf,
    /// The cached file's name, without credentials.
    pub of: String,
    /// What it has done, and what it holds.
    pub figures: Figures,
}

/// All caches of this process.
pub fn caches() -> Vec<OpenCache> {
    let view = |known: &CacheEntry| {
        let cached = known.cached.upgrade()?;
        let of = cached.identity().name.clone();
        Some(OpenCache { path: known.path.clone(), of, figures: cached.figures() })
    };
    OPEN.lock().iter().filter_map(view).collect()
}

/// What became of a look at a name.
enum Look {
    /// A cache that another disk of this process has open.
    Shared(Arc<CachedStorage>),
    /// The cache, locked.
    Opened(CacheFile, (u64, u64)),
    /// Something that goes while one looks.
    Again,
}

/// Waits until all that caches have fetched is durable and the space of evicted data is freed, for
/// [`SETTLING_MAX`] at most: other disks may go on fetching, and servers may not answer. Data that is not
/// waited for is fetched again after a crash; space is leaked until the next start.
pub(crate) async fn settle_caches() {
    let both = |known: &CacheEntry| Some((known.cached.upgrade()?, Arc::clone(&known.tasks)));
    let open: Vec<_> = OPEN.lock().iter().filter_map(both).collect();
    if !open.is_empty() {
        reactor::within(SETTLING_MAX, settle(open)).await;
    }
}

async fn settle(open: Vec<(Arc<CachedStorage>, Arc<BackgroundTasks>)>) {
    for (cached, tasks) in open {
        cached.settle().await;
        // Evicted clusters are freed by another task.
        tasks.idle().await;
        cached.flush_image().await;
    }
}

/// What lies on a server.
pub(super) struct Remote {
    /// It, open.
    pub(super) storage: Arc<dyn Storage>,
    /// Its name on the server, without credentials.
    pub(super) name: String,
    /// What its server calls the version that is open, if no other version is called so.
    pub(super) version: Option<String>,
    /// What a read of it fetches at least; 1 where that is what was asked for.
    pub(super) piece_bytes: u64,
}

/// Puts the cache that `caching` names, if it names one, in front of `remote`. `trace` says what is read ahead; that of the first disk counts.
pub(super) async fn cached(
    remote: Remote,
    caching: &Caching,
    trace: Option<TraceFile>,
) -> io::Result<Arc<dyn Storage>> {
    let Remote { storage: remote, name, version, piece_bytes } = remote;
    let Some(path) = &caching.file else { return Ok(remote) };
    let bytes_max = caching.bytes_max;
    if bytes_max > 0 && bytes_max < BYTES_MAX_LEAST {
        let what = format!("option file.cache-size is {bytes_max}; allowed: 0, or from {BYTES_MAX_LEAST} on");
        return Err(wrong(what));
    }
    let Some(version) = version else {
        return Err(wrong(format!(
            "{} cannot be cached: its server gives neither a strong ETag nor Last-Modified, so that a change would not be seen; leave cache-file away",
            remote.name()
        )));
    };
    let identity = Identity { name, length: remote.length(), version };
    let _alone = OPENING.lock().await;
    OPEN.lock().retain(|known| known.cached.strong_count() > 0);
    for _ in 0..LOOKS_MAX {
        let (file, place) = match look(path, &identity, bytes_max).await? {
            Look::Shared(cached) => return Ok(cached),
            Look::Again => continue,
            Look::Opened(file, place) => (file, place),
        };
        let tasks = Arc::new(BackgroundTasks::new(Budget::unlimited()));
        let host = Arc::clone(&tasks);
        let cached = CachedStorage::open(remote, identity, file, host).await;
        let cached = Arc::new(cached.map_err(io::Error::other)?);
        let (path, weak) = (path.clone(), Arc::downgrade(&cached));
        OPEN.lock().push(CacheEntry { file: place, path, cached: weak, tasks, trace, piece_bytes });
        return Ok(cached);
    }
    Err(wrong(format!("option file.cache-file: {} changes all the time", path.display())))
}

/// Tries `path` once: opens a usable cache, removes an unusable one, and makes a new one if there is none.
async fn look(path: &Path, identity: &Identity, bytes_max: u64) -> io::Result<Look> {
    let at =
        |error: io::Error| io::Error::new(error.kind(), format!("cache-file {}: {error}", path.display()));
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let fd = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return make(path, identity, bytes_max).await.map_err(at),
        opened => opened.map_err(|errno| at(errno.into()))?,
    };
    let stat = rustix::fs::fstat(&fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(at(wrong("it is no regular file")));
    }
    let place = (stat.st_dev, stat.st_ino);
    let of_place = |known: &CacheEntry| if known.file == place { known.cached.upgrade() } else { None };
    let open = OPEN.lock().iter().find_map(of_place);
    if let Some(cached) = open {
        return match cached.identity() == identity {
            true => Ok(Look::Shared(cached)),
            false => {
                let other = &cached.identity().name;
                Err(at(wrong(format!(
                    "a disk uses it as the cache of {other}, or of another version; name another file"
                ))))
            }
        };
    }
    let unlocked = UnlockedFile::from_fd(fd, path.display().to_string(), &FileOptions::default())
        .map_err(io::Error::other)?;
    let locked = open_locked(&unlocked, Role::Writer, &LoopClock).await;
    let (storage, lock) = locked.map_err(|error| at(io::Error::other(error)))?;
    if place_of(path)? != Some(place) {
        return Ok(Look::Again);
    }
    match remote::cache::look(&storage, identity).await.map_err(io::Error::other)? {
        CacheState::Usable => Ok(Look::Opened(cache_file(storage, lock, bytes_max), place)),
        CacheState::Outdated(why) => {
            tracing::warn!("{}: {why}; the cache of {} begins anew", path.display(), identity.name);
            rustix::fs::unlink(path).map_err(|errno| at(errno.into()))?;
            Ok(Look::Again)
        }
    }
}

/// Makes an empty cache, which gets its name when it is whole: a crash leaves nothing.
async fn make(path: &Path, identity: &Identity, bytes_max: u64) -> io::Result<Look> {
    let empty =
        async |file: &FileStorage| remote::cache::create(file, identity).await.map_err(io::Error::other);
    Ok(match make_file(path, 0o600, empty).await? {
        None => Look::Again,
        Some(MadeFile { storage, lock, place }) => Look::Opened(cache_file(storage, lock, bytes_max), place),
    })
}

fn cache_file(storage: FileStorage, lock: storage::FileLock, bytes_max: u64) -> CacheFile {
    CacheFile { storage: Arc::new(storage), held: Box::new(lock), bytes_max }
}

/// Which file `path` leads to, if any.
fn place_of(path: &Path) -> io::Result<Option<(u64, u64)>> {
    match rustix::fs::stat(path) {
        Ok(stat) => Ok(Some((stat.st_dev, stat.st_ino))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
