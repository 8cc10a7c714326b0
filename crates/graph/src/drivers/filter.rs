//! Filters over disks: what a driver of one brings.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use block::{Blame, Block, Error};

use crate::child::Child;
use crate::options::{OptionError, Reader, Spec};

/// A driver of a filter. Its disks below are options of its own; what else is said of an image is said of the first of them.
#[derive(Debug)]
pub struct FilterDriver {
    /// What options call it.
    pub name: &'static str,
    /// The disks that it is put over, the one that it mainly stands for first.
    pub children: &'static [Role],
    /// Its options, those for the disks below among them.
    pub specs: fn() -> Vec<&'static Spec>,
    /// Takes its options but those for the disks below, checked.
    pub read: fn(&mut Reader) -> Result<Arc<dyn MakeFilter>, OptionError>,
}

/// What a disk below a filter is to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Role {
    /// The option that names it.
    pub name: &'static str,
    /// It is written whatever the filter is open for.
    pub is_target: bool,
    /// Nobody else may use it: what does not pass the filter would make it wrong.
    pub is_alone: bool,
    /// Another one can be put there while the filter is at work.
    pub changes: bool,
}

impl Role {
    /// The disk that a filter mainly stands for.
    pub(crate) const FILE: Self = Self { name: "file", is_target: false, is_alone: false, changes: true };
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

    /// Whether the first disk takes compressed clusters.
    pub(crate) fn compresses(&self) -> bool {
        self.list.first().is_some_and(|(_, child)| child.disk().layers().compressing().is_some())
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
