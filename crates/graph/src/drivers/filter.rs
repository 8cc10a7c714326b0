//! Filters over disks: what a driver of one brings.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use block::{Block, Error};

use crate::drive::{Entry, OptionTree};
use crate::options::{OptionError, Reader, Spec};

/// What options call the filter that puts its disk into a throttle group.
pub(crate) const THROTTLE_NAME: &str = "throttle";

/// The option that names the group.
pub(crate) const THROTTLE_GROUP: &str = "throttle-group";

/// A driver of a filter. Its disks below are options of its own; what else is said of an image is said of the first of them.
#[derive(Debug)]
pub struct FilterDriver {
    /// What options call it.
    pub name: &'static str,
    /// It reads as a disk was at one moment, not as the disk is now. A discard means that the range will not
    /// be read any more.
    pub is_snapshot: bool,
    /// It grows with the disks below it.
    pub grows: bool,
    /// The disks that it is put over.
    pub children: Children,
    /// Its options, those for the disks below among them.
    pub specs: fn() -> Vec<&'static Spec>,
    /// Takes its options but those for the disks below, checked.
    pub read: fn(&mut Reader) -> Result<Arc<dyn MakeFilter>, OptionError>,
}

impl FilterDriver {
    /// Whether blockdev-reopen changes anything of it; of others QEMU's refuses even what stays.
    pub(crate) fn reopens(&self) -> bool {
        self.children.roles().iter().any(|role| role.changes)
    }
}

/// The disks that a filter is put over, the one that it mainly stands for first.
#[derive(Debug)]
pub enum Children {
    /// Each is an option.
    Named(&'static [Role]),
    /// One option is a list of them, at most as many as there are roles.
    List {
        /// The option.
        option: &'static str,
        /// What they are, from the first one on.
        roles: &'static [Role],
    },
}

impl Children {
    /// What they can be.
    pub fn roles(&self) -> &'static [Role] {
        match self {
            Self::Named(roles) | Self::List { roles, .. } => roles,
        }
    }

    /// Options that name the fewest disks there can be, as on a drive line.
    pub fn fewest(&self) -> Vec<String> {
        match self {
            Self::Named(roles) => roles.iter().map(|role| role.name.to_owned()).collect(),
            Self::List { option, .. } => vec![format!("{option}.0")],
        }
    }

    /// Whether the option says what they are.
    pub fn is_option(&self, name: &str) -> bool {
        match self {
            Self::Named(roles) => roles.iter().any(|role| role.name == name),
            Self::List { option, .. } => *option == name,
        }
    }

    /// The disks of a drive line, whose options for them are taken from `tree`, each with its role. What was not given is `None`.
    ///
    /// # Errors
    /// When the list is none, or has too many of them.
    pub(crate) fn of_tree(&self, tree: &mut OptionTree) -> Result<Vec<(Role, Option<Entry>)>, OptionError> {
        let (option, roles) = match self {
            Self::Named(roles) => {
                return Ok(roles.iter().map(|role| (*role, tree.take(role.name))).collect());
            }
            Self::List { option, roles } => (*option, *roles),
        };
        let shape = |problem| OptionError::Shape { option: option.to_owned(), problem };
        let mut list = match tree.take(option) {
            Some(Entry::Tree(list)) => list,
            _ => return Err(shape("is a list; give its disks, as NAME.0.file=PATH")),
        };
        let mut found = Vec::new();
        for (number, role) in roles.iter().enumerate() {
            match list.take(&number.to_string()) {
                Some(entry) => found.push((*role, Some(entry))),
                None => break,
            }
        }
        match list.names().next() {
            None if !found.is_empty() => Ok(found),
            _ => Err(shape("is a list of 1 to 16 disks, numbered from 0 on")),
        }
    }
}

/// When a disk below a filter must have no other writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alone {
    /// Never.
    No,
    /// While the filter is in use.
    InUse,
    /// As long as the filter is there.
    Always,
}

