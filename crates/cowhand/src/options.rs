//! How a disk is opened.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use graph::OpenRules;
use graph::drive::{Entry, OptionTree, parse_drive};
use graph::names::Policy;
use graph::options::{Aio, DiskOptions};
use graph::probe::Format;
use qcow2::Budget;
use reactor::Backend;

use crate::disk::Disk;
use crate::error::{Error, ErrorKind};
use crate::in_flight::{HOME, Shared};
use crate::loops::Loops;
use crate::pending::Pending;
use crate::request::Job;

/// How a disk is opened: QEMU's options under QEMU's names. `cowhand serve --drive-options` and docs/reference/options.md list all of
/// them; the usual ones have a method. Each may be given once: an option given twice, like every other mistake, is said when the
/// disk is opened.
#[derive(Debug)]
pub struct OpenOptions {
    /// The first mistake, if there was one.
    tree: Result<OptionTree, Error>,
    allowed: Vec<PathBuf>,
    allowed_names: Vec<String>,
    loops: Option<Loops>,
}

/// A cache mode: what a completed write and a flush mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Through the host's page cache; durable when flushed.
    Writeback,
    /// Through the host's page cache; a write is durable when it completes.
    Writethrough,
    /// Around the host's page cache (O_DIRECT); durable when flushed.
    None,
    /// Around the host's page cache; a write is durable when it completes.
    Directsync,
    /// Through the host's page cache, and flushes do nothing: what was flushed may be lost with the machine.
    Unsafe,
}

impl Cache {
    /// QEMU's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Writeback => "writeback",
            Self::Writethrough => "writethrough",
            Self::None => "none",
            Self::Directsync => "directsync",
            Self::Unsafe => "unsafe",
        }
    }
}

impl OpenOptions {
    /// The image at `path`. What begins as a driver's name (`nbd://HOST/EXPORT`) is that: put `./` before a path that does, or use an absolute one.
    pub fn new(path: impl AsRef<Path>) -> Self {
        catalog::install();
        Self::of(Ok(OptionTree::of_path(path.as_ref())))
    }

    /// A drive as `cowhand serve` takes it: a path, `file=disk.qcow2,cache=none,...`, or `json:{...}`.
    pub fn drive(drive: impl AsRef<OsStr>) -> Self {
        catalog::install();
        let exists = |path: &Path| path.symlink_metadata().is_ok();
        Self::of(parse_drive(drive.as_ref(), exists).map_err(Error::from))
    }

    fn of(tree: Result<OptionTree, Error>) -> Self {
        Self { tree, allowed: Vec::new(), allowed_names: Vec::new(), loops: None }
    }

    /// Sets any option by its name, nested ones with dots (`backing.l2-cache-size`).
    pub fn set(mut self, name: &str, value: impl Into<OsString>) -> Self {
        if let Ok(tree) = &mut self.tree
            && let Err(error) = tree.insert(name, Entry::Value(value.into()))
        {
            self.tree = Err(error.into());
        }
        self
    }

    /// `driver`: the image's format. Without it the content decides, except that nothing is taken for raw and written.
    pub fn format(self, format: Format) -> Self {
        self.set("driver", format.name())
    }

    /// `read-only`.
    pub fn read_only(self, read_only: bool) -> Self {
        self.set("read-only", if read_only { "on" } else { "off" })
    }

    /// `cache`.
    pub fn cache(self, cache: Cache) -> Self {
        self.set("cache", cache.name())
    }

    /// `aio`: how requests reach the kernel; without it by the best way that the kernel permits.
    pub fn aio(self, aio: Aio) -> Self {
        self.set("aio", if aio == Aio::Threads { "threads" } else { "io_uring" })
    }

    /// `discard`: whether a discard, and zeroes that may unmap, give space back to the file system.
    pub fn discard(self, discard: bool) -> Self {
        self.set("discard", if discard { "unmap" } else { "ignore" })
    }

    /// A limit by its name, as in [`Disk::set_limits`].
    pub fn limit(self, name: &str, value: u64) -> Self {
        self.set(&format!("throttling.{name}"), value.to_string())
    }

    /// Follows names in the images also where they lead to regular files under `directory`. Without it they are followed only
    /// inside an image's own directory: the author of an image chose its names.
    pub fn allow_path(mut self, directory: impl Into<PathBuf>) -> Self {
        self.allowed.push(directory.into());
        self
    }

