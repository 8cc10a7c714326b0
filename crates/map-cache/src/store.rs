//! The slices of one cache, and what they may take.

mod eviction;

use std::collections::BTreeMap;
use std::ops::{Bound, Range};

use sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use sync::{Arc, Mutex, MutexGuard};

use crate::budget::Budget;
use crate::counters::Striped;
use crate::directory::{Directory, Place, SliceKey};
use crate::footprint::{self, ARC_COUNTS, allocation, map_entry};
use crate::ghosts::{GhostHits, Ghosts};
use crate::packing::{Column, Form, Packing};
use crate::plain::Plain;
use crate::queue::{Moment, Queue};

/// Clean slices that a cache keeps whatever they take: a request that needs two at a time must get on,
/// also while everything else is dirty.
pub(crate) const SLICES_MIN: usize = 2;

/// Each sweep of the budget examines this part of a cache's slices.
pub(crate) const TURN_PART: usize = 64;

/// Bytes of an entry in the maps of plain and of dirty slices.
const MAP_ENTRY: u64 = map_entry(size_of::<(SliceKey, Arc<Slice>)>());

/// What is in memory, and for how long.
#[derive(Debug)]
pub(crate) struct Store {
    directory: Directory<Slice>,
    packing: Packing,
    budget: Arc<Budget>,
    bytes_max: AtomicU64,
    /// The directory changes under this lock alone. The locks of slices come after it.
    residents: Mutex<Residents>,
    /// Exactly the slices that are dirty. Changed under the lock of the slice in question, which comes
    /// before this one.
    dirty: Mutex<BTreeMap<SliceKey, Arc<Slice>>>,
    dirty_count: AtomicUsize,
    /// A slice came in and none could leave for it: all were dirty.
    crowded: AtomicBool,
    pub(crate) hits: Striped,
}

#[derive(Debug, Default)]
struct Residents {
    queue: Queue,
    ghosts: Ghosts,
    /// Exactly the slices that are not packed.
    plain: BTreeMap<SliceKey, Arc<Slice>>,
    /// Where the search for one of them that can be packed goes on: a search from the start would meet all
    /// that are dirty again and again.
    pack_hand: Option<SliceKey>,
    by_form: [u64; Form::ALL.len()],
    evictions: u64,
    packed: u64,
    /// What the budget knows of.
    charged: u64,
    /// Looks that the budget's hand owes this cache, in parts of [`TURN_PART`].
    owed: usize,
}

impl Residents {
    fn enter(&mut self, slice: &Arc<Slice>) {
        slice.footprint().iter().for_each(|(form, bytes)| self.by_form[*form as usize] += bytes);
        if slice.plain().is_some() {
            self.plain.insert(slice.key(), Arc::clone(slice));
        }
    }

    fn moment(&self) -> Moment {
        self.ghosts.moment(self.by_form.iter().sum())
    }

    fn leave(&mut self, slice: &Slice) {
        slice.footprint().iter().for_each(|(form, bytes)| self.by_form[*form as usize] -= bytes);
        if slice.plain().is_some() {
            self.plain.remove(&slice.key());
        }
    }
}

/// What a store holds and did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holdings {
    pub(crate) slices: usize,
    pub(crate) bytes: u64,
    pub(crate) by_form: [u64; Form::ALL.len()],
    pub(crate) evictions: u64,
    pub(crate) packed: u64,
    pub(crate) ghost_hits: GhostHits,
}

impl Store {
    pub(crate) fn new(
        slices_per_table: usize,
        packing: Packing,
        bytes_max: u64,
        budget: &Arc<Budget>,
    ) -> Arc<Self> {
        let store = Arc::new(Self {
            directory: Directory::new(slices_per_table),
            packing,
            budget: Arc::clone(budget),
            bytes_max: AtomicU64::new(bytes_max),
            residents: Mutex::default(),
            dirty: Mutex::default(),
            dirty_count: AtomicUsize::new(0),
            crowded: AtomicBool::new(false),
            hits: Striped::default(),
        });
        store.settle(&mut store.residents.lock());
        budget.join(&store);
        store
    }

    #[inline]
    pub(crate) fn chunk(&self, key: SliceKey) -> Option<&Place<Slice>> {
        self.directory.chunk(key)
    }

    pub(crate) fn find(&self, key: SliceKey) -> Option<Arc<Slice>> {
        self.directory.find(key)
    }

