//! Drivers: what storage, formats and filters are, and which of them there are.
//!
//! The graph knows no driver but paths: a program hands in the drivers that it was built with ([`hand_in`]). A storage driver says what
//! `driver` of a file can be: a path on this machine, or something elsewhere ([`Elsewhere`]) that its own options describe, or file names
//! with its prefix. A format driver makes a block of a file, and a filter driver a disk over others. Names that stand in images lead to local
//! files, and elsewhere only where the user allowed just that ([`crate::names`]).

mod elsewhere;
mod filter;
mod format_driver;
pub mod local;
mod over;
mod remotes;
mod storage_driver;
pub(crate) mod throttle;

use std::io;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};
use storage::Storage;

pub use self::elsewhere::{Access, Elsewhere, Target};
pub use self::filter::{
    Alone, Below, BitmapName, Children, FilterDriver, Filters, MakeFilter, Role, difference, filter_drivers,
};
pub(crate) use self::filter::{THROTTLE_GROUP, THROTTLE_NAME, filter, over_disk};
pub(crate) use self::format_driver::required_header;
pub use self::format_driver::{
    FormatDriver, FormatHeader, OpenVmdk, Opening, OpeningFuture, format_called, format_drivers,
    format_names, format_of_backing, formats,
};
pub(crate) use self::local::of_file;
pub use self::over::{Over, Wrap};
pub(crate) use self::remotes::remotes;
pub use self::remotes::{Hint, Remotes, TraceFile};
pub(crate) use self::storage_driver::storage;
pub use self::storage_driver::{StorageDriver, StorageKind, storage_drivers, storage_of};
use crate::drive::OptionTree;
use crate::options::Reader;

/// All drivers of a program.
#[derive(Clone, Copy, Debug)]
pub struct Drivers {
    /// Drivers of storage.
    pub storage: &'static [&'static StorageDriver],
    /// Drivers of formats.
    pub formats: &'static [&'static FormatDriver],
    /// Drivers of filters.
    pub filters: Filters,
    /// What is done beside requests for files on other machines.
    pub remotes: Remotes,
}

/// Hands in the drivers of this process: the first time counts. Without it nothing opens, and messages name no driver.
pub fn hand_in(drivers: Drivers) {
    storage_driver::hand_in(drivers.storage);
    format_driver::hand_in(drivers.formats);
    filter::hand_in(drivers.filters);
    remotes::hand_in(drivers.remotes);
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
    let format = || format_called(name).map(|_| Driver::Format);
    let throttle = || (name == THROTTLE_NAME).then_some(Driver::Throttle);
    storage(name)
        .map(Driver::Storage)
        .or_else(format)
        .or_else(|| filter(name).map(Driver::Filter))
        .or_else(throttle)
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
pub type NamedTarget = (&'static StorageDriver, Arc<dyn Target>);

/// What a file name that leads away from this machine's files means; otherwise what is wrong with it, as the rest of a sentence. `None` of
/// a path, and of storage over another file.
pub fn target_of(name: &str) -> Option<Result<NamedTarget, String>> {
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
    let formats = format_drivers().iter().map(|driver| driver.name);
    let storage = storage_drivers().iter().map(|driver| driver.name);
    formats.chain(storage).chain(filter_drivers().iter().map(|driver| driver.name)).chain([THROTTLE_NAME])
}
