//! `file.*`, `data-file.*`: how the file below an image is opened.

use std::any::Any;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::{fmt, io};

use storage::{IoFuture, Storage};

use super::DiskOptions;
use super::entry::{Entry, at, choice_at, in_group, read_all};
use super::error::OptionError;
use super::reader::Reader;
use super::spec::{Group, Kind};
use crate::cache_mode::CacheMode;
use crate::drivers::{
    Access, Elsewhere, StorageDriver, StorageKind, THROTTLE_NAME, Target, Wrap, filter, format_called,
    storage_drivers, storage_of,
};
use crate::names::Identity;

/// How the file below an image is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// `driver`; `None`: by the name's prefix, or by the kind of file.
    pub driver: Option<&'static StorageDriver>,
    /// `node-name`.
    pub node_name: Option<String>,
    /// `filename`: instead of the name that the image (or its overlay) gives.
    pub filename: Option<PathBuf>,
    /// What the driver's own options name, if it is no path.
    pub(crate) target: Option<Arc<dyn Target>>,
    /// What the driver puts it over, if that is another file.
    pub(crate) over: Option<Wrapped>,
    /// `aio`; `None`: the best that the kernel permits.
    pub aio: Option<Aio>,
    /// `cache.direct`: O_DIRECT.
    pub direct: bool,
    /// `cache.no-flush`.
    pub no_flush: bool,
    /// `locking`.
    pub locking: Locking,
    /// `aio-max-batch`, which has no effect.
    pub(crate) aio_max_batch: u64,
    /// `drop-cache`, which has no effect.
    pub(crate) drop_cache: bool,
    /// `x-check-cache-dropped`, which has no effect.
    pub(crate) check_cache_dropped: bool,
    /// The file that the name must lead to, where it was found before.
    pub(crate) must_be: Option<Identity>,
}

/// A file under storage that says what is different.
#[derive(Clone, Debug)]
pub struct Wrapped {
    /// What is different.
    pub by: Arc<dyn Wrap>,
    /// The option that is the file below.
    pub child: &'static str,
    /// The file below.
    pub below: Box<FileOptions>,
}

impl PartialEq for Wrapped {
    fn eq(&self, other: &Self) -> bool {
        self.by.first_difference(&*other.by).is_none() && self.below == other.below
    }
}

impl Eq for Wrapped {}

/// The option of a file that names a node.
pub(crate) const NODE_OPTION: &str = "node";

/// What the names of such files begin with.
pub(crate) const NODE_PREFIX: &str = "node:";

pub(crate) const NODE: StorageDriver = StorageDriver {
    name: NODE_OPTION,
    prefixes: &[],
    kind: StorageKind::Elsewhere(Elsewhere {
        specs: Vec::new,
        options_of: |_| Err("no name of a file".to_owned()),
        shown: str::to_owned,
        read: |_| Ok(Arc::new(NodeTarget::new(String::new()))),
        is_within_process: false,
    }),
};

/// Opens a disk as the file of an image: what the graph, or who opens a drive, puts where an option names or describes one.
pub(crate) trait OpenDisk: Any + fmt::Debug + Send + Sync {
    /// The disk's bytes, under `name`.
    fn open(&self, name: String, access: Access) -> IoFuture<'_, io::Result<Arc<dyn Storage>>>;
}

/// A disk in the place of a file: a node by its name, or a description.
#[derive(Debug)]
pub(crate) struct NodeTarget {
    disk: DiskInFile,
    /// What opens it, once that is known.
    opener: OnceLock<Arc<dyn OpenDisk>>,
}

/// Which disk is in the place of a file.
#[derive(Debug, PartialEq)]
enum DiskInFile {
    /// The node of this name. The graph finds it.
    Named(String),
    /// The one that is described. It is opened with the image over it.
    Described(Box<DiskOptions>),
}

impl NodeTarget {
    pub(crate) fn new(name: String) -> Self {
        Self { disk: DiskInFile::Named(name), opener: OnceLock::new() }
    }

    fn described(options: DiskOptions) -> Self {
        Self { disk: DiskInFile::Described(Box::new(options)), opener: OnceLock::new() }
    }

    /// The node's name; `None` of a disk that is described.
    pub(crate) fn node(&self) -> Option<&str> {
        match &self.disk {
            DiskInFile::Named(name) => Some(name),
            DiskInFile::Described(_) => None,
        }
    }

    /// The disk's options, if it is described.
    pub(crate) fn description(&self) -> Option<&DiskOptions> {
        match &self.disk {
            DiskInFile::Named(_) => None,
            DiskInFile::Described(options) => Some(options),
        }
    }

