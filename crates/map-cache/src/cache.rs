//! The cache of one image's map.

use std::collections::BTreeMap;

use sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use sync::{Arc, Mutex};

use crate::clock::Clock;
use crate::counters::{Counters, Striped};
use crate::directory::Directory;
use crate::loads::{Load, LoadTicket, Loads};
use crate::slice::{Modify, Slice, SliceKey};

/// Size and shape of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Entries of the L1 table.
    pub l1_entries: usize,
    /// Slices of one L2 table.
    pub slices_per_table: usize,
    /// Slices kept in memory; a few more while all of them are dirty.
    pub slices_max: usize,
}

/// Whether a modification may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    Modified,
    /// The slice left the cache meanwhile: load it and try again.
    Gone,
}

/// A dirty slice as it was when it was copied.
#[derive(Debug)]
pub struct Dirty {
    slice: Arc<Slice>,
    modified: u64,
    /// Its words.
    pub words: Vec<u64>,
}

impl Dirty {
    /// Which slice.
    pub fn key(&self) -> SliceKey {
        self.slice.key()
    }
}

/// L2 slices of one image, with `E` as the error of failed loads.
///
/// Dirty slices never leave on their own: [`MapCache::copy_dirty`] gives their contents to whoever
/// writes them in order, and [`MapCache::written`] makes them evictable again.
#[derive(Debug)]
pub struct MapCache<E> {
    directory: Directory,
    limits: CacheLimits,
    clock: Mutex<Clock>,
    /// Exactly the slices that are dirty. Changed under the lock of the slice in question, which comes
    /// before this one.
    dirty: Mutex<BTreeMap<SliceKey, Arc<Slice>>>,
    dirty_count: AtomicUsize,
    /// A slice came in and none could leave for it: all were dirty.
    crowded: AtomicBool,
    loads: Loads<E>,
    hits: Striped,
    misses: AtomicU64,
    loaded: AtomicU64,
    loaded_bytes: AtomicU64,
    coalesced: AtomicU64,
    evictions: AtomicU64,
    write_backs: AtomicU64,
    resident_bytes: AtomicU64,
}

impl<E: Clone> MapCache<E> {
    /// An empty cache.
    pub fn new(limits: CacheLimits) -> Self {
        Self {
            directory: Directory::new(limits.l1_entries, limits.slices_per_table),
            limits,
            clock: Mutex::new(Clock::default()),
            dirty: Mutex::new(BTreeMap::new()),
            dirty_count: AtomicUsize::new(0),
            crowded: AtomicBool::new(false),
            loads: Loads::new(),
            hits: Striped::default(),
            misses: AtomicU64::new(0),
            loaded: AtomicU64::new(0),
            loaded_bytes: AtomicU64::new(0),
            coalesced: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            write_backs: AtomicU64::new(0),
            resident_bytes: AtomicU64::new(0),
        }
    }

    /// Size and shape.
    pub fn limits(&self) -> CacheLimits {
        self.limits
    }

    /// Reads from a slice in memory, without a lock; `None` is a miss.
    #[inline]
    pub fn with<T>(&self, key: SliceKey, read: impl FnOnce(&Slice) -> T) -> Option<T> {
        let slot = self.directory.slot(key)?.load();
        let slice = slot.as_ref()?;
        slice.touch();
        self.hits.add(1);
        Some(read(slice))
    }