    /// Puts a slice into memory, in place of what is there under its key, unless it `is_stale`: that is asked under
    /// the lock that [`Store::forget_tables`] takes, so a slice is refused, or forgotten after it came in.
    pub(crate) fn insert(&self, key: SliceKey, words: &[u64], is_stale: impl FnOnce() -> bool) {
        let slice = Arc::new(Slice::pack(key, words, &self.packing));
        let mut residents = self.residents.lock();
        if is_stale() {
            return;
        }
        let old = self.find(key);
        if !self.directory.put(key, Arc::clone(&slice)) {
            return;
        }
        match old {
            Some(old) => residents.leave(&old),
            None => self.enqueue(&mut residents, key),
        }
        residents.enter(&slice);
        // Afterwards, so that what directory and queues grew by is in it.
        self.make_room(&mut residents, 0, Some(key));
        self.settle(&mut residents);
        drop(residents);
        self.budget.make_room(0);
    }

    fn enqueue(&self, residents: &mut Residents, key: SliceKey) {
        let away = residents.ghosts.take(key);
        let moment = residents.moment();
        let take_use = |other| self.find(other).is_some_and(|slice| slice.take_visited());
        residents.queue.insert(key, moment, away, take_use);
    }

    /// Lets a plain copy of `packed` take its place, unless something else is there by now. It was used
    /// as much, and no word is missed: readers of the packed slice see the entries from before.
    pub(crate) fn unpack(&self, packed: &Arc<Slice>) {
        let plain = Arc::new(packed.unpack());
        // In the maps, too: `total` counts it there.
        let more = (plain.bytes() + 2 * MAP_ENTRY).saturating_sub(packed.bytes());
        self.budget.make_room(more);
        let mut residents = self.residents.lock();
        // Before the swap: a plain slice that is not dirty yet would be the first to be packed again.
        self.make_room(&mut residents, more, Some(packed.key()));
        self.swap(&mut residents, packed, plain);
        self.settle(&mut residents);
    }

    /// `new` in place of `old`, if that is still there.
    fn swap(&self, residents: &mut Residents, old: &Arc<Slice>, new: Arc<Slice>) -> bool {
        let there = self.find(old.key()).is_some_and(|there| Arc::ptr_eq(&there, old));
        if there {
            new.inherit(old);
            residents.leave(old);
            residents.enter(&new);
            self.directory.put(old.key(), new);
        }
        there
    }

    /// Waits until a sealed slice has been replaced.
    pub(crate) fn wait_for_seal(&self) {
        drop(self.residents.lock());
    }

    /// Packs plain slices that are clean and were not modified since the last call.
    pub(crate) fn pack_idle(&self) -> usize {
        let plain: Vec<_> = self.residents.lock().plain.values().cloned().collect();
        let mut packed = 0;
        for slice in plain {
            let mut residents = self.residents.lock();
            if slice.plain().is_some_and(|plain| plain.seal_if_idle()) {
                self.pack(&mut residents, &slice);
                self.settle(&mut residents);
                packed += 1;
            }
        }
        packed
    }

    /// Packs one plain slice that is clean, if there is one.
    fn pack_clean(&self, residents: &mut Residents) -> bool {
        // Otherwise every lock of a dirty slice would be taken in vain.
        if residents.plain.len() <= self.dirty_count.load(Ordering::Relaxed) {
            return false;
        }
        let sealed = |slice: &&Arc<Slice>| slice.plain().is_some_and(|plain| plain.seal());
        let from = residents.pack_hand.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = residents.plain.range((from, Bound::Unbounded));
        let mut all = behind.chain(&residents.plain).map(|(_, slice)| slice);
        let Some(slice) = all.find(sealed).cloned() else { return false };
        residents.pack_hand = Some(slice.key());
        self.pack(residents, &slice);
        true
    }

    /// Packs a slice whose words were sealed under the lock that is held.
    fn pack(&self, residents: &mut Residents, slice: &Arc<Slice>) {
        let Some(plain) = slice.plain() else { return };
        let packed = Arc::new(Slice::pack(slice.key(), &plain.sealed_words(), &self.packing));
        if self.swap(residents, slice, packed) {
            residents.packed += 1;
        }
    }

    /// Lets every clean slice leave that `unwanted` names.
    pub(crate) fn drop_slices(&self, unwanted: impl Fn(&Slice) -> bool) -> usize {
        let mut residents = self.residents.lock();
        let mut gone = Vec::new();
        residents.queue.remove(|key| {
            let Some(slice) = self.find(key) else { return true };
            let leaves = unwanted(&slice) && slice.plain().is_none_or(|plain| plain.seal());
            if leaves {
                gone.push(slice);
            }
            leaves
        });
        self.directory.take_all_out(gone.iter().map(|slice| slice.key()));
        gone.iter().for_each(|slice| residents.leave(slice));
        residents.evictions += gone.len() as u64;
        self.settle(&mut residents);
        gone.len()
    }