    /// What opens it, once that is known.
    pub(crate) fn opener(&self) -> Option<Arc<dyn OpenDisk>> {
        self.opener.get().cloned()
    }

    /// Says what opens it: the first time counts.
    pub(crate) fn is_opened_by(&self, opener: Arc<dyn OpenDisk>) {
        let _ = self.opener.set(opener);
    }
}

impl Target for NodeTarget {
    fn name(&self) -> String {
        match &self.disk {
            DiskInFile::Named(name) => format!("{NODE_PREFIX}{name}"),
            DiskInFile::Described(options) => options.filename.display().to_string(),
        }
    }

    fn first_difference(&self, other: &dyn Target) -> Option<String> {
        match disk_in_file(other) {
            Some(other) if other.disk == self.disk => None,
            _ => Some("file".to_owned()),
        }
    }

    fn open(&self, access: Access) -> IoFuture<'_, io::Result<Arc<dyn Storage>>> {
        Box::pin(async move {
            let Some(opener) = self.opener.get() else {
                return Err(io::Error::other(
                    "a file that is a node can only be opened with the node that is over it",
                ));
            };
            opener.open(self.name(), access).await
        })
    }
}

/// The disk that `target` is, if it is one.
pub(crate) fn disk_in_file(target: &dyn Target) -> Option<&NodeTarget> {
    (target as &dyn Any).downcast_ref()
}

/// How requests reach the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aio {
    /// Submission and completion rings.
    IoUring,
    /// Blocking calls on a pool of threads.
    Threads,
}

/// Whether QEMU's locks of a file are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locking {
    /// They are.
    Auto,
    /// Likewise; blockdev-reopen has to say so again, as QEMU's does.
    On,
    /// They are not.
    Off,
}

/// QEMU's `native` is the kernel's older interface, which the rings serve as well.
pub(super) const AIO: [(&str, Aio); 3] =
    [("io_uring", Aio::IoUring), ("threads", Aio::Threads), ("native", Aio::IoUring)];
/// Options of a path on this machine, which mean nothing elsewhere.
const OF_PATHS: [&str; 5] = ["aio", "locking", "aio-max-batch", "drop-cache", "x-check-cache-dropped"];
const LOCKING: [(&str, Locking); 3] = [("auto", Locking::Auto), ("on", Locking::On), ("off", Locking::Off)];

/// The part of the table for the file below an image, and likewise for its data file.
pub const FILE: &[Entry<FileOptions>] = &in_group(
    Group::File,
    [
        Entry::driver("driver", Kind::Storage, FileOptions::named_driver, "what the file is")
            .default_follows("what it is"),
        Entry::text("node-name", at!(FileOptions, node_name), "the file's name among the nodes")
            .default_follows("none"),
        Entry::path("filename", at!(FileOptions, filename), "its path").needed(),
        Entry::choice("aio", choice_at!(FileOptions, AIO, aio), "how requests reach the kernel")
            .default_follows("as aio of the image; else the best that the kernel permits"),
        Entry::switch("cache.direct", at!(FileOptions, direct), "bypass the host's page cache (O_DIRECT)")
            .default_follows("as cache.direct of the image"),
        Entry::switch("cache.no-flush", at!(FileOptions, no_flush), "do not flush")
            .default_follows("as cache.no-flush of the image"),
        Entry::choice("locking", choice_at!(FileOptions, LOCKING, locking), "take QEMU's file locks")
            .default("auto"),
        Entry::size(
            "aio-max-batch",
            at!(FileOptions, aio_max_batch),
            "no effect: requests are handed over as they come",
        )
        .default("0")
        .reopens(),
        Entry::switch(
            "drop-cache",
            at!(FileOptions, drop_cache),
            "no effect: what a disk has in memory is dropped when it becomes active again",
        )
        .default("on")
        .reopens(),
        Entry::switch("x-check-cache-dropped", at!(FileOptions, check_cache_dropped), "no effect").reopens(),
    ],
);

impl FileOptions {
    /// All options of a file elsewhere, where its name leaves some out that say which file it is.
    pub fn beyond_name(&self) -> Option<serde_json::Map<String, serde_json::Value>> {
        self.target.as_ref()?.beyond_name()
    }

