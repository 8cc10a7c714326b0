//! A filter over disks as a node: what it is over.

use std::ops::Range;
use std::sync::Arc;

use block::Block;
use parking_lot::Mutex;

use super::name::NodeName;
use crate::child::Child;
use crate::drivers::{Alone, Children, FilterDriver, MakeFilter, Role};
use crate::filtered::Filtered;

/// What a filter is over.
#[derive(Debug)]
pub struct FilterNode {
    /// Its driver.
    pub driver: &'static FilterDriver,
    pub(super) makes: Arc<dyn MakeFilter>,
    /// Those of a list may become more or fewer ([`Graph::change_children`]).
    pub(super) below: Mutex<Vec<Arc<NodeBelow>>>,
}

/// A node below a filter.
#[derive(Debug)]
pub(super) struct NodeBelow {
    pub(super) role: Role,
    pub(super) child: Arc<Child>,
    /// What it is called: another one may be put there.
    pub(super) name: Mutex<NodeName>,
}

impl FilterNode {
    /// The nodes below, each with its role.
    pub fn below(&self) -> Vec<(&'static str, String)> {
        self.list().iter().map(|below| (below.role.name, below.name())).collect()
    }

    pub(super) fn list(&self) -> Vec<Arc<NodeBelow>> {
        self.below.lock().clone()
    }

    /// The disks below, as it sees them.
    pub(super) fn children(&self) -> Vec<Arc<Child>> {
        self.list().iter().map(|below| Arc::clone(&below.child)).collect()
    }

    /// The throttle group that its disk is in.
    pub(super) fn group(&self) -> Option<&str> {
        self.makes.group()
    }

    /// Whether the node called `name` is below it.
    pub(super) fn uses(&self, name: &str) -> bool {
        self.below.lock().iter().any(|below| below.name.lock().is(name))
    }

    /// When no one else may write to the node called `name`, which is perhaps below it.
    pub(super) fn needs_alone(&self, name: &str) -> Alone {
        let below = self.below.lock();
        below.iter().find(|below| below.name.lock().is(name)).map_or(Alone::No, |below| below.role.alone)
    }

    /// Whether it is over a list of disks that have the same content.
    pub(super) fn is_over_list(&self) -> bool {
        matches!(self.driver.children, Children::List { .. })
    }

    /// The nodes below of which this is to be so.
    pub(super) fn names(&self, is_so: impl Fn(Alone) -> bool) -> Vec<String> {
        self.list().iter().filter(|below| is_so(below.role.alone)).map(|below| below.name()).collect()
    }

    /// The filter over the disks of `list`.
    pub(super) fn over(
        &self,
        list: &[Arc<NodeBelow>],
        marked: Option<Vec<Range<u64>>>,
    ) -> Result<Arc<dyn Block>, block::Error> {
        let top_name = list.first().map(|below| below.name());
        let list = list.iter().map(|below| (below.role.name, Arc::clone(&below.child))).collect();
        self.makes.make(&Filtered { list, marked, top_name })
    }
}

impl NodeBelow {
    pub(super) fn name(&self) -> String {
        self.name.lock().get()
    }
}
