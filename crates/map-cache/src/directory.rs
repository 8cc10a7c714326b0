//! L1 index -> chunk -> row -> slice. A chunk never changes: another one takes its place behind an atomic pointer.
//!
//! So a look-up needs one atomic load, also beside concurrent changes, and a chunk without slices is freed
//! when its last reader has dropped it. Only the places of chunks never leave, half a byte
//! an L1 entry.

use std::ops::Range;
use std::sync::Arc as Plainly;

use sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sync::{Arc, ArcSwapOption, OnceLock};

use crate::footprint::{ARC_COUNTS, allocation};

/// Which slice of which L2 table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SliceKey {
    /// Index of the table in L1.
    pub l1_index: u32,
    /// Index of the slice in its table.
    pub slice: u32,
}

/// log2 of the tables of a chunk. All of it is copied when a slice comes or goes; and each has a place that never leaves.
const CHUNK_BITS: u32 = 4;

/// log2 of the slices of a row at most. A row is copied when one of its slices comes or goes; tables of up to so many
/// slices have one.
const ROW_BITS: u32 = 6;

/// log2 of the largest L1 table there is: 32 MiB.
const L1_BITS_MAX: u32 = 22;

/// Level `k` has the places of 2^k chunks, behind those of all levels below.
const LEVELS: usize = (L1_BITS_MAX - CHUNK_BITS + 1) as usize;

/// log2 of the most slices of a table: 2 MiB in slices of 512 bytes.
const SLICES_BITS_MAX: u32 = 12;

/// Where a chunk is, if any of its slices is in memory.
pub(crate) type Place<T> = ArcSwapOption<Chunk<T>>;

/// Slices that follow each other in one table. Immutable, so there is nothing to explore in it.
type Row<T> = Plainly<[Option<Arc<T>>]>;

/// The slices of consecutive tables that are in memory.
#[derive(Debug)]
pub(crate) struct Chunk<T> {
    /// log2 of the rows of a table.
    rows_bits: u32,
    rows: Box<[Option<Row<T>>]>,
}

/// Where every slice is, if it is in memory. Its owner's lock guards changes; look-ups take none.
#[derive(Debug)]
pub(crate) struct Directory<T> {
    levels: [OnceLock<Box<[Place<T>]>>; LEVELS],
    /// log2 of the slices of a table.
    slices_bits: AtomicUsize,
    bytes: AtomicU64,
}

/// The level of a chunk, and its place there.
#[inline]
fn place(l1_index: u32) -> (usize, usize) {
    let chunk = (l1_index >> CHUNK_BITS) as usize + 1;
    let level = chunk.ilog2() as usize;
    (level, chunk - (1 << level))
}

impl<T> Chunk<T> {
    /// The slice of `key`, which belongs to this chunk, if it is in memory.
    #[inline]
    pub(crate) fn get(&self, key: SliceKey) -> Option<&Arc<T>> {
        let row = self.rows.get(self.row(key)?)?.as_ref()?;
        row.get(key.slice as usize % (1 << ROW_BITS))?.as_ref()
    }

    /// The row of `key`, unless no table has so many slices.
    #[inline]
    fn row(&self, key: SliceKey) -> Option<usize> {
        let table = key.l1_index as usize % (1 << CHUNK_BITS);
        let row = (key.slice >> ROW_BITS) as usize;
        (row >> self.rows_bits == 0).then_some((table << self.rows_bits) + row)
    }

    fn footprint(&self) -> u64 {
        allocation(size_of::<Self>() + ARC_COUNTS) + allocation(size_of_val(&*self.rows))
    }
}

fn row_footprint<T>(row: &Row<T>) -> u64 {
    allocation(size_of_val(&**row) + ARC_COUNTS)
}

impl<T> Directory<T> {
    /// `slices_per_table` is rounded up to a power of two.
    pub(crate) fn new(slices_per_table: usize) -> Self {
        let directory = Self {
            levels: std::array::from_fn(|_| OnceLock::new()),
            slices_bits: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
        };
        directory.reshape(slices_per_table);
        directory
    }

    /// Cuts tables into so many slices. No slice may be in memory.
    pub(crate) fn reshape(&self, slices_per_table: usize) {
        let bits = slices_per_table.next_power_of_two().ilog2().min(SLICES_BITS_MAX);
        self.slices_bits.store(bits as usize, Ordering::Relaxed);
    }

    /// Where the chunk of `key` is, if anything of its level has ever been in memory.
    #[inline]
    pub(crate) fn chunk(&self, key: SliceKey) -> Option<&Place<T>> {
        let (level, chunk) = place(key.l1_index);
        self.levels.get(level)?.get()?.get(chunk)
    }

    /// What is in memory under `key`.
    pub(crate) fn find(&self, key: SliceKey) -> Option<Arc<T>> {
        self.chunk(key)?.load().as_ref()?.get(key).cloned()
    }

