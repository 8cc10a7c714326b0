//! All drivers, by name. A new one is a file beside this one, and a line here.
//!
//! A storage driver says what `driver` of a file can be: a path on this machine, or something elsewhere ([`Elsewhere`]) that its own
//! options describe, or file names with its prefix. A format driver makes a block of a file, and a filter driver a disk over others. Names that stand in images lead to local files, and elsewhere only where the user allowed just that ([`crate::names`]).

mod blkdebug;
mod blkverify;
#[cfg(feature = "http")]
mod cached;
#[cfg(feature = "s3")]
mod chunked;
mod compress;
mod copy_before_write;
mod copy_on_read;
mod elsewhere;
mod filter;
mod foreign;
mod formats;
#[cfg(feature = "http")]
mod http;
mod local;
mod luks;
#[cfg(feature = "nbd")]
mod nbd;
pub(crate) mod node;
mod not_built;
mod null;
mod over;
#[cfg(feature = "http")]
mod over_http;
#[cfg(test)]
mod pattern;
mod preallocate;
mod quorum;
#[cfg(feature = "rbd")]
mod rbd;
#[cfg(any(feature = "http", feature = "nbd", feature = "rbd"))]
mod remote;
#[cfg(feature = "s3")]
mod s3;
#[cfg(any(feature = "http", feature = "rbd"))]
mod store;
#[cfg(test)]
mod tests;
pub(crate) mod throttle;
pub(crate) mod window;

use std::io;
use std::path::Path;
use std::sync::Arc;

use ::storage::Storage;
use serde_json::{Map, Value};

#[cfg(feature = "http")]
pub(crate) use self::cached::{Hint, TraceFile, settle_caches, take_hint};
#[cfg(feature = "http")]
pub use self::cached::{OpenCache, caches};
#[cfg(feature = "s3")]
pub(crate) use self::chunked::expect_guest;
#[cfg(feature = "s3")]
pub use self::chunked::{CHUNKED_OPTIONS, Chunked, chunked_place, image_key};
pub use self::elsewhere::{Access, Elsewhere, Target};
pub use self::filter::{Alone, Children, FilterDriver, MakeFilter, Role};
pub(crate) use self::filter::{Below, BitmapName};
pub(crate) use self::formats::{Opening, QCOW_MAGIC, format};
#[cfg(feature = "http")]
pub use self::http::{HTTP_OPTIONS, HTTPS_OPTIONS, Hidden, Http};
pub(crate) use self::local::of_file;
pub use self::luks::OnLoop;
#[cfg(feature = "nbd")]
pub use self::nbd::{NBD_OPTIONS, Nbd, nbd_exports};
pub use self::over::{Over, Wrap, Wrapped};
#[cfg(feature = "rbd")]
pub use self::rbd::{RBD_OPTIONS, Rbd};
#[cfg(feature = "s3")]
pub use self::s3::{AZ_OPTIONS, GS_OPTIONS, S3, S3_OPTIONS, object_store};
use crate::drive::OptionTree;
use crate::options::{Entry, LayerOptions, Reader, Spec};

/// Drivers of storage. One whose feature a build lacks stands in the same place and refuses what it is asked for.
pub const STORAGE: &[&StorageDriver] = &[
    &local::FILE,
    &local::HOST_DEVICE,
    &local::HOST_CDROM,
    #[cfg(feature = "nbd")]
    &nbd::NBD,
    #[cfg(not(feature = "nbd"))]
    &not_built::NBD,
    #[cfg(feature = "http")]
    &http::HTTP,
    #[cfg(not(feature = "http"))]
    &not_built::HTTP,
    #[cfg(feature = "http")]
    &http::HTTPS,
    #[cfg(not(feature = "http"))]
    &not_built::HTTPS,
    #[cfg(feature = "s3")]
    &s3::S3,
    #[cfg(not(feature = "s3"))]
    &not_built::S3,
    #[cfg(feature = "s3")]
    &s3::GS,
    #[cfg(not(feature = "s3"))]
    &not_built::GS,
    #[cfg(feature = "s3")]
    &s3::AZ,
    #[cfg(not(feature = "s3"))]
    &not_built::AZ,
    #[cfg(feature = "s3")]
    &chunked::CHUNKED,
    #[cfg(not(feature = "s3"))]
    &not_built::CHUNKED,
    #[cfg(feature = "rbd")]
    &rbd::RBD,
    #[cfg(not(feature = "rbd"))]
    &not_built::RBD,
    &null::NULL_CO,
    &null::NULL_AIO,
    &blkdebug::BLKDEBUG,
    &preallocate::PREALLOCATE,
    #[cfg(test)]
    &pattern::PATTERN,
];

/// Drivers of formats.
pub const FORMATS: &[&FormatDriver] = &[
    &formats::QCOW2,
    &formats::RAW,
    &luks::LUKS,
    &foreign::VDI,
    &foreign::VPC,
    &foreign::VMDK,
    &foreign::QCOW,
    &foreign::VHDX,
];

