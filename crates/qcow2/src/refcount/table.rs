//! The refcount table in memory.

use std::collections::{BTreeSet, TryReserveError};
use std::io;

use qcow2_layout::{EntryError, Geometry, HostOffset, RefcountTableEntry};

use crate::lists;
use crate::table_io::encode_words;

/// Entries written at a time: one 512-byte sector, which the medium never tears.
const SECTOR_ENTRIES: usize = 64;
/// Bytes of an entry.
const ENTRY_BYTES: u64 = 8;
/// Largest table, as in QEMU.
const TABLE_BYTES_MAX: u64 = 8 << 20;

/// Where each refcount block is, and where the table itself lies in the file.
#[derive(Debug)]
pub(crate) struct RefcountTable {
    offset: u64,
    clusters: u64,
    cluster_bits: u32,
    /// In host byte order; may be longer than what the clusters hold, until the table has moved.
    words: Vec<u64>,
    dirty: BTreeSet<usize>,
}

/// The table at a time when memory and file agreed.
#[derive(Debug)]
pub(crate) struct SavedTable {
    offset: u64,
    clusters: u64,
    words: Vec<u64>,
}

impl SavedTable {
    /// Offset, and number of clusters.
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.offset, self.clusters)
    }
}

/// What of the table is to be written.
#[derive(Debug)]
pub(crate) enum DirtyTable {
    /// Nothing.
    Clean,
    /// These sectors, in place: offset in the file and bytes.
    Sectors(Vec<(u64, Vec<u8>)>),
    /// The table has outgrown its clusters: so many clusters are needed for it elsewhere.
    Outgrown(u64),
}

