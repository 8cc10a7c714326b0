//! Which changes of the map must not reach the file before something else has.
//!
//! An L2 entry usually waits for its data and its cluster's refcount. One that leads to a fresh
//! cluster of the reserve, where there were zeroes before, waits for nothing: should its data be
//! lost in a crash, zeroes are what it leads to (docs/internals/write-order.md, "What need not wait").

use std::collections::BTreeSet;

use map_cache::SliceKey;
use sync::Mutex;
use sync::atomic::{AtomicBool, Ordering};

/// What must be on disk before a changed entry may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing: the old content of what it leads to is what was there before.
    Nothing,
    /// Data and refcounts that came before.
    Barrier,
}

/// Slices with entries that wait for a barrier, and whether L1 entries do.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    slices: Mutex<BTreeSet<SliceKey>>,
    l1: AtomicBool,
}

/// What waited when a commit started.
#[derive(Debug, Default)]
pub(crate) struct Waited {
    slices: BTreeSet<SliceKey>,
    pub(crate) l1: bool,
}

impl Waiting {
    /// Call it before the slice changes.
    pub(crate) fn slice(&self, key: SliceKey) {
        self.slices.lock().insert(key);
    }

    /// Call it before the L1 entry changes.
    pub(crate) fn l1(&self) {
        self.l1.store(true, Ordering::Release);
    }

    /// Whether anything waits.
    pub(crate) fn any(&self) -> bool {
        self.has_l1() || !self.slices.lock().is_empty()
    }

    /// Whether the slice has entries that wait. Call it after copying the slice.
    pub(crate) fn has(&self, key: SliceKey) -> bool {
        self.slices.lock().contains(&key)
    }

    /// Whether L1 entries wait. Call it after copying them.
    pub(crate) fn has_l1(&self) -> bool {
        self.l1.load(Ordering::Acquire)
    }

    /// What the commit that starts now has to wait for. Call it after copying the tables: what was
    /// changed before they were copied was marked before that. What is changed later belongs to the next
    /// commit, and its data is on disk when this one ends: so its mark may be taken.
    pub(crate) fn take(&self) -> Waited {
        let slices = std::mem::take(&mut *self.slices.lock());
        Waited { slices, l1: self.l1.swap(false, Ordering::AcqRel) }
    }

    /// The commit failed.
    pub(crate) fn put_back(&self, waited: Waited) {
        self.slices.lock().extend(waited.slices);
        if waited.l1 {
            self.l1();
        }
    }
}

impl Waited {
    pub(crate) fn has(&self, key: SliceKey) -> bool {
        self.slices.contains(&key)
    }
}
