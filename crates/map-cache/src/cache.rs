//! The cache of one image's map.

use std::ops::Range;

use sync::Arc;
use sync::atomic::{AtomicU64, Ordering};

use crate::budget::Budget;
use crate::counters::Counters;
use crate::directory::SliceKey;
use crate::loads::{Load, LoadTicket, Loads};
use crate::packing::Packing;
use crate::plain::Modify;
use crate::store::{Slice, Store};

/// Size and shape of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Slices of one L2 table: a power of two up to 4096.
    pub slices_per_table: usize,
    /// Bytes of memory at most, everything included; more while all of it is dirty, and two slices in any
    /// case.
    pub bytes_max: u64,
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
    /// Those of them that the storage may not have, in one range: the others it has as they are.
    pub changed: Range<usize>,
}

impl Dirty {
    /// Which slice.
    pub fn key(&self) -> SliceKey {
        self.slice.key()
    }
}

/// L2 slices of one image, with `E` as the error of failed loads.
///
/// Dirty slices never leave on their own: [`MapCache::copy_dirty`] copies their contents, the engine
/// writes them in order, and [`MapCache::written`] makes them evictable again.
#[derive(Debug)]
pub struct MapCache<E> {
    store: Arc<Store>,
    loads: Loads<E>,
    misses: AtomicU64,
    loaded: AtomicU64,
    loaded_bytes: AtomicU64,
    coalesced: AtomicU64,
    write_backs: AtomicU64,
}

impl<E: Clone> MapCache<E> {
    /// An empty cache of tables whose entries are as `packing` says, in a share of `budget`.
    pub fn new(limits: CacheLimits, packing: Packing, budget: &Arc<Budget>) -> Self {
        Self {
            store: Store::new(limits.slices_per_table, packing, limits.bytes_max, budget),
            loads: Loads::new(),
            misses: AtomicU64::new(0),
            loaded: AtomicU64::new(0),
            loaded_bytes: AtomicU64::new(0),
            coalesced: AtomicU64::new(0),
            write_backs: AtomicU64::new(0),
        }
    }

    /// Reads from a slice in memory, without a lock; `None` is a miss.
    #[inline]
    pub fn with<T>(&self, key: SliceKey, read: impl FnOnce(&Slice) -> T) -> Option<T> {
        let chunk = self.store.chunk(key)?.load();
        let slice = chunk.as_ref()?.get(key)?;
        slice.touch();
        self.store.hits.add(1);
        Some(read(slice))
    }

    /// Bytes that a slice in memory takes; `None` where it is not.
    pub fn slice_bytes(&self, key: SliceKey) -> Option<u64> {
        Some(self.store.find(key)?.bytes())
    }

