//! Memory that all caches of a process share.
//!
//! Caches charge what they hold. When it is too much a hand goes round the caches: each is looked at in
//! proportion to what it has, and what was not used since the last look leaves. So memory goes to
//! the images that use it, by their needs.

use std::sync::{Arc, Weak};

use sync::Mutex;
use sync::atomic::{AtomicU64, Ordering};

use crate::store::Store;

/// Rounds of the hand at most: a slice is looked at twice in about two times
/// [`crate::store::TURN_PART`] rounds; beyond that everything is dirty.
const ROUNDS_MAX: usize = 3 * crate::store::TURN_PART;

/// A bound on memory, and who shares it.
#[derive(Debug)]
pub struct Budget {
    bytes_max: AtomicU64,
    used: AtomicU64,
    /// Locked before any cache's own lock.
    members: Mutex<Members>,
}

#[derive(Debug, Default)]
struct Members {
    stores: Vec<Weak<Store>>,
    hand: usize,
}

impl Budget {
    /// A budget of `bytes_max` bytes. Caches keep two slices each beyond it if need be.
    pub fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes_max: AtomicU64::new(bytes_max),
            used: AtomicU64::new(0),
            members: Mutex::default(),
        })
    }

    /// A budget that never ends.
    pub fn unlimited() -> Arc<Self> {
        Self::new(u64::MAX)
    }

    /// The bound in bytes.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Ordering::Relaxed)
    }

    /// Bytes that all who share it hold.
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Changes the bound; what is too much leaves before this returns, unless it is dirty.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
        self.make_room(0);
    }

    /// Charges `bytes` for as long as the result lives, and makes room for them. Never fails: the caller
    /// has the memory already.
    pub fn charge(self: &Arc<Self>, bytes: u64) -> Charge {
        self.make_room(bytes);
        self.adjust(0, bytes);
        Charge { budget: Arc::clone(self), bytes: AtomicU64::new(bytes) }
    }

    /// The same where that needs nothing to leave; `None` where it would.
    pub fn try_charge(self: &Arc<Self>, bytes: u64) -> Option<Charge> {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.bytes_max());
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(Charge { budget: Arc::clone(self), bytes: AtomicU64::new(bytes) })
    }

    /// Whether `more` bytes would be too many.
    pub fn is_short(&self, more: u64) -> bool {
        self.used_bytes().saturating_add(more) > self.bytes_max()
    }

    pub(crate) fn join(&self, store: &Arc<Store>) {
        let mut members = self.members.lock();
        members.stores.retain(|store| store.strong_count() > 0);
        members.stores.push(Arc::downgrade(store));
    }

    /// A member holds `now` bytes instead of `before`.
    pub(crate) fn adjust(&self, before: u64, now: u64) {
        // Modulo 2^64 a difference is a sum.
        self.used.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Lets slices leave until `more` bytes fit, or nothing can leave. The caller holds no lock of a
    /// cache.
    pub(crate) fn make_room(&self, more: u64) {
        if !self.is_short(more) {
            return;
        }
        let mut members = self.members.lock();
        for _ in 0..ROUNDS_MAX {
            let mut something_there = false;
            for _ in 0..members.stores.len() {
                let Some(store) = members.next() else { continue };
                something_there |= store.give_way();
                if !self.is_short(more) {
                    return;
                }
            }
            if !something_there {
                break;
            }
        }
        members.stores.iter().filter_map(Weak::upgrade).for_each(|store| store.crowd());
    }
}

impl Members {
    fn next(&mut self) -> Option<Arc<Store>> {
        self.hand = if self.hand + 1 < self.stores.len() { self.hand + 1 } else { 0 };
        self.stores.get(self.hand)?.upgrade()
    }
}

/// Memory charged to a budget until this is dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    bytes: AtomicU64,
}

impl Charge {
    /// The bytes that are charged.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Charges `bytes` from now on, and makes room where they are more than before.
    pub fn set(&self, bytes: u64) {
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        self.budget.make_room(bytes.saturating_sub(before));
        self.budget.adjust(before, bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.adjust(self.bytes(), 0);
    }
}