    /// Follows names in the images also where they lead to this NBD server (`nbd://HOST[:PORT]`), to this export of one
    /// (`nbd://HOST/EXPORT`), or to this image in a store (`chunked:s3://BUCKET/FOLDER/NAME@ID`). Without it they lead to files only.
    pub fn allow_name(mut self, name: impl Into<String>) -> Self {
        self.allowed_names.push(name.into());
        self
    }

    /// Has `loops` carry out the disk's requests, rather than a thread of its own.
    pub fn loops(mut self, loops: &Loops) -> Self {
        self.loops = Some(loops.clone());
        self
    }

    /// Opens the disk, with the whole chain, under QEMU's file locks. An image whose lock a process holds that cannot be seen is
    /// waited for, up to two seconds.
    ///
    /// This starts a thread, unless there are [`OpenOptions::loops`].
    pub fn open(self) -> Pending<Disk> {
        #[cfg(feature = "jobs")]
        let tree = self.tree.as_ref().ok().cloned().unwrap_or_default();
        let prepared = self.prepare();
        let (options, rules, loops) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return Pending::ended(Err(error)),
        };
        #[cfg(feature = "jobs")]
        let site = crate::jobs::Site::new(options.filename.clone(), tree, rules.clone());
        let (reply, pending) = Pending::new();
        let on = loops.clone();
        let start = move || {
            let task = async move {
                let opened = open_here(&options, &rules).await;
                reply.send(opened.map(|disk| {
                    let name = options.filename.display().to_string();
                    let shared = Shared::new(name, on, disk);
                    #[cfg(feature = "jobs")]
                    let shared = shared.with_site(site);
                    Disk::new(shared)
                }));
            };
            reactor::spawn(task).detach();
        };
        loops.send(HOME, Job::Work(Box::new(start)));
        pending
    }

    fn prepare(self) -> Result<(DiskOptions, OpenRules, Loops), Error> {
        let options = DiskOptions::of_tree(self.tree?)?;
        let policy = Policy::new(&self.allowed)
            .map_err(|error| Error::of_system("cannot allow a directory", error))?
            .allowing(&self.allowed_names)
            .map_err(|error| Error::said(ErrorKind::Invalid, format!("cannot allow a name: {error}")))?;
        let rules = OpenRules { policy, ..OpenRules::within(Arc::clone(map_budget())) };
        let backend = match options.layer.file.aio {
            Some(Aio::Threads) => Backend::Threads,
            Some(Aio::IoUring) | None => Backend::Ring,
        };
        let loops = self.loops.map_or_else(|| Loops::over(1, backend), Ok)?;
        Ok((options, rules, loops))
    }
}

async fn open_here(options: &DiskOptions, rules: &OpenRules) -> Result<Arc<graph::Disk>, Error> {
    let disk = Arc::new(graph::open(options, rules).await?);
    disk.expect_guest();
    disk.start_upkeep();
    Ok(disk)
}

#[cfg(feature = "jobs")]
impl OpenOptions {
    /// For a job, which opens it by the rules of its own disk.
    pub(crate) fn for_job(self) -> Result<crate::jobs::Target, Error> {
        if self.loops.is_some() || !self.allowed.is_empty() || !self.allowed_names.is_empty() {
            let text = "a job opens its target on the loop and by the rules of its disk: give these there";
            return Err(Error::said(ErrorKind::Invalid, text));
        }
        let tree = self.tree?;
        Ok(crate::jobs::Target { options: DiskOptions::of_tree(tree.clone())?, tree })
    }
}

/// What the maps of all disks of the process take together.
fn map_budget() -> &'static Arc<Budget> {
    static PROCESS: OnceLock<Arc<Budget>> = OnceLock::new();
    PROCESS.get_or_init(|| Budget::new(graph::default_map_memory()))
}

/// Memory that the maps of all open disks of the process share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapMemory {
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes that may be used: by default a 64th of the machine's memory, or of the control group's if that is less.
    pub bytes_max: u64,
}

/// What the maps of all open disks take.
pub fn map_memory() -> MapMemory {
    MapMemory { used_bytes: map_budget().used_bytes(), bytes_max: map_budget().bytes_max() }
}

/// Changes what they may take, at least 1 MiB; what is too much leaves before this returns, unless it has to be written first.
pub fn set_map_memory_max(bytes: u64) {
    map_budget().set_bytes_max(bytes.max(graph::MAP_MEMORY_MIN));
}