    /// Takes out all slices of these tables, dirty ones too. They do not count as evicted, and leave no ghosts: no task
    /// will miss them.
    pub(crate) fn forget_tables(&self, tables: Range<u32>) {
        let mut residents = self.residents.lock();
        if tables.len() == 1 && !self.directory.has_any_of(tables.start) {
            return;
        }
        let mut gone = Vec::new();
        residents.queue.remove(|key| {
            let forgotten = tables.contains(&key.l1_index);
            gone.extend(self.find(key).filter(|_| forgotten));
            forgotten
        });
        for slice in &gone {
            if let Some(plain) = slice.plain() {
                plain.give_up(|| self.mark_clean(slice));
            }
            residents.leave(slice);
        }
        self.directory.take_all_out(gone.iter().map(|slice| slice.key()));
        self.settle(&mut residents);
    }

    /// Changes the ceiling; what is too much leaves unless it is dirty.
    pub(crate) fn set_bytes_max(&self, bytes_max: u64) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
        let mut residents = self.residents.lock();
        self.make_room(&mut residents, 0, None);
        self.settle(&mut residents);
    }

    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Ordering::Relaxed)
    }

    /// Cuts tables anew once nothing is left in memory. Returns whether it did.
    pub(crate) fn reshape(&self, slices_per_table: usize) -> bool {
        let residents = self.residents.lock();
        let empty = residents.queue.len() == 0;
        if empty {
            self.directory.reshape(slices_per_table);
        }
        empty
    }

    /// Everything that this cache takes, in bytes.
    fn total(&self, residents: &Residents) -> u64 {
        // A plain slice may be dirty, and then it is in both maps.
        let maps = 2 * residents.plain.len();
        allocation(size_of::<Self>() + ARC_COUNTS)
            + self.directory.footprint()
            + residents.by_form.iter().sum::<u64>()
            + residents.queue.footprint()
            + residents.ghosts.footprint()
            + maps as u64 * MAP_ENTRY
    }

    /// Tells the budget what this cache takes.
    fn settle(&self, residents: &mut MutexGuard<'_, Residents>) {
        let total = self.total(residents);
        self.budget.adjust(residents.charged, total);
        residents.charged = total;
    }

    pub(crate) fn holdings(&self) -> Holdings {
        let residents = self.residents.lock();
        Holdings {
            slices: residents.queue.len(),
            bytes: self.total(&residents),
            by_form: residents.by_form,
            evictions: residents.evictions,
            packed: residents.packed,
            ghost_hits: residents.ghosts.hits(),
        }
    }

    /// Enters a slice into the dirty set while its modification is still hidden from readers: a reader that
    /// sees it may build on it (write to a cluster that it leads to) and flush, and that flush must find
    /// the slice.
    pub(crate) fn mark_dirty(&self, slice: &Arc<Slice>) {
        let mut dirty = self.dirty.lock();
        dirty.insert(slice.key(), Arc::clone(slice));
        self.dirty_count.store(dirty.len(), Ordering::Relaxed);
    }

    /// Takes a slice out of the dirty set while no task can modify it.
    pub(crate) fn mark_clean(&self, slice: &Arc<Slice>) {
        let mut dirty = self.dirty.lock();
        if dirty.get(&slice.key()).is_some_and(|there| Arc::ptr_eq(there, slice)) {
            dirty.remove(&slice.key());
        }
        self.dirty_count.store(dirty.len(), Ordering::Relaxed);
    }

    pub(crate) fn dirty(&self) -> Vec<Arc<Slice>> {
        self.dirty.lock().values().cloned().collect()
    }

    pub(crate) fn dirty_count(&self) -> usize {
        self.dirty_count.load(Ordering::Relaxed)
    }

    /// Nothing can leave for want of room unless dirty slices are written.
    pub(crate) fn crowd(&self) {
        if self.dirty_count() > 0 {
            self.crowded.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed)
    }

    pub(crate) fn relieve(&self) {
        self.crowded.store(false, Ordering::Relaxed);
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let charged = self.residents.lock().charged;
        self.budget.adjust(charged, 0);
    }
}

/// Touched since eviction looked last.
const VISITED: u8 = 1;
/// Touched since the cleaner passed last.
const USED: u8 = 2;