/// Drivers of filters.
pub const FILTERS: &[&FilterDriver] = &[
    &copy_before_write::COPY_BEFORE_WRITE,
    &copy_before_write::SNAPSHOT_ACCESS,
    &copy_on_read::COPY_ON_READ,
    &compress::COMPRESS,
    &blkverify::BLKVERIFY,
    &quorum::QUORUM,
];

/// A driver of storage: what `driver` of a file can be.
#[derive(Debug)]
pub struct StorageDriver {
    /// What options call it.
    pub name: &'static str,
    /// Beginnings of file names that mean it, where no driver is given (`nbd:`).
    pub prefixes: &'static [&'static str],
    /// Where it looks.
    pub kind: StorageKind,
}

/// Where a storage driver looks.
#[derive(Debug)]
pub enum StorageKind {
    /// At a path on this machine.
    Path,
    /// Where its own options say.
    Elsewhere(Elsewhere),
    /// At another file, which another driver opens.
    Over(Over),
}

/// A driver of a format.
#[derive(Debug)]
pub struct FormatDriver {
    /// What options and headers of overlays call it.
    pub name: &'static str,
    /// What an image of it is called in documentation: "a qcow2 image".
    pub title: &'static str,
    /// What its files begin with; `None` if that may be anything.
    pub header: Option<FormatHeader>,
    /// Options that only images of it have.
    pub options: &'static [Entry<LayerOptions>],
    /// Makes a block of a file.
    pub(crate) open: for<'a> fn(Opening<'a>) -> formats::OpeningFuture<'a>,
}

/// What files of a format begin with.
#[derive(Debug)]
pub struct FormatHeader {
    /// What messages call it.
    pub name: &'static str,
    /// Whether these first bytes of a file (at most [`crate::probe::PROBE_BYTES`]) are one.
    pub begins: fn(&[u8]) -> bool,
    /// A file that is said to be of the format must begin with one. Otherwise the driver looks: its header may be in another file, or be a second copy.
    pub required: bool,
}

/// A driver of any kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Driver {
    Storage(&'static StorageDriver),
    Format,
    Filter(&'static FilterDriver),
    Throttle,
}

/// The driver called `name`.
pub(crate) fn driver(name: &str) -> Option<Driver> {
    let format = || FORMATS.iter().any(|driver| driver.name == name).then_some(Driver::Format);
    let throttle = || (name == throttle::NAME).then_some(Driver::Throttle);
    storage(name)
        .map(Driver::Storage)
        .or_else(format)
        .or_else(|| filter(name).map(Driver::Filter))
        .or_else(throttle)
}

/// The filter driver called `name`.
pub(crate) fn filter(name: &str) -> Option<&'static FilterDriver> {
    FILTERS.iter().find(|driver| driver.name == name).copied()
}

/// The filter that the storage driver `name` is over a disk.
pub(crate) fn over_disk(name: &str) -> Option<&'static FilterDriver> {
    (name == blkdebug::OVER_DISK.name).then_some(&blkdebug::OVER_DISK)
}

/// The storage driver called `name`.
pub(crate) fn storage(name: &str) -> Option<&'static StorageDriver> {
    STORAGE.iter().find(|driver| driver.name == name).copied()
}

/// The storage driver that a file name means by its beginning.
pub(crate) fn storage_of(filename: &Path) -> Option<&'static StorageDriver> {
    let name = filename.as_os_str().as_encoded_bytes();
    let means_it =
        |driver: &&StorageDriver| driver.prefixes.iter().any(|prefix| name.starts_with(prefix.as_bytes()));
    STORAGE.iter().copied().find(means_it)
}

/// The driver of a file name that leads away from this machine's files.
pub fn elsewhere(filename: &Path) -> Option<&'static str> {
    storage_of(filename).filter(|driver| !driver.is_of_paths()).map(|driver| driver.name)
}

/// Whether [`create`] makes what a file name of a driver means.
pub fn is_creatable(name: &str) -> bool {
    matches!(target_of(name), Some(Ok((_, target))) if target.is_creatable())
}

/// Whether [`create`] takes what is there, to be overwritten, for what a file name of a driver means.
pub fn is_overwritable(name: &str) -> bool {
    matches!(target_of(name), Some(Ok((_, target))) if target.is_overwritable())
}

/// Makes what a file name of a driver means, with so many bytes, which read as zeroes; or prepares what is there, whose bytes may be any.
///
/// # Errors
/// When the name means nothing that can be made, when it is there already, when it is too short to be overwritten, or the driver's.
pub async fn create(name: &str, bytes: u64) -> io::Result<()> {
    meant(name)?.create(bytes).await
}

/// Opens what was made so, for writing.
///
/// # Errors
/// The driver's.
pub async fn open_created(name: &str) -> io::Result<Arc<dyn Storage>> {
    meant(name)?.open(Access { writable: true, direct: false, no_flush: false }).await
}

