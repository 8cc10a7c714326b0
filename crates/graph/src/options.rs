//! The options of a drive: from a tree of texts to values that cannot be wrong.
//!
//! Names, defaults and rules are QEMU's (FACTS 1.4, 1.5). What depends on the image itself (a cache
//! entry larger than its clusters, lazy refcounts in version 2) is checked when it is opened.

pub mod entry;
mod error;
mod file;
mod fixed;
mod layer;
mod name;
mod qcow2;
mod raw;
mod reader;
mod setting;
mod spec;
pub mod table;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod tests;
mod throttling;
#[cfg(test)]
mod throttling_tests;
mod words;

use std::path::PathBuf;
use std::sync::Arc;

use nearest::nearest;

pub use self::entry::Entry;
use self::entry::read_all;
pub use self::error::OptionError;
pub use self::file::{Aio, FileOptions, Locking};
pub(crate) use self::file::{NODE_OPTION, NODE_PREFIX, OpenDisk, Wrapped};
pub use self::fixed::{Opened, first_fixed};
pub(crate) use self::fixed::{first_fixed_of_file, is_other_part, is_same_file, moves};
use self::layer::Inherited;
pub use self::layer::{Backing, DetectZeroes, Discard, Encryption, LayerOptions};
pub use self::qcow2::{CACHE_CLEAN_INTERVAL_S_DEFAULT, Qcow2Options};
pub use self::raw::{RawOptions, Window};
pub use self::reader::Reader;
pub use self::spec::{Changes, DefaultValue, Group, Kind, Qmp, Spec};
pub use self::throttling::{DiscardCharge, ThrottleOptions};
use crate::drive::{DriveError, Entry as Given, OptionTree};
use crate::drivers::{FilterDriver, MakeFilter, Role, THROTTLE_GROUP, THROTTLE_NAME, filter, over_disk};
use crate::error::OpenError;

/// What can be said of a filter as of an image.
pub(crate) const LAYER_OF_FILTERS: [&str; 8] = [
    "read-only",
    "force-share",
    "discard",
    "detect-zeroes",
    "cache",
    "cache.direct",
    "cache.no-flush",
    "cache.writeback",
];

/// A drive to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// `id`: how exports and messages call it.
    pub id: Option<String>,
    /// The image.
    pub filename: PathBuf,
    /// How it is opened.
    pub layer: LayerOptions,
    /// `throttling.*`: its limits.
    pub throttling: ThrottleOptions,
    /// Filters over it, the outermost first.
    pub filters: Vec<FilterOptions>,
}

/// Whether a drive is a filter over its disk.
pub(crate) fn has_filters(tree: &OptionTree) -> bool {
    named(tree).is_some()
}

impl DiskOptions {
    /// Checks every option of `tree`.
    ///
    /// # Errors
    /// For the first option that is unknown, has a value it does not take, or contradicts another.
    pub fn of_tree(tree: OptionTree) -> Result<Self, OptionError> {
        Self::of_tree_below(tree, 0)
    }

    /// Likewise, of a disk that is below so many filters.
    fn of_tree_below(tree: OptionTree, filters: usize) -> Result<Self, OptionError> {
        let tree = Reader::new(tree, String::new()).with_format()?.into_tree();
        if let Some(named) = named(&tree) {
            return read_over(&named, tree, filters);
        }
        let mut reader = Reader::new(tree, String::new());
        let mut options = Self::of_path(PathBuf::new());
        read_all(table::DISK, &mut reader, &mut options)?;
        options.throttling = throttling::read(&mut reader)?;
        options.layer = LayerOptions::read(reader, Inherited::by_nobody())?;
        options.filename = options.layer.file.shown().ok_or(OptionError::NoFile)?;
        Ok(options)
    }

    /// Refuses filters, for what works on an image itself.
    pub(crate) fn check_without_filters(&self) -> Result<(), OpenError> {
        match self.filters.is_empty() {
            true => Ok(()),
            false => Err(OpenError::Filters { path: self.filename.clone() }),
        }
    }

    /// A drive that is a path and nothing else.
    pub fn of_path(filename: impl Into<PathBuf>) -> Self {
        let filename = filename.into();
        let top = Inherited::by_nobody();
        let mut layer = LayerOptions::defaults(top);
        layer.file.filename = Some(filename.clone());
        let (throttling, filters) = (ThrottleOptions::default(), Vec::new());
        Self { id: None, filename, layer, throttling, filters }
    }
}

/// Filters one over another at most: a drive line is written by hand.
const FILTERS_MAX: usize = 16;

/// A filter of a drive.
#[derive(Clone, Debug)]
pub struct FilterOptions {
    /// Its driver.
    pub driver: &'static FilterDriver,
    /// What its options make.
    pub(crate) makes: Arc<dyn MakeFilter>,
    /// The disks that it is over beside the first one, each with its role.
    pub(crate) beside: Vec<(Role, DiskOptions)>,
}

impl FilterOptions {
    /// The first option, by its full name, that `other` has otherwise.
    pub(super) fn first_difference(&self, other: &Self) -> Option<String> {
        let of_disks = || {
            let mut pairs = self.beside.iter().zip(&other.beside);
            let differs = pairs.find(|(own, other)| own != other);
            differs.map(|((role, _), _)| role.name.to_owned())
        };
        self.makes.first_difference(&*other.makes).or_else(of_disks)
    }
}