    /// Whether a slice of this table is in memory.
    pub(crate) fn has_any_of(&self, l1_index: u32) -> bool {
        let first = SliceKey { l1_index, slice: 0 };
        let chunk = self.chunk(first).map(Place::load);
        let Some(chunk) = chunk.as_ref().and_then(|chunk| chunk.as_ref()) else { return false };
        let rows = chunk.row(first).map(|row| row..row + (1 << chunk.rows_bits));
        rows.and_then(|rows| chunk.rows.get(rows)).is_some_and(|rows| rows.iter().any(Option::is_some))
    }

    /// Puts `slice` where `key` leads. Says whether it did: not where no table is as large.
    pub(crate) fn put(&self, key: SliceKey, slice: Arc<T>) -> bool {
        let (level, _) = place(key.l1_index);
        let fits = key.slice >> self.slices_bits.load(Ordering::Relaxed) == 0;
        let Some(places) = self.levels.get(level).filter(|_| fits) else { return false };
        places.get_or_init(|| {
            let places: Box<[Place<T>]> = (0..1 << level).map(|_| Place::empty()).collect();
            self.count(0, allocation(size_of_val(&*places)));
            places
        });
        self.change(&[(key, Some(slice))]);
        true
    }

    /// Nothing is in memory under `key` any more.
    pub(crate) fn take_out(&self, key: SliceKey) {
        self.change(&[(key, None)]);
    }

    /// The same for many, each chunk and row of which is copied once.
    pub(crate) fn take_all_out(&self, keys: impl Iterator<Item = SliceKey>) {
        let mut changes: Vec<(SliceKey, Option<Arc<T>>)> = keys.map(|key| (key, None)).collect();
        changes.sort_unstable_by_key(|(key, _)| *key);
        let chunk = |key: SliceKey| key.l1_index >> CHUNK_BITS;
        changes
            .chunk_by(|(one, _), (next, _)| chunk(*one) == chunk(*next))
            .for_each(|of_chunk| self.change(of_chunk));
    }

    /// Puts a chunk in the place of another that differs in `changes`, which are in the order of their keys.
    fn change(&self, changes: &[(SliceKey, Option<Arc<T>>)]) {
        let Some(place) = changes.first().and_then(|(key, _)| self.chunk(*key)) else { return };
        let old = place.load_full();
        let mut new = self.copy_of(old.as_deref());
        let row_of = |key: SliceKey| key.slice >> ROW_BITS;
        let same_row =
            |one: SliceKey, next: SliceKey| one.l1_index == next.l1_index && row_of(one) == row_of(next);
        for of_row in changes.chunk_by(|(one, _), (next, _)| same_row(*one, *next)) {
            let row = of_row.first().and_then(|(key, _)| new.row(*key));
            if let Some(row) = row.and_then(|row| new.rows.get_mut(row)) {
                let changed = self.changed_row(row.as_ref(), of_row);
                self.count(row.as_ref().map_or(0, row_footprint), changed.as_ref().map_or(0, row_footprint));
                *row = changed;
            }
        }
        let new = new.rows.iter().any(Option::is_some).then(|| Arc::new(new));
        let footprint = |chunk: Option<&Arc<Chunk<T>>>| chunk.map_or(0, |chunk| chunk.footprint());
        self.count(footprint(old.as_ref()), footprint(new.as_ref()));
        place.store(new);
    }

    fn copy_of(&self, chunk: Option<&Chunk<T>>) -> Chunk<T> {
        match chunk {
            Some(chunk) => Chunk { rows_bits: chunk.rows_bits, rows: chunk.rows.clone() },
            None => {
                let rows_bits = (self.slices_bits.load(Ordering::Relaxed) as u32).saturating_sub(ROW_BITS);
                Chunk { rows_bits, rows: (0..1 << (CHUNK_BITS + rows_bits)).map(|_| None).collect() }
            }
        }
    }

    /// The row with `changes` in it; `None` if no slice is left.
    fn changed_row(&self, row: Option<&Row<T>>, changes: &[(SliceKey, Option<Arc<T>>)]) -> Option<Row<T>> {
        let slots = 1 << self.slices_bits.load(Ordering::Relaxed).min(ROW_BITS as usize);
        let mut left = changes.iter().peekable();
        let slot = |at: usize| match left.next_if(|(key, _)| key.slice as usize % (1 << ROW_BITS) == at) {
            Some((_, slice)) => slice.clone(),
            None => row.and_then(|row| row.get(at)?.clone()),
        };
        let row: Row<T> = Range { start: 0, end: slots }.map(slot).collect();
        row.iter().any(Option::is_some).then_some(row)
    }

    /// What took `before` bytes takes `now`.
    fn count(&self, before: u64, now: u64) {
        // Modulo 2^64 a difference is a sum.
        self.bytes.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Memory held, in bytes.
    pub(crate) fn footprint(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
