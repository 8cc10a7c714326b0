//! The active L1 table, in memory as a whole.

use std::collections::{BTreeSet, TryReserveError};

use qcow2_layout::{EntryError, Geometry, HostOffset, L1Entry};
use sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sync::{Mutex, OnceLock};

/// L1 entries written at a time: one 512-byte sector, which the medium never tears.
const SECTOR_ENTRIES: usize = 64;
/// Bytes of an L1 entry.
const ENTRY_BYTES: u64 = 8;
/// The first eight segments have a sector each, the next four two, the next four four, and so on: a quarter of what is in
/// memory is unused at most, and nothing of the 4 Mi entries that a table can have.
const SEGMENTS: usize = 60;

/// The L1 table and which sectors of it differ from the file.
///
/// Entries never move in memory, so that they are read without a lock while the table grows.
#[derive(Debug)]
pub(crate) struct L1Table {
    segments: [OnceLock<Box<[AtomicU64]>>; SEGMENTS],
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

/// Entries of a segment.
fn segment_len(segment: usize) -> usize {
    SECTOR_ENTRIES << (segment / 4).saturating_sub(1)
}

impl L1Table {
    /// The table at `offset` of the file, with `words` in host byte order. Fails if there is no memory.
    #[cfg(test)]
    pub(crate) fn new(offset: u64, words: &[u64]) -> Result<Self, TryReserveError> {
        let table = Self::zeroed(offset, words.len())?;
        table.replace(offset, words);
        Ok(table)
    }

    /// The table at `offset` of the file, before its entries are known. Fails if there is no memory.
    pub(crate) fn zeroed(offset: u64, entries: usize) -> Result<Self, TryReserveError> {
        let table = Self {
            segments: std::array::from_fn(|_| OnceLock::new()),
            len: AtomicUsize::new(entries),
            file: Mutex::new(InFile { offset, dirty: BTreeSet::new() }),
        };
        table.reserve(entries)?;
        Ok(table)
    }

    /// Says what the file has as entry `index`, in host byte order.
    pub(crate) fn load(&self, index: usize, word: u64) {
        if let Some(entry) = self.slot(index) {
            entry.store(word, Ordering::Release);
        }
    }

    /// Makes room in memory for so many entries.
    pub(crate) fn reserve(&self, entries: usize) -> Result<(), TryReserveError> {
        let segments = if entries == 0 { 0 } else { place(entries - 1).0 + 1 };
        for (index, segment) in self.segments.iter().enumerate().take(segments) {
            if segment.get().is_none() {
                let len = segment_len(index);
                let mut made = Vec::new();
                made.try_reserve_exact(len)?;
                made.resize_with(len, || AtomicU64::new(0));
                segment.get_or_init(|| made.into_boxed_slice());
            }
        }
        Ok(())
    }

    /// The table is another one, which the file has at `offset`. Nobody may be using it; room was made
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
        (0..self.len()).filter_map(|index| L1Entry::decode(self.word(index), geometry).ok()?.table)
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

#[cfg(test)]
mod tests {
    use super::*;
    use qcow2_layout::Version;

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
