//! The active L1 table, in memory as a whole, but for parts in which nothing is allocated.

use std::collections::{BTreeSet, TryReserveError};
use std::sync::Arc;

use qcow2_layout::{EntryError, Geometry, HostOffset, L1Entry};
use sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sync::{Mutex, OnceLock};

use crate::tables_account::{TablesAccount, TablesFull};

/// L1 entries written at a time: one 512-byte sector, which the file never tears.
const SECTOR_ENTRIES: usize = 64;
/// Empty entries that are looked at for one answer.
const EMPTY_ENTRIES: usize = 4096;
/// Bytes of an L1 entry.
const ENTRY_BYTES: u64 = 8;
/// The first eight segments have a sector each, the next four two, the next four four, and so on: a quarter of what is in
/// memory is unused at most, and nothing of the 4 Mi entries that a table can have.
const SEGMENTS: usize = 60;

/// The L1 table and which sectors of it differ from the file.
///
/// Entries never move in memory, so that they are read without a lock while the table grows. A segment that is not there has zeroes; one that is there
/// stays.
#[derive(Debug)]
pub(crate) struct L1Table {
    segments: [OnceLock<Box<[AtomicU64]>>; SEGMENTS],
    /// What the disk's images may hold.
    account: Arc<TablesAccount>,
    /// What this one has taken out of it.
    taken: AtomicU64,
    /// Number of entries.
    len: AtomicUsize,
    file: Mutex<InFile>,
}

/// Where the file has the table, and what of it is out of date there.
#[derive(Debug)]
struct InFile {
    offset: u64,
    dirty: BTreeSet<usize>,
}

/// A sector of the table as it was when it was copied.
#[derive(Debug)]
pub(crate) struct DirtySector {
    sector: usize,
    /// Where it belongs in the file.
    pub(crate) offset: u64,
    /// What belongs there.
    pub(crate) bytes: Vec<u8>,
}

/// Segment of an entry, and index in it.
fn place(index: usize) -> (usize, usize) {
    let sector = index / SECTOR_ENTRIES;
    // Octave 0 is sectors 0 to 7; each octave after it is as long as all before it, in four segments.
    let octave = (sector | 7).ilog2() as usize - 2;
    let first = (sector >> octave) << octave;
    (4 * octave + (sector >> octave), index - SECTOR_ENTRIES * first)
}

/// The first entry of a segment.
fn segment_start(segment: usize) -> usize {
    let octave = (segment / 4).saturating_sub(1);
    SECTOR_ENTRIES * ((segment - 4 * octave) << octave)
}

/// Entries of a segment.
fn segment_len(segment: usize) -> usize {
    SECTOR_ENTRIES << (segment / 4).saturating_sub(1)
}

impl L1Table {
    /// The table at `offset` of the file, with `words` in host byte order. Fails if there is no memory.
    #[cfg(test)]
    pub(crate) fn new(offset: u64, words: &[u64]) -> Result<Self, TryReserveError> {
        let table = Self::zeroed(offset, words.len()).expect("there is no limit");
        table.replace(offset, words);
        Ok(table)
    }

    /// The table at `offset` of the file with room for all its entries, before they are known.
    #[cfg(test)]
    pub(crate) fn zeroed(offset: u64, entries: usize) -> Result<Self, TablesFull> {
        let table = Self::empty(offset, entries, TablesAccount::unlimited());
        table.reserve(entries)?;
        Ok(table)
    }

    /// The table at `offset` of the file, of which nothing is in memory yet.
    pub(crate) fn empty(offset: u64, entries: usize, account: Arc<TablesAccount>) -> Self {
        Self {
            segments: std::array::from_fn(|_| OnceLock::new()),
            account,
            taken: AtomicU64::new(0),
            len: AtomicUsize::new(entries),
            file: Mutex::new(InFile { offset, dirty: BTreeSet::new() }),
        }
    }

    /// Says what the file has as entry `index`, in host byte order. Only what is allocated takes memory.
    pub(crate) fn load(&self, index: usize, word: u64) -> Result<(), TablesFull> {
        if word != 0 {
            self.make_segment(place(index).0)?;
        }
        if let Some(entry) = self.slot(index) {
            entry.store(word, Ordering::Release);
        }
        Ok(())
    }

    /// Makes room in memory for so many entries.
    pub(crate) fn reserve(&self, entries: usize) -> Result<(), TablesFull> {
        let segments = if entries == 0 { 0 } else { place(entries - 1).0 + 1 };
        (0..segments).try_for_each(|index| self.make_segment(index))
    }

    fn make_segment(&self, index: usize) -> Result<(), TablesFull> {
        let Some(segment) = self.segments.get(index).filter(|segment| segment.get().is_none()) else {
            return Ok(());
        };
        let len = segment_len(index);
        self.charge(len as u64 * ENTRY_BYTES)?;
        let mut made = Vec::new();
        made.try_reserve_exact(len).map_err(|_| TablesFull::System)?;
        made.resize_with(len, || AtomicU64::new(0));
        segment.get_or_init(|| made.into_boxed_slice());
        Ok(())
    }

