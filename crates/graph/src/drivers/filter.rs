//! Filters over disks: what a driver of one brings.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use block::{Blame, Block, Error};
use serde_json::{Map, Value};

use crate::child::Child;
use crate::drive::{Entry, OptionTree};
use crate::nodes::DescriptionError;
use crate::options::{OptionError, Reader, Spec};

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
    pub(crate) fn roles(&self) -> &'static [Role] {
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

    /// The disks that `options`, as those of blockdev-add, say, each with its role.
    ///
    /// # Errors
    /// When one is missing, or there are too many.
    pub(crate) fn of_json<'a>(
        &self,
        options: &'a Map<String, Value>,
    ) -> Result<Vec<(Role, &'a Value)>, DescriptionError> {
        let missing = |argument| DescriptionError::Missing { argument };
        match self {
            Self::Named(roles) => {
                let given = |role: &Role| Some((*role, options.get(role.name)?));
                roles.iter().map(|role| given(role).ok_or_else(|| missing(role.name))).collect()
            }
            Self::List { option, roles } => {
                let list = options.get(*option).and_then(Value::as_array).ok_or_else(|| missing(option))?;
                match list.len() {
                    0 => Err(missing(option)),
                    found if found > roles.len() => {
                        Err(DescriptionError::TooMany { argument: option, found, max: roles.len() })
                    }
                    _ => Ok(roles.iter().copied().zip(list).collect()),
                }
            }
        }
    }

    /// The same of a drive line, whose options for them are taken from `tree`. What was not given is `None`.
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
    pub(crate) const FILE: Self = Self { name: "file", is_target: false, alone: Alone::No, changes: true };
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
    fn make(&self, below: &Below) -> Result<Arc<dyn Block>, Error>;
}

/// The disks below a filter, by role.
#[derive(Debug)]
pub struct Below {
    pub(crate) list: Vec<(&'static str, Arc<Child>)>,
    /// What the bitmap has as dirty that [`MakeFilter::bitmap`] names.
    pub(crate) marked: Option<Vec<Range<u64>>>,
    /// What the uppermost image of the first disk is called: it has its node's name.
    pub(crate) top_name: Option<String>,
}

impl Below {
    /// The disk of this role.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn get(&self, role: &'static str) -> Result<Arc<dyn Block>, Error> {
        let found = self.list.iter().find(|(name, _)| *name == role);
        let found = found.map(|(_, child)| Arc::clone(child) as Arc<dyn Block>);
        found.ok_or_else(|| Blame::new("a filter").invalid(format!("option {role} is missing")))
    }

    /// All disks, in their order.
    pub(crate) fn all(&self) -> Vec<Arc<dyn Block>> {
        self.list.iter().map(|(_, child)| Arc::clone(child) as Arc<dyn Block>).collect()
    }

    /// Whether the first disk takes compressed clusters, or is a filter, which hands them on where it can.
    pub(crate) fn compresses(&self) -> bool {
        self.list.first().is_some_and(|(_, child)| {
            let layers = child.disk().layers();
            layers.compressing().is_some() || layers.first().is_some_and(|layer| layer.files.is_none())
        })
    }

    /// How many images of the first disk there are from the uppermost one down to that called `name`; `None` if none is called so.
    pub(crate) fn images_down_to(&self, name: &str) -> Option<u32> {
        let (_, child) = self.list.first()?;
        if self.top_name.as_deref() == Some(name) {
            return Some(1);
        }
        let layers = child.disk().layers();
        let images = layers.list.iter().filter(|layer| layer.files.is_some());
        let place = images.skip(1).position(|layer| layer.own_name().as_deref() == Some(name))?;
        u32::try_from(place + 2).ok()
    }
}

/// There is one driver of a name.
impl PartialEq for FilterDriver {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for FilterDriver {}

/// Compares the options of two filters of one kind, which `first_fixed` does.
pub(crate) fn difference<M: MakeFilter>(
    own: &M,
    other: &dyn MakeFilter,
    first_fixed: impl FnOnce(&M, &M) -> Option<String>,
) -> Option<String> {
    match (other as &dyn Any).downcast_ref::<M>() {
        Some(other) => first_fixed(own, other),
        None => Some("driver".to_owned()),
    }
}