fn meant(name: &str) -> io::Result<Arc<dyn Target>> {
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
    match target_of(name) {
        Some(Ok((_, target))) => Ok(target),
        Some(Err(allowed)) => Err(wrong(format!("allowed: {allowed}"))),
        None => Err(wrong("it is a file's name".to_owned())),
    }
}

/// Storage that a name means, and the driver that finds it.
pub(crate) type NamedTarget = (&'static StorageDriver, Arc<dyn Target>);

/// What a file name that leads away from this machine's files means; otherwise what is wrong with it, as the rest of a sentence. `None` of
/// a path, and of storage over another file.
pub(crate) fn target_of(name: &str) -> Option<Result<NamedTarget, String>> {
    let driver = storage_of(Path::new(name))?;
    let StorageKind::Elsewhere(elsewhere) = &driver.kind else { return None };
    let read =
        |tree| (elsewhere.read)(&mut Reader::new(tree, String::new())).map_err(|error| error.to_string());
    Some((elsewhere.options_of)(name).and_then(read).map(|target| (driver, target)))
}

/// The options of a file that a user names as QEMU's command line does: a path, or a name with a driver's prefix (`nbd://HOST`, `blkdebug:CONFIG:FILE`).
///
/// # Errors
/// What is wrong with the name, as a sentence.
pub fn options_of_name(name: &str) -> Result<Map<String, Value>, String> {
    let driver = storage_of(Path::new(name)).filter(|driver| !driver.is_of_paths());
    let Some(driver) = driver else {
        return Ok(Map::from_iter([("driver".into(), "file".into()), ("filename".into(), name.into())]));
    };
    let malformed =
        |allowed: String| format!("{name:?} is no name of driver {}; allowed: {allowed}", driver.name);
    let tree = driver.options_of(name).unwrap_or_else(|| Ok(OptionTree::default())).map_err(malformed)?;
    let mut options = tree.to_json().ok_or_else(|| malformed("UTF-8".to_owned()))?;
    options.insert("driver".into(), driver.name.into());
    if let StorageKind::Over(over) = &driver.kind
        && let Some(below) = options.get(over.child).and_then(|below| below["filename"].as_str())
    {
        let below = options_of_name(below)?;
        options.insert(over.child.into(), Value::Object(below));
    }
    Ok(options)
}

/// Whether `driver` is that of a filter that reads as a disk was at one moment ([`FilterDriver::is_snapshot`]).
pub fn is_snapshot(driver: &str) -> bool {
    filter(driver).is_some_and(|filter| filter.is_snapshot)
}

/// Whether `driver` reads files, or what is elsewhere, as they are.
pub fn is_storage(driver: &str) -> bool {
    storage(driver).is_some()
}

/// Names of all drivers, in the order of the lists.
pub fn names() -> impl Iterator<Item = &'static str> {
    let formats = FORMATS.iter().map(|driver| driver.name);
    let filters = FILTERS.iter().map(|driver| driver.name).chain([throttle::NAME]);
    formats.chain(STORAGE.iter().map(|driver| driver.name)).chain(filters)
}

/// Names of the formats, as messages list them.
pub fn format_names() -> String {
    FORMATS.iter().map(|driver| driver.name).collect::<Vec<_>>().join(", ")
}

/// Names of the drivers of storage, for the table of options.
pub(crate) const STORAGE_NAMES: &[&str] = &{
    let mut names = [""; STORAGE.len()];
    let mut place = 0;
    while place < names.len() {
        names[place] = STORAGE[place].name;
        place += 1;
    }
    names
};

impl StorageDriver {
    /// Whether it opens paths.
    pub(crate) fn is_of_paths(&self) -> bool {
        matches!(self.kind, StorageKind::Path)
    }

    /// Whether it opens nothing and connects to nothing.
    pub(crate) fn is_within_process(&self) -> bool {
        *self == null::NULL_CO || *self == null::NULL_AIO
    }

    /// Its own options, beside those that every file has.
    pub(crate) fn specs(&self) -> Vec<&'static Spec> {
        match &self.kind {
            StorageKind::Path => Vec::new(),
            StorageKind::Elsewhere(elsewhere) => (elsewhere.specs)(),
            StorageKind::Over(over) => (over.specs)(),
        }
    }

    /// What messages call it by this file name.
    pub(crate) fn shown(&self, name: &str) -> String {
        match &self.kind {
            StorageKind::Elsewhere(elsewhere) => (elsewhere.shown)(name),
            StorageKind::Path | StorageKind::Over(_) => name.to_owned(),
        }
    }

    /// The options that a file name with its prefix stands for; `None` of paths, which stand for themselves.
    pub(crate) fn options_of(&self, name: &str) -> Option<Result<OptionTree, String>> {
        match &self.kind {
            StorageKind::Path => None,
            StorageKind::Elsewhere(elsewhere) => Some((elsewhere.options_of)(name)),
            StorageKind::Over(over) => Some((over.options_of)(name)),
        }
    }
}

/// There is one driver of a name.
impl PartialEq for StorageDriver {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for StorageDriver {}