    /// The driver's name; none of a node, which is named by another option.
    fn named_driver(&self) -> Option<&'static str> {
        self.driver.map(|driver| driver.name).filter(|name| *name != NODE_OPTION)
    }

    pub(super) fn defaults(cache: CacheMode, aio: Option<Aio>) -> Self {
        Self {
            driver: None,
            node_name: None,
            filename: None,
            target: None,
            over: None,
            aio,
            direct: cache.direct,
            no_flush: cache.no_flush,
            locking: Locking::Auto,
            aio_max_batch: 0,
            drop_cache: true,
            check_cache_dropped: false,
            must_be: None,
        }
    }

    pub(super) fn read(
        group: Option<Reader>,
        cache: CacheMode,
        aio: Option<Aio>,
    ) -> Result<Self, OptionError> {
        let mut options = Self::defaults(cache, aio);
        let Some(mut reader) = group else { return Ok(options) };
        if reader.has_text("driver").is_some_and(|driver| is_of_disk(&driver)) {
            let disk = DiskOptions::of_tree(reader.into_tree().with_name_below())?;
            options.driver = Some(&NODE);
            options.target = Some(Arc::new(NodeTarget::described(disk)));
            return Ok(options);
        }
        if let Some(node) = reader.take_text(NODE_OPTION) {
            options.driver = Some(&NODE);
            options.target = Some(Arc::new(NodeTarget::new(node)));
            reader.finish(std::iter::empty(), &[])?;
            return Ok(options);
        }
        let of_paths = reader.first_such(|given| OF_PATHS.contains(&given));
        let names: Vec<_> = storage_drivers().iter().map(|driver| driver.name).collect();
        options.driver = reader.choice("driver", &names)?.map(|place| storage_drivers()[place]);
        read_all(FILE, &mut reader, &mut options)?;
        let mut known: Vec<&str> = FILE.iter().map(|entry| entry.spec().name).collect();
        if let Some(driver) = options.no_path(&mut reader)? {
            if let Some(option) = of_paths {
                return Err(OptionError::NotOfDriver { option, driver: driver.name });
            }
            known.extend(driver.specs().iter().map(|spec| spec.name));
            options.driver = Some(driver);
            match &driver.kind {
                StorageKind::Path => {}
                StorageKind::Elsewhere(elsewhere) => {
                    let shown = |name: PathBuf| PathBuf::from((elsewhere.shown)(&name.to_string_lossy()));
                    options.filename = options.filename.map(shown);
                    options.target = Some((elsewhere.read)(&mut reader)?);
                }
                StorageKind::Over(over) => {
                    let by = (over.read)(&mut reader)?;
                    let below = Self::read(reader.group(over.child)?, cache, aio)?;
                    if !below.is_named() {
                        let allowed = "the path of a file, or options that name one";
                        return Err(reader.value(over.child, "", allowed));
                    }
                    options.over = Some(Wrapped { by, child: over.child, below: Box::new(below) });
                }
            }
        }
        reader.finish(known.into_iter(), &[])?;
        Ok(options)
    }

    /// The driver that opens no path, if one is asked for or the file's name means one: then the name becomes its options.
    fn no_path(&self, reader: &mut Reader) -> Result<Option<&'static StorageDriver>, OptionError> {
        let meant = self.filename.as_deref().filter(|_| self.driver.is_none()).and_then(storage_of);
        let Some(driver) = self.driver.or(meant).filter(|driver| !driver.is_of_paths()) else {
            return Ok(None);
        };
        if let Some(filename) = &self.filename {
            let found = filename.to_string_lossy();
            if let Some(named) = driver.options_of(&found) {
                let wrong = |allowed| reader.value("filename", &driver.shown(&found), allowed);
                reader.add(named.map_err(wrong)?)?;
            }
        }
        Ok(Some(driver))
    }

    /// What messages call it, if they say which file it is.
    pub(crate) fn shown(&self) -> Option<PathBuf> {
        let elsewhere = || self.target.as_ref().map(|target| PathBuf::from(target.name()));
        let below = || self.over.as_ref().and_then(|over| over.below.shown());
        self.filename.clone().or_else(elsewhere).or_else(below)
    }

    /// The disk that it is, if it is one.
    pub(crate) fn disk(&self) -> Option<&NodeTarget> {
        self.target.as_deref().and_then(disk_in_file)
    }

    /// The name of the node that it is, if it is one.
    pub(crate) fn node(&self) -> Option<&str> {
        self.disk()?.node()
    }

    /// Whether they say which file it is.
    pub fn is_named(&self) -> bool {
        self.filename.is_some() || self.target.is_some() || self.over.is_some()
    }
}

/// Whether a driver of this name makes disks, of files or of other disks.
fn is_of_disk(driver: &str) -> bool {
    format_called(driver).is_some() || filter(driver).is_some() || driver == THROTTLE_NAME
}