/// What a disk below a filter is to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Role {
    /// The option that names it.
    pub name: &'static str,
    /// It is written whatever the filter is open for.
    pub is_target: bool,
    /// When no one else may write there: a write that bypasses the filter would invalidate the filter's data.
    pub alone: Alone,
    /// Another one can be put there while the filter is in use.
    pub changes: bool,
}

impl Role {
    /// The disk that a filter mainly stands for.
    pub const FILE: Self = Self { name: "file", is_target: false, alone: Alone::No, changes: true };
}

/// A bitmap of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitmapName<'a> {
    /// The node's name.
    pub node: &'a str,
    /// Its own.
    pub name: &'a str,
}

/// What checked options make of disks.
pub trait MakeFilter: Any + fmt::Debug + Send + Sync {
    /// The first option, by its full name, that `other` has otherwise.
    fn first_difference(&self, other: &dyn MakeFilter) -> Option<String>;

    /// The bitmap that it asks for, which is read before it is made.
    fn bitmap(&self) -> Option<BitmapName<'_>> {
        None
    }

    /// The throttle group that its disk is in.
    fn group(&self) -> Option<&str> {
        None
    }

    /// The filter over `below`. Reads and writes nothing.
    ///
    /// # Errors
    /// When the disks do not go together.
    fn make(&self, below: &dyn Below) -> Result<Arc<dyn Block>, Error>;
}

/// The disks below a filter, by role.
pub trait Below {
    /// The disk of this role.
    ///
    /// # Errors
    /// When there is none.
    fn get(&self, role: &str) -> Result<Arc<dyn Block>, Error>;

    /// All disks, in their order.
    fn all(&self) -> Vec<Arc<dyn Block>>;

    /// What the bitmap has as dirty that [`MakeFilter::bitmap`] names.
    fn marked(&self) -> Option<&[Range<u64>]>;

    /// Whether the first disk takes compressed clusters, or is a filter, which hands them on where it can.
    fn compresses(&self) -> bool;

    /// How many images of the first disk there are from the uppermost one down to that called `name`; `None` if none is called so.
    fn images_down_to(&self, name: &str) -> Option<u32>;
}

/// There is one driver of a name.
impl PartialEq for FilterDriver {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for FilterDriver {}

/// Compares the options of two filters of one kind, which `first_fixed` does.
pub fn difference<M: MakeFilter>(
    own: &M,
    other: &dyn MakeFilter,
    first_fixed: impl FnOnce(&M, &M) -> Option<String>,
) -> Option<String> {
    match (other as &dyn Any).downcast_ref::<M>() {
        Some(other) => first_fixed(own, other),
        None => Some("driver".to_owned()),
    }
}

static HANDED_IN: OnceLock<Filters> = OnceLock::new();

/// Drivers of filters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filters {
    /// Those over disks.
    pub list: &'static [&'static FilterDriver],
    /// What drivers of storage are over a disk, by the same names.
    pub of_storage: &'static [&'static FilterDriver],
}

pub(super) fn hand_in(filters: Filters) {
    let _ = HANDED_IN.set(filters);
}

fn handed_in() -> Filters {
    #[cfg(test)]
    return crate::catalog::DRIVERS.filters;
    #[cfg(not(test))]
    HANDED_IN.get().copied().unwrap_or_default()
}

/// All drivers of filters, in the order of the documentation.
pub fn filter_drivers() -> &'static [&'static FilterDriver] {
    handed_in().list
}

/// The filter driver called `name`.
pub(crate) fn filter(name: &str) -> Option<&'static FilterDriver> {
    filter_drivers().iter().find(|driver| driver.name == name).copied()
}

/// The filter that the storage driver `name` is over a disk.
pub(crate) fn over_disk(name: &str) -> Option<&'static FilterDriver> {
    handed_in().of_storage.iter().find(|driver| driver.name == name).copied()
}
