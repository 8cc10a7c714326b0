//! The throttle groups of a process, by name.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use super::clock::{Clock, Monotonic};
use super::group::ThrottleGroup;

/// A registry of throttle groups: disks that name the same group share its buckets. Clones are handles of the
/// same registry. The default is the one that all disks of the process share.
#[derive(Clone, Debug)]
pub struct Groups {
    registry: Arc<Registry>,
}

#[derive(Debug)]
struct Registry {
    clock: Arc<dyn Clock>,
    /// A group lives as long as it is held: by its members, or by its maker.
    named: Mutex<BTreeMap<String, Weak<ThrottleGroup>>>,
}

impl Default for Groups {
    fn default() -> Self {
        static PROCESS: OnceLock<Groups> = OnceLock::new();
        PROCESS.get_or_init(|| Self::new(Arc::new(Monotonic::new()))).clone()
    }
}

impl Groups {
    /// A registry without groups, over a clock of its own.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { registry: Arc::new(Registry { clock, named: Mutex::default() }) }
    }

    /// The clock of all its groups, and of the disks that use it.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.registry.clock
    }

    /// The group called `name`, if there is one.
    pub fn find(&self, name: &str) -> Option<Arc<ThrottleGroup>> {
        self.registry.named.lock().get(name).and_then(Weak::upgrade)
    }

    /// The group called `name`; a group without limits if there is none yet. It lasts as long as it is
    /// held: keep it to keep a group that no disk is in.
    pub fn find_or_create(&self, name: &str) -> Arc<ThrottleGroup> {
        let mut named = self.registry.named.lock();
        if let Some(group) = named.get(name).and_then(Weak::upgrade) {
            return group;
        }
        let group = ThrottleGroup::new(Some(name.to_owned()), Arc::clone(&self.registry.clock));
        named.retain(|_, group| group.strong_count() > 0);
        named.insert(name.to_owned(), Arc::downgrade(&group));
        group
    }

    /// All groups that have a name, by name.
    pub fn list(&self) -> Vec<Arc<ThrottleGroup>> {
        self.registry.named.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// A group for one disk alone.
    pub(super) fn anonymous(&self) -> Arc<ThrottleGroup> {
        ThrottleGroup::new(None, Arc::clone(&self.registry.clock))
    }
}