    /// Decides who loads a slice that [`MapCache::with`] did not find.
    pub fn load(&self, key: SliceKey) -> Load<'_, E> {
        self.misses.fetch_add(1, Ordering::Relaxed);
        let load = self.loads.join(key);
        match &load {
            // Between the miss and the ticket a task may have finished the load.
            Load::Lead(_) if self.store.find(key).is_some() => Load::Present,
            Load::Wait(_) => {
                self.coalesced.fetch_add(1, Ordering::Relaxed);
                load
            }
            _ => load,
        }
    }

    /// The right to load a slice that was not requested yet; `None` if it is in memory or being loaded.
    pub fn try_lead(&self, key: SliceKey) -> Option<LoadTicket<'_, E>> {
        if self.store.find(key).is_some() {
            return None;
        }
        // Between the look and the ticket a task may have finished the load.
        self.loads.try_lead(key).filter(|_| self.store.find(key).is_none())
    }

    /// Puts a slice into memory, whatever loads are under way, and makes room for it.
    pub fn insert(&self, key: SliceKey, words: impl Iterator<Item = u64>) {
        self.insert_unless(key, words, || false);
    }

    fn insert_unless(
        &self,
        key: SliceKey,
        words: impl Iterator<Item = u64>,
        is_stale: impl FnOnce() -> bool,
    ) {
        let words: Vec<u64> = words.collect();
        self.loaded.fetch_add(1, Ordering::Relaxed);
        self.loaded_bytes.fetch_add(words.len() as u64 * 8, Ordering::Relaxed);
        self.store.insert(key, &words, is_stale);
    }

    /// Ends a load with what was read: the slice, or an error, which all requests that wait for it get too.
    pub fn land(
        &self,
        ticket: LoadTicket<'_, E>,
        read: Result<impl IntoIterator<Item = u64>, E>,
    ) -> Result<(), E> {
        match read {
            Ok(words) => {
                self.insert_loaded(ticket, words.into_iter());
                Ok(())
            }
            Err(error) => {
                ticket.fail(error.clone());
                Err(error)
            }
        }
    }

    /// Ends a load that went well. The slice comes into memory unless its table was forgotten meanwhile
    /// ([`MapCache::forget_tables`]).
    pub fn insert_loaded(&self, ticket: LoadTicket<'_, E>, words: impl Iterator<Item = u64>) {
        self.insert_unless(ticket.key(), words, || ticket.is_stale());
        // After the insertion: waiting requests look again and find it.
        drop(ticket);
    }

    /// Forgets all slices of the tables of these L1 entries, clean or dirty, and keeps loads of them that are under way from
    /// landing. For code that removes a table from L1: first the L1 entry changes, then this is called, and from then on no
    /// look-up finds a slice of the old table. A load takes its ticket first and looks at L1 after that, so that it finds
    /// the new entry or is kept from landing.
    ///
    /// Costs a look at every slot of one table, or at every slice in memory where there is something to forget.
    pub fn forget_tables(&self, tables: Range<u32>) {
        self.loads.forget_tables(tables.clone());
        self.store.forget_tables(tables);
    }

    /// As [`MapCache::forget_tables`], for all there are.
    pub fn forget_all(&self) {
        self.forget_tables(0..u32::MAX);
    }

    /// Modifies a slice in memory and marks it dirty. A packed one is replaced by a plain one first.
    pub fn modify(&self, key: SliceKey, modify: impl FnOnce(&mut Modify<'_>)) -> Outcome {
        loop {
            let Some(slice) = self.store.find(key) else { return Outcome::Gone };
            slice.touch();
            let Some(plain) = slice.plain() else {
                self.store.unpack(&slice);
                continue;
            };
            let Some(mut modification) = plain.modify() else {
                self.store.wait_for_seal();
                continue;
            };
            modify(&mut modification);
            if !modification.was_dirty() {
                self.store.mark_dirty(&slice);
            }
            return Outcome::Modified;
        }
    }

    /// Number of dirty slices.
    pub fn dirty_slices(&self) -> usize {
        self.store.dirty_count()
    }

    /// Whether slices must be written to make room: the cache holds more than it should, because all
    /// of it is dirty. A cache that covers its disk never gets there.
    pub fn wants_write_back(&self) -> bool {
        self.store.is_crowded()
    }

    /// Copies every dirty slice, in the order of the guest's addresses.
    pub fn copy_dirty(&self) -> Vec<Dirty> {
        let copy = |slice: Arc<Slice>| {
            let (words, modified, changed) = slice.plain()?.copy();
            Some(Dirty { slice, modified, words, changed })
        };
        self.store.dirty().into_iter().filter_map(copy).collect()
    }

    /// Says that the storage holds these copies; those not modified since become evictable.
    pub fn written(&self, copies: &[Dirty]) {
        for copy in copies {
            if let Some(plain) = copy.slice.plain() {
                plain.written(copy.modified, || self.store.mark_clean(&copy.slice));
            }
        }
        self.store.relieve();
        self.write_backs.fetch_add(copies.len() as u64, Ordering::Relaxed);
    }

    /// Packs slices that were written back and not modified since the last call. Returns how many.
    pub fn pack_idle(&self) -> usize {
        self.store.pack_idle()
    }

    /// Drops every clean slice that was not used since the last call. Returns how many went.
    pub fn clean(&self) -> usize {
        self.store.drop_slices(|slice| !slice.take_used())
    }

    /// Drops every clean slice. Returns how many went.
    pub fn clear(&self) -> usize {
        self.store.drop_slices(|_| true)
    }

    /// [`CacheLimits::bytes_max`] as it is now.
    pub fn bytes_max(&self) -> u64 {
        self.store.bytes_max()
    }

    /// Changes [`CacheLimits::bytes_max`]; what is too much leaves before this returns, unless it is
    /// dirty.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        self.store.set_bytes_max(bytes_max);
    }

    /// Changes [`CacheLimits::slices_per_table`], and with it what every key means: no task may use the
    /// cache meanwhile, and loads under way do not land. Returns whether it did: not while a slice is in memory.
    pub fn reshape(&self, slices_per_table: usize) -> bool {
        self.loads.forget_tables(0..u32::MAX);
        self.store.reshape(slices_per_table)
    }

    /// What the cache did and holds.
    pub fn counters(&self) -> Counters {
        let holdings = self.store.holdings();
        Counters {
            hits: self.store.hits.sum(),
            misses: self.misses.load(Ordering::Relaxed),
            loads: self.loaded.load(Ordering::Relaxed),
            loaded_bytes: self.loaded_bytes.load(Ordering::Relaxed),
            coalesced_loads: self.coalesced.load(Ordering::Relaxed),
            evictions: holdings.evictions,
            write_backs: self.write_backs.load(Ordering::Relaxed),
            packed_slices: holdings.packed,
            resident_slices: holdings.slices as u64,
            resident_bytes: holdings.bytes,
            bytes_max: self.store.bytes_max(),
            bytes_by_form: holdings.by_form,
            dirty_slices: self.dirty_slices() as u64,
            ghost_hits: holdings.ghost_hits,
        }
    }
}