impl RefcountTable {
    pub(crate) fn new(offset: u64, clusters: u64, cluster_bits: u32, words: Vec<u64>) -> Self {
        Self { offset, clusters, cluster_bits, words, dirty: BTreeSet::new() }
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    pub(crate) fn clusters(&self) -> u64 {
        self.clusters
    }

    pub(crate) fn into_words(self) -> Vec<u64> {
        self.words
    }

    /// Offsets of all blocks that can be decoded.
    pub(crate) fn blocks<'a>(&'a self, geometry: &'a Geometry) -> impl Iterator<Item = HostOffset> + 'a {
        self.words.iter().filter_map(|&word| RefcountTableEntry::decode(word, geometry).ok()?.block)
    }

    pub(crate) fn get(&self, index: u64, geometry: &Geometry) -> Result<RefcountTableEntry, EntryError> {
        let word = usize::try_from(index).ok().and_then(|index| self.words.get(index)).copied();
        RefcountTableEntry::decode(word.unwrap_or(0), geometry)
    }

    /// Enters a new block. Fails where the table would become too large, or there is no memory for it.
    pub(crate) fn set(&mut self, index: u64, block: HostOffset) -> io::Result<()> {
        let bytes = (index + 1).saturating_mul(ENTRY_BYTES);
        let Some(index) = usize::try_from(index).ok().filter(|_| bytes <= TABLE_BYTES_MAX) else {
            let limit =
                format!("block {index} needs one of {bytes} bytes; at most {TABLE_BYTES_MAX} are allowed");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, limit));
        };
        if self.words.len() <= index {
            self.words.try_reserve(index + 1 - self.words.len())?;
            self.words.resize(index + 1, 0);
        }
        self.words[index] = RefcountTableEntry { block: Some(block) }.encode();
        self.dirty.insert(index / SECTOR_ENTRIES);
        Ok(())
    }

    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty() || self.has_outgrown()
    }

    fn has_outgrown(&self) -> bool {
        self.words.len() as u64 > self.capacity()
    }

    fn capacity(&self) -> u64 {
        (self.clusters << self.cluster_bits) / ENTRY_BYTES
    }

    /// What is to be written now.
    pub(crate) fn dirty(&self) -> DirtyTable {
        if self.has_outgrown() {
            // Half as much again, so that growing byte by byte costs a logarithmic number of moves.
            let bytes = (self.words.len() as u64 * 3 / 2 * ENTRY_BYTES).min(TABLE_BYTES_MAX);
            return DirtyTable::Outgrown(bytes.div_ceil(1 << self.cluster_bits));
        }
        if self.dirty.is_empty() {
            return DirtyTable::Clean;
        }
        let sectors = self.dirty.iter().map(|&sector| {
            let first = sector * SECTOR_ENTRIES;
            (self.offset + first as u64 * ENTRY_BYTES, self.encode(first, SECTOR_ENTRIES))
        });
        DirtyTable::Sectors(sectors.collect())
    }

    /// `len` entries from `first` on, as they lie in the file; zeroes beyond the last.
    fn encode(&self, first: usize, len: usize) -> Vec<u8> {
        let capacity = usize::try_from(self.capacity()).unwrap_or(usize::MAX).saturating_sub(first);
        let words = self.words.iter().copied().chain(std::iter::repeat(0));
        words.skip(first).take(len.min(capacity)).flat_map(u64::to_be_bytes).collect()
    }

    /// The whole table for a home of `clusters` clusters; entries that do not fit are left out. Fails if there
    /// is no memory.
    pub(crate) fn encode_all(&self, clusters: u64) -> Result<Vec<u8>, TryReserveError> {
        // At most the limit on refcount tables.
        encode_words(self.words.iter().copied(), (clusters << self.cluster_bits) as usize)
    }

    /// Says that the sectors that [`RefcountTable::dirty`] gave are in the file.
    pub(crate) fn written(&mut self, sectors: &[(u64, Vec<u8>)]) {
        for (offset, bytes) in sectors {
            let sector = ((offset - self.offset) / ENTRY_BYTES) as usize / SECTOR_ENTRIES;
            let first = sector * SECTOR_ENTRIES;
            if *bytes == self.encode(first, SECTOR_ENTRIES) {
                self.dirty.remove(&sector);
            }
        }
    }

    /// Takes out the blocks from index `first` on; gives their indices and places. Nothing changes if there is
    /// no memory for those.
    pub(crate) fn drop_blocks_from(
        &mut self,
        first: u64,
        geometry: &Geometry,
    ) -> Result<Vec<(u64, HostOffset)>, TryReserveError> {
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        let words = self.words.iter().enumerate().skip(first);
        let blocks = words.filter_map(|(index, &word)| {
            Some((index as u64, RefcountTableEntry::decode(word, geometry).ok()?.block?))
        });
        let dropped = lists::collect(blocks)?;
        for &(index, _) in &dropped {
            let index = index as usize;
            self.words[index] = 0;
            self.dirty.insert(index / SECTOR_ENTRIES);
        }
        Ok(dropped)
    }

    /// What [`RefcountTable::restore`] goes back to. Fails if there is no memory.
    pub(crate) fn save(&self) -> Result<SavedTable, TryReserveError> {
        let mut words = Vec::new();
        words.try_reserve_exact(self.words.len())?;
        words.extend_from_slice(&self.words);
        Ok(SavedTable { offset: self.offset, clusters: self.clusters, words })
    }

    /// The table is as it was. Gives the blocks that it led to and does not any more.
    pub(crate) fn restore(&mut self, before: SavedTable, geometry: &Geometry) -> Vec<HostOffset> {
        let changed = self.words.iter().enumerate().filter(|(at, word)| before.words.get(*at) != Some(word));
        let made = changed.filter_map(|(_, &word)| RefcountTableEntry::decode(word, geometry).ok()?.block);
        let made = made.collect();
        self.words = before.words;
        self.dirty.clear();
        made
    }

    /// Whether entry `index` leads where it led before.
    pub(crate) fn is_as_in(&self, before: &SavedTable, index: u64) -> bool {
        let at = usize::try_from(index).unwrap_or(usize::MAX);
        self.words.get(at) == before.words.get(at)
    }

    /// Clusters that hold all entries; at least as many as the table has.
    pub(crate) fn clusters_needed(&self) -> u64 {
        let bytes = self.words.len() as u64 * ENTRY_BYTES;
        bytes.div_ceil(1 << self.cluster_bits).max(self.clusters)
    }

    /// Says that the table now lies at `offset` as `bytes`, and the header says so.
    pub(crate) fn moved(&mut self, offset: u64, clusters: u64, bytes: &[u8]) {
        self.offset = offset;
        self.clusters = clusters;
        let sectors = 0..self.words.len().div_ceil(SECTOR_ENTRIES);
        let changed = sectors.filter(|&sector| {
            let at = sector * SECTOR_ENTRIES * ENTRY_BYTES as usize;
            let now = self.encode(sector * SECTOR_ENTRIES, SECTOR_ENTRIES);
            bytes.get(at..at + now.len()) != Some(&now[..])
        });
        self.dirty = changed.collect();
    }
}