/// The entries of one slice: packed, and then they never change, or plain.
#[derive(Debug)]
pub struct Slice {
    key: SliceKey,
    words: u32,
    touched: AtomicU8,
    body: Body,
}

#[derive(Debug)]
enum Body {
    One(Column),
    Two(Box<[Column; 2]>),
    Plain(Box<Plain>),
}

impl Slice {
    /// Packs `words`: whole entries, at most 2^31 of them.
    pub(crate) fn pack(key: SliceKey, words: &[u64], packing: &Packing) -> Self {
        let [first, second] = packing.columns();
        let body = match packing.width() {
            1 => Body::One(Column::pack(words, first)),
            _ => {
                let (entries, _) = words.as_chunks::<2>();
                let column = |at: usize| entries.iter().map(|entry| entry[at]).collect::<Vec<_>>();
                let columns = [Column::pack(&column(0), first), Column::pack(&column(1), second)];
                Body::Two(Box::new(columns))
            }
        };
        Self::new(key, words.len() as u32, body)
    }

    /// The same entries, to be modified.
    pub(crate) fn unpack(&self) -> Self {
        Self::new(self.key, self.words, Body::Plain(Box::new(Plain::new(self.to_words().into_iter()))))
    }

    fn new(key: SliceKey, words: u32, body: Body) -> Self {
        Self { key, words, touched: AtomicU8::new(USED), body }
    }

    /// Which slice this is.
    pub fn key(&self) -> SliceKey {
        self.key
    }

    /// The words of entry `index`, as they were at one moment; `N` must be what the cache's
    /// [`Packing`] says. Indices beyond the slice give 0.
    #[inline]
    pub fn entry<const N: usize>(&self, index: usize) -> [u64; N] {
        if (index + 1) * N > self.words as usize {
            return [0; N];
        }
        match &self.body {
            Body::One(column) => {
                debug_assert_eq!(N, 1, "entries of this cache have one word");
                [column.get(index); N]
            }
            Body::Two(columns) => {
                debug_assert_eq!(N, 2, "entries of this cache have two words");
                core::array::from_fn(|at| columns.get(at).map_or(0, |column| column.get(index)))
            }
            Body::Plain(plain) => plain.get(index * N),
        }
    }

    /// All words. Those of a plain slice may be of different moments.
    fn to_words(&self) -> Vec<u64> {
        let words = self.words as usize;
        match &self.body {
            Body::One(column) => (0..words).map(|at| column.get(at)).collect(),
            Body::Two(columns) => {
                (0..words / 2).flat_map(|at| [columns[0].get(at), columns[1].get(at)]).collect()
            }
            Body::Plain(plain) => plain.copy().0,
        }
    }

    /// Where it can be modified; `None` while it is packed.
    pub(crate) fn plain(&self) -> Option<&Plain> {
        match &self.body {
            Body::Plain(plain) => Some(plain),
            Body::One(_) | Body::Two(_) => None,
        }
    }

    #[inline]
    pub(crate) fn touch(&self) {
        // Reading first keeps the cache line shared between the cores that hit it.
        if self.touched.load(Ordering::Relaxed) != VISITED | USED {
            self.touched.store(VISITED | USED, Ordering::Relaxed);
        }
    }

    fn take_visited(&self) -> bool {
        self.touched.fetch_and(!VISITED, Ordering::Relaxed) & VISITED != 0
    }

    pub(crate) fn take_used(&self) -> bool {
        self.touched.fetch_and(!USED, Ordering::Relaxed) & USED != 0
    }

    /// Lets this slice pass for as much used as `other`, whose place it takes.
    fn inherit(&self, other: &Slice) {
        self.touched.store(other.touched.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Memory held, in bytes, by form; the slice itself counts as its first column does.
    pub(crate) fn footprint(&self) -> [(Form, u64); 2] {
        let own = footprint::allocation(size_of::<Self>() + ARC_COUNTS);
        let payload = |column: &Column| footprint::allocation(column.payload_words() * 8);
        match &self.body {
            Body::One(column) => [(column.form(), own + payload(column)), (column.form(), 0)],
            Body::Two(columns) => {
                let pair = footprint::allocation(size_of_val(&**columns));
                let [first, second] = &**columns;
                [(first.form(), own + pair + payload(first)), (second.form(), payload(second))]
            }
            Body::Plain(plain) => [(Form::Plain, own + plain.footprint()), (Form::Plain, 0)],
        }
    }

    /// Memory held, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.footprint().iter().map(|(_, bytes)| bytes).sum()
    }
}