    /// Takes `bytes` out of the disk's account for as long as this table lives: also for what is kept because of it.
    pub(crate) fn charge(&self, bytes: u64) -> Result<(), TablesFull> {
        self.account.take(bytes)?;
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// The table is another one, which the file has at `offset`. No request may be using it; room was made
    /// with [`L1Table::reserve`].
    pub(crate) fn replace(&self, offset: u64, words: &[u64]) {
        let mut file = self.file.lock();
        *file = InFile { offset, dirty: BTreeSet::new() };
        let old = self.len.load(Ordering::Acquire);
        for index in 0..old.max(words.len()) {
            if let Some(entry) = self.slot(index) {
                entry.store(words.get(index).copied().unwrap_or(0), Ordering::Release);
            }
        }
        self.len.store(words.len(), Ordering::Release);
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Bytes of memory.
    pub(crate) fn footprint(&self) -> u64 {
        self.segments.iter().filter_map(OnceLock::get).map(|segment| size_of_val(&**segment) as u64).sum()
    }

    /// Where the file has it.
    pub(crate) fn offset(&self) -> u64 {
        self.file.lock().offset
    }

    /// All entries in host byte order. Fails if there is no memory.
    pub(crate) fn words(&self) -> Result<Vec<u64>, TryReserveError> {
        let mut words = Vec::new();
        words.try_reserve_exact(self.len())?;
        words.extend((0..self.len()).map(|index| self.word(index)));
        Ok(words)
    }

    /// Where the L2 tables are, of all entries that can be decoded.
    pub(crate) fn tables<'a>(&'a self, geometry: &'a Geometry) -> impl Iterator<Item = HostOffset> + 'a {
        let len = self.len();
        let there = self.segments.iter().enumerate().filter(|(_, segment)| segment.get().is_some());
        let entries = there.flat_map(move |(index, _)| {
            let first = segment_start(index);
            first.min(len)..(first + segment_len(index)).min(len)
        });
        entries.filter_map(|index| L1Entry::decode(self.word(index), geometry).ok()?.table)
    }

    /// Where the empty entries end that begin at `index`: at `end` at the latest, and after [`EMPTY_ENTRIES`] that are in memory, however many
    /// follow. What is not in memory costs nothing.
    pub(crate) fn empty_until(&self, index: u64, end: u64) -> u64 {
        let (mut at, mut looks) = (index, 0);
        while at < end && looks < EMPTY_ENTRIES {
            let Ok(entry) = usize::try_from(at).map(|at| at.min(self.len())) else { return end };
            let segment = place(entry).0;
            match self.segments.get(segment) {
                _ if entry == self.len() => return end,
                Some(words) if words.get().is_none() => {
                    at = (segment_start(segment) + segment_len(segment)) as u64;
                }
                _ if self.word(entry) == 0 => (at, looks) = (at + 1, looks + 1),
                _ => return at,
            }
        }
        at.min(end)
    }

    fn slot(&self, index: usize) -> Option<&AtomicU64> {
        let (segment, index) = place(index);
        self.segments.get(segment)?.get()?.get(index)
    }

    fn word(&self, index: usize) -> u64 {
        // Acquire: a new table's content was written before its entry appeared here.
        self.slot(index).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Entry `index`; beyond the table nothing is allocated.
    #[inline]
    pub(crate) fn get(&self, index: u64, geometry: &Geometry) -> Result<L1Entry, EntryError> {
        let word = usize::try_from(index).map_or(0, |index| self.word(index));
        L1Entry::decode(word, geometry)
    }

    /// Replaces entry `index`, in memory; the sector is dirty from then on.
    pub(crate) fn set(&self, index: usize, entry: L1Entry) {
        // Room was made when the image was opened for writing, or grew.
        debug_assert!(self.slot(index).is_some() || index >= self.len());
        if let Some(word) = self.slot(index).filter(|_| index < self.len()) {
            // Both under the lock: a request that finds the new entry uses its table, and the flush after that
            // must find the sector dirty.
            let mut file = self.file.lock();
            word.store(entry.encode(), Ordering::Release);
            file.dirty.insert(index / SECTOR_ENTRIES);
        }
    }

    pub(crate) fn is_dirty(&self) -> bool {
        !self.file.lock().dirty.is_empty()
    }

    /// Takes the dirty sectors; give them back with [`L1Table::not_written`] if writing fails.
    pub(crate) fn take_dirty(&self) -> Vec<DirtySector> {
        let mut file = self.file.lock();
        let dirty = std::mem::take(&mut file.dirty);
        let copied = dirty.into_iter().map(|sector| {
            let first = sector * SECTOR_ENTRIES;
            let entries = first..(first + SECTOR_ENTRIES).min(self.len());
            let bytes = entries.flat_map(|index| self.word(index).to_be_bytes()).collect();
            DirtySector { sector, offset: file.offset + first as u64 * ENTRY_BYTES, bytes }
        });
        copied.collect()
    }

    pub(crate) fn not_written(&self, sectors: &[DirtySector]) {
        self.file.lock().dirty.extend(sectors.iter().map(|dirty| dirty.sector));
    }
}

impl Drop for L1Table {
    fn drop(&mut self) {
        self.account.give_back(self.taken.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qcow2_layout::Version;

    /// Each image of a chain took the whole of its L1 table, 32 MiB of which the file had nothing: 6.4 GiB for 200 images of 12 KiB.
    #[test]
    fn a_table_takes_memory_for_what_is_allocated_and_no_more_than_its_disk_may_have() {
        let account = TablesAccount::new(9 << 20);
        let table = L1Table::empty(512, 4 << 20, Arc::clone(&account));
        for index in [0, 1, 100_000, (4 << 20) - 1] {
            table.load(index, 0).unwrap();
        }
        assert_eq!(account.used(), 0);
        table.load(4 << 20 >> 1, 512).unwrap();
        assert_eq!((account.used(), table.footprint()), (4 << 20, 4 << 20), "a quarter of the second half");
        let geometry = Geometry::new(Version::V3, 9, 4).unwrap();
        assert_eq!(table.tables(&geometry).collect::<Vec<_>>(), [HostOffset(512)]);
        let other = L1Table::empty(512, 4 << 20, Arc::clone(&account));
        assert_eq!(other.reserve(4 << 20), Err(TablesFull::Account { bytes_max: 9 << 20 }));
        drop((table, other));
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn empty_entries_are_skipped_up_to_the_next_one_that_is_not() {
        let table = L1Table::empty(512, 4 << 20, TablesAccount::unlimited());
        assert_eq!((table.empty_until(3, 9), table.empty_until(9, 9)), (9, 9));
        assert_eq!(table.empty_until(3, 4 << 20), 4 << 20);
        assert_eq!(table.empty_until(3, u64::MAX), u64::MAX, "nothing is allocated behind the table");
        table.load(3 << 20, 512).unwrap();
        let (segment, _) = place(3 << 20);
        assert_eq!(segment_start(segment), 3 << 20);
        assert_eq!((table.empty_until(3, 4 << 20), table.empty_until(3 << 20, 4 << 20)), (3 << 20, 3 << 20));
        let some = (3 << 20) + 1 + EMPTY_ENTRIES as u64;
        assert_eq!(table.empty_until((3 << 20) + 1, 4 << 20), some, "one answer looks at so many");
    }

    #[test]
    fn every_segment_begins_where_the_one_before_it_ends() {
        let starts = (0..SEGMENTS).map(segment_start);
        let ends = (0..SEGMENTS).map(|segment| segment_start(segment) + segment_len(segment));
        assert!(starts.skip(1).eq(ends.take(SEGMENTS - 1)));
        assert!((0..SEGMENTS).all(|segment| place(segment_start(segment)) == (segment, 0)));
    }

    #[test]
    fn every_entry_has_one_place_in_memory_up_to_the_largest_table() {
        let mut next = (0, 0);
        for index in 0..4 << 20 {
            assert_eq!(place(index), next);
            next = if next.1 + 1 < segment_len(next.0) { (next.0, next.1 + 1) } else { (next.0 + 1, 0) };
        }
        assert_eq!(next, (SEGMENTS, 0));
    }

    /// The largest table took twice its size, and once more while it was read.
    #[test]
    fn a_table_takes_a_third_more_memory_than_it_has_entries_at_most() {
        for entries in [513, 1000, 5000, 100_000, 1 << 20, 4 << 20] {
            let bytes = L1Table::zeroed(512, entries).unwrap().footprint();
            assert!(bytes * 3 <= entries as u64 * 8 * 4, "{entries}: {bytes}");
        }
        assert_eq!(L1Table::zeroed(512, 4 << 20).unwrap().footprint(), 32 << 20);
    }

    #[test]
    fn a_table_that_became_shorter_and_longer_again_has_forgotten_what_was_behind() {
        let geometry = Geometry::new(Version::V3, 9, 4).unwrap();
        let table = L1Table::new(512, &[512; 200]).unwrap();
        table.set(199, L1Entry { table: Some(HostOffset(1024)), copied: true });
        table.replace(4096, &[512; 2]);
        assert!(!table.is_dirty());
        table.reserve(300).unwrap();
        let mut words = table.words().unwrap();
        words.resize(300, 0);
        table.replace(8192, &words);
        assert_eq!(table.get(199, &geometry), Ok(L1Entry::UNALLOCATED));
        assert_eq!(table.get(1, &geometry).unwrap().table, Some(HostOffset(512)));
        assert_eq!((table.len(), table.offset()), (300, 8192));
    }

    #[test]
    fn the_last_sector_ends_where_the_table_does() {
        let table = L1Table::new(512, &[0; 70]).unwrap();
        table.set(69, L1Entry { table: Some(HostOffset(1024)), copied: false });
        let sectors = table.take_dirty();
        assert_eq!((sectors.len(), sectors[0].offset, sectors[0].bytes.len()), (1, 1024, 48));
    }
}