impl PartialEq for FilterOptions {
    fn eq(&self, other: &Self) -> bool {
        self.beside.len() == other.beside.len() && self.first_difference(other).is_none()
    }
}

impl Eq for FilterOptions {}

/// What a drive is over its disk.
enum Named {
    /// This filter.
    Filter(&'static FilterDriver),
    /// In a throttle group.
    Throttle,
}

/// The filter that `tree` describes, if its driver is one.
fn named(tree: &OptionTree) -> Option<Named> {
    let name = tree.value("driver")?;
    if tree.is_over_disk() {
        return over_disk(&name).map(Named::Filter);
    }
    match filter(&name) {
        Some(driver) => Some(Named::Filter(driver)),
        None => (name == THROTTLE_NAME).then_some(Named::Throttle),
    }
}

/// Reads a drive whose outermost layer is a filter; `depth` filters are over it.
fn read_over(named: &Named, tree: OptionTree, depth: usize) -> Result<DiskOptions, OptionError> {
    if depth == FILTERS_MAX {
        let problem = "is nested too deep; allowed: 16 filters one over another";
        return Err(OptionError::Shape { option: "file".to_owned(), problem });
    }
    match named {
        Named::Filter(driver) => read_filter(driver, tree, depth),
        Named::Throttle => read_throttle(tree, depth),
    }
}

/// The disk below is in the group.
fn read_throttle(mut tree: OptionTree, depth: usize) -> Result<DiskOptions, OptionError> {
    tree.take("driver");
    let group = match tree.take(THROTTLE_GROUP) {
        Some(Given::Value(group)) if !group.is_empty() => group,
        _ => {
            let problem = "is missing; give the id of a throttle group (--object throttle-group,id=ID,...)";
            return Err(OptionError::Shape { option: THROTTLE_GROUP.to_owned(), problem });
        }
    };
    let mut below = disk_below("file", tree.take("file"))?;
    below.replace_entries(tree);
    let _ = below.replace("throttling.group", group);
    let mut options = DiskOptions::of_tree_below(below, depth + 1)?;
    options.throttling.is_object = true;
    Ok(options)
}

fn read_filter(
    driver: &'static FilterDriver,
    mut tree: OptionTree,
    depth: usize,
) -> Result<DiskOptions, OptionError> {
    tree.take("driver");
    let given = driver.children.of_tree(&mut tree)?;
    let read = |(role, given): (Role, _)| Ok((role, disk_below(role.name, given)?));
    let children: Vec<_> = given.into_iter().map(read).collect::<Result<_, OptionError>>()?;
    let mut reader = Reader::new(tree, String::new());
    let makes = (driver.read)(&mut reader)?;
    let mut children = children.into_iter();
    let Some((_, mut first)) = children.next() else { return Err(OptionError::NoFile) };
    let rest = reader.into_tree();
    check_known(driver, &rest)?;
    first.replace_entries(rest);
    let mut options = DiskOptions::of_tree_below(first, depth + 1)?;
    let read = |(role, tree)| Ok((role, DiskOptions::of_tree_below(tree, depth + 1)?));
    let beside = children.map(read).collect::<Result<_, OptionError>>()?;
    options.filters.insert(0, FilterOptions { driver, makes, beside });
    Ok(options)
}

/// Refuses what neither the filter nor an image has.
fn check_known(driver: &FilterDriver, rest: &OptionTree) -> Result<(), OptionError> {
    let is_of_image =
        |spec: &&Spec| !matches!(spec.group, Group::File | Group::Storage(_) | Group::Filter(_));
    let is_known = |name: &str| {
        let is_called =
            |spec: &Spec| spec.is_called(name) || spec.full_name().split('.').next() == Some(name);
        table::all().filter(is_of_image).any(is_called)
    };
    match rest.names().find(|name| !is_known(name)) {
        None => Ok(()),
        Some(unknown) => {
            let known = (driver.specs)().into_iter().chain(table::all().filter(is_of_image));
            let nearest = nearest(unknown, known.map(|spec| spec.name));
            let nearest = nearest.into_iter().map(str::to_owned).collect();
            Err(OptionError::Unknown { option: unknown.to_owned(), nearest })
        }
    }
}

/// The options of a disk below, as a drive of its own.
fn disk_below(role: &str, given: Option<Given>) -> Result<OptionTree, OptionError> {
    let shape = |problem| OptionError::Shape { option: role.to_owned(), problem };
    match given {
        Some(Given::Tree(tree)) => drive_of(tree).map_err(|error| match error {
            DriveError::Twice { key } => {
                let (option, other) = (format!("{role}.{key}"), format!("{role}.driver"));
                OptionError::Conflict { option, other, rule: "a storage driver has no file below it" }
            }
            _ => shape("cannot be read; give its file as NAME.file=PATH"),
        }),
        Some(Given::Value(_) | Given::Null) => {
            Err(shape("names a node, and there are none here; give its file instead (NAME.file=PATH)"))
        }
        None => Err(shape("is missing; give the disk below, as NAME.file=PATH or with more options")),
    }
}

/// A disk below as a drive: storage by itself is a raw disk, and a path alone is probed.
fn drive_of(tree: OptionTree) -> Result<OptionTree, DriveError> {
    match tree.value("driver") {
        Some(_) => Ok(tree.with_format()?.with_name_below()),
        None if tree.value("filename").is_some() => tree.below_file(),
        None => Ok(tree),
    }
}
