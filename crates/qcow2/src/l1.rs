//! The active L1 table, in memory as a whole.

use std::collections::BTreeSet;

use qcow2_layout::{EntryError, Geometry, L1Entry};
use sync::Mutex;
use sync::atomic::{AtomicU64, Ordering};

/// L1 entries written at a time: one 512-byte sector, which the medium never tears.
const SECTOR_ENTRIES: usize = 64;
/// Bytes of an L1 entry.
const ENTRY_BYTES: u64 = 8;

/// The L1 table and which sectors of it differ from the file.
#[derive(Debug)]
pub(crate) struct L1Table {
    offset: u64,
    entries: Box<[AtomicU64]>,
    dirty: Mutex<BTreeSet<usize>>,
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

impl L1Table {
    /// The table at `offset` of the file, with `words` in host byte order.
    pub(crate) fn new(offset: u64, words: impl Iterator<Item = u64>) -> Self {
        Self { offset, entries: words.map(AtomicU64::new).collect(), dirty: Mutex::default() }
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Entry `index`; beyond the table nothing is allocated.
    #[inline]
    pub(crate) fn get(&self, index: u64, geometry: &Geometry) -> Result<L1Entry, EntryError> {
        let word = usize::try_from(index).ok().and_then(|index| self.entries.get(index));
        // Acquire: a new table's content was written before its entry appeared here.
        L1Entry::decode(word.map_or(0, |word| word.load(Ordering::Acquire)), geometry)
    }

    /// Replaces entry `index`, in memory; the sector is dirty from then on.
    pub(crate) fn set(&self, index: usize, entry: L1Entry) {
        if let Some(word) = self.entries.get(index) {
            // Both under the lock: whoever finds the new entry uses its table, and the flush after that
            // must find the sector dirty.
            let mut dirty = self.dirty.lock();
            word.store(entry.encode(), Ordering::Release);
            dirty.insert(index / SECTOR_ENTRIES);
        }
    }

    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.lock().is_empty()
    }

    /// Takes the dirty sectors; give them back with [`L1Table::not_written`] if writing fails.
    pub(crate) fn take_dirty(&self) -> Vec<DirtySector> {
        std::mem::take(&mut *self.dirty.lock())
            .into_iter()
            .map(|sector| {
                let first = sector * SECTOR_ENTRIES;
                let words = self.entries.iter().skip(first).take(SECTOR_ENTRIES);
                let bytes = words.flat_map(|word| word.load(Ordering::Acquire).to_be_bytes()).collect();
                DirtySector { sector, offset: self.offset + first as u64 * ENTRY_BYTES, bytes }
            })
            .collect()
    }

    pub(crate) fn not_written(&self, sectors: &[DirtySector]) {
        self.dirty.lock().extend(sectors.iter().map(|dirty| dirty.sector));
    }
}