    /// Decides who loads a slice that [`MapCache::with`] did not find.
    pub fn load(&self, key: SliceKey) -> Load<'_, E> {
        self.misses.fetch_add(1, Ordering::Relaxed);
        let load = self.loads.join(key);
        match &load {
            // Between the miss and the ticket somebody may have finished the load.
            Load::Lead(_) if self.contains(key) => Load::Present,
            Load::Wait(_) => {
                self.coalesced.fetch_add(1, Ordering::Relaxed);
                load
            }
            _ => load,
        }
    }

    /// The right to load a slice that nobody asked for yet; `None` if it is in memory or being loaded.
    pub fn try_lead(&self, key: SliceKey) -> Option<LoadTicket<'_, E>> {
        if self.contains(key) {
            return None;
        }
        // Between the look and the ticket somebody may have finished the load.
        self.loads.try_lead(key).filter(|_| !self.contains(key))
    }

    fn contains(&self, key: SliceKey) -> bool {
        self.directory.slot(key).is_some_and(|slot| slot.load().is_some())
    }

    /// Puts a slice into memory, as loaded by the holder of its ticket, and makes room for it.
    pub fn insert(&self, key: SliceKey, words: impl Iterator<Item = u64>) {
        let Some(slot) = self.directory.slot_or_new(key) else { return };
        let slice = Arc::new(Slice::new(key, words));
        self.loaded.fetch_add(1, Ordering::Relaxed);
        self.loaded_bytes.fetch_add(slice.len() as u64 * 8, Ordering::Relaxed);
        self.resident_bytes.fetch_add(slice.footprint(), Ordering::Relaxed);
        let mut clock = self.clock.lock();
        while clock.len() >= self.limits.slices_max {
            let Some(victim) = clock.evict() else {
                self.crowded.store(true, Ordering::Relaxed);
                break;
            };
            self.forget(&victim);
        }
        slot.store(Some(Arc::clone(&slice)));
        clock.insert(slice);
    }

    /// Empties the slot of an evicted slice. Called under the clock's lock, so that a newer slice
    /// of the same key cannot be in the slot.
    fn forget(&self, victim: &Slice) {
        if let Some(slot) = self.directory.slot(victim.key()) {
            slot.store(None);
        }
        self.evictions.fetch_add(1, Ordering::Relaxed);
        self.resident_bytes.fetch_sub(victim.footprint(), Ordering::Relaxed);
    }

    /// Modifies a slice in memory and marks it dirty.
    pub fn modify(&self, key: SliceKey, modify: impl FnOnce(&mut Modify<'_>)) -> Outcome {
        let Some(slice) = self.directory.slot(key).and_then(|slot| slot.load_full()) else {
            return Outcome::Gone;
        };
        slice.touch();
        let Some(mut modification) = slice.modify() else {
            // Whoever evicts it empties the slot under this lock: the next look-up is a miss, and does
            // not find the same slice again and again.
            drop(self.clock.lock());
            return Outcome::Gone;
        };
        modify(&mut modification);
        if !modification.was_dirty() {
            self.mark_dirty(key, &slice);
        }
        drop(modification);
        Outcome::Modified
    }

    /// Enters a slice into the dirty set while its modification is still hidden from everybody: whoever
    /// sees it may build on it (write to a cluster that it leads to) and flush, and that flush must find
    /// the slice.
    fn mark_dirty(&self, key: SliceKey, slice: &Arc<Slice>) {
        let mut dirty = self.dirty.lock();
        dirty.insert(key, Arc::clone(slice));
        self.dirty_count.store(dirty.len(), Ordering::Relaxed);
    }

    /// Number of dirty slices.
    pub fn dirty_slices(&self) -> usize {
        self.dirty_count.load(Ordering::Relaxed)
    }

    /// Whether slices must be written to make room: the cache holds more than it should, because all
    /// of it is dirty. A cache that covers its disk never gets there.
    pub fn wants_write_back(&self) -> bool {
        self.crowded.load(Ordering::Relaxed)
    }

    /// Copies every dirty slice, in the order of the guest's addresses.
    pub fn copy_dirty(&self) -> Vec<Dirty> {
        let slices: Vec<_> = self.dirty.lock().values().cloned().collect();
        slices
            .into_iter()
            .map(|slice| {
                let (words, modified) = slice.copy();
                Dirty { slice, modified, words }
            })
            .collect()
    }

    /// Says that the storage holds these copies; those not modified since become evictable.
    pub fn written(&self, copies: &[Dirty]) {
        for copy in copies {
            copy.slice.written(copy.modified, || {
                let mut dirty = self.dirty.lock();
                dirty.remove(&copy.key());
                self.dirty_count.store(dirty.len(), Ordering::Relaxed);
            });
        }
        self.crowded.store(false, Ordering::Relaxed);
        self.write_backs.fetch_add(copies.len() as u64, Ordering::Relaxed);
    }

    /// Drops every clean slice that was not used since the last call. Returns how many went.
    pub fn clean(&self) -> usize {
        self.drop_slices(|slice| !slice.take_used())
    }

    /// Drops every clean slice. Returns how many went.
    pub fn clear(&self) -> usize {
        self.drop_slices(|_| true)
    }

    fn drop_slices(&self, unwanted: impl FnMut(&Slice) -> bool) -> usize {
        let mut clock = self.clock.lock();
        let gone = clock.retain(unwanted);
        gone.iter().for_each(|slice| self.forget(slice));
        gone.len()
    }

    /// What the cache did and holds.
    pub fn counters(&self) -> Counters {
        Counters {
            hits: self.hits.sum(),
            misses: self.misses.load(Ordering::Relaxed),
            loads: self.loaded.load(Ordering::Relaxed),
            loaded_bytes: self.loaded_bytes.load(Ordering::Relaxed),
            coalesced_loads: self.coalesced.load(Ordering::Relaxed),
            evictions: self.evictions.load(Ordering::Relaxed),
            write_backs: self.write_backs.load(Ordering::Relaxed),
            resident_slices: self.clock.lock().len() as u64,
            resident_bytes: self.resident_bytes.load(Ordering::Relaxed),
            dirty_slices: self.dirty_slices() as u64,
        }
    }
}
