//! Filters over the disk of a drive: `driver=copy-on-read,file.driver=qcow2,file.file=PATH`.
//!
//! A drive with filters is the disk that the innermost one stands for, with the filters beside it: what is said of the disk at a filter (its
//! cache mode, limits, whether it may be written) is said of that disk, and its other options stand where they stand without filters.

use std::sync::Arc;

use nearest::nearest;

use super::{DiskOptions, Group, OptionError, Reader, Spec, table};
use crate::drive::{DriveError, Entry, OptionTree};
use crate::drivers::{self, FilterDriver, MakeFilter, Role, throttle};

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
pub(super) enum Named {
    /// This filter.
    Filter(&'static FilterDriver),
    /// In a throttle group.
    Throttle,
}

/// The filter that `tree` describes, if its driver is one.
pub(super) fn named(tree: &OptionTree) -> Option<Named> {
    let name = tree.value("driver")?;
    if tree.is_over_disk() {
        return drivers::over_disk(&name).map(Named::Filter);
    }
    match drivers::filter(&name) {
        Some(driver) => Some(Named::Filter(driver)),
        None => (name == throttle::NAME).then_some(Named::Throttle),
    }
}

/// Reads a drive whose outermost layer is a filter; `depth` filters are over it.
pub(super) fn read(named: &Named, tree: OptionTree, depth: usize) -> Result<DiskOptions, OptionError> {
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
    let group = match tree.take(throttle::GROUP) {
        Some(Entry::Value(group)) if !group.is_empty() => group,
        _ => {
            let problem = "is missing; give the id of a throttle group (--object throttle-group,id=ID,...)";
            return Err(OptionError::Shape { option: throttle::GROUP.to_owned(), problem });
        }
    };
    let mut below = child("file", tree.take("file"))?;
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
    let read = |(role, given): (Role, _)| Ok((role, child(role.name, given)?));
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
fn child(role: &str, given: Option<Entry>) -> Result<OptionTree, OptionError> {
    let shape = |problem| OptionError::Shape { option: role.to_owned(), problem };
    match given {
        Some(Entry::Tree(tree)) => drive_of(tree).map_err(|error| match error {
            DriveError::Twice { key } => {
                let (option, other) = (format!("{role}.{key}"), format!("{role}.driver"));
                OptionError::Conflict { option, other, rule: "a storage driver has no file below it" }
            }
            _ => shape("cannot be read; give its file as NAME.file=PATH"),
        }),
        Some(Entry::Value(_) | Entry::Null) => {
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
