//! The refcount table in memory.

use std::collections::{BTreeSet, TryReserveError};
use std::io;

use qcow2_layout::{EntryError, Geometry, HostOffset, RefcountTableEntry};

use crate::lists;
use crate::table_io::encode_words;

/// Entries written at a time: one 512-byte sector, which the file never tears.
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
    /// In host byte order, up to the last that leads to a block when it was read; may be longer than what the clusters hold, until the table has moved.
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
    pub(crate) fn place(&self) -> (HostOffset, u64) {
        (HostOffset(self.offset), self.clusters)
    }
}

/// The table without some of the blocks that it leads to.
#[derive(Debug)]
pub(crate) struct WithoutBlocks {
    /// Their indices and places, lowest index first.
    pub(crate) blocks: Vec<(u64, HostOffset)>,
    /// The sectors that led to them: offset in the file and bytes.
    pub(crate) sectors: Vec<(u64, Vec<u8>)>,
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
    pub(crate) fn new(at: HostOffset, clusters: u64, cluster_bits: u32, mut words: Vec<u64>) -> Self {
        // A cluster of 64 KiB has 8,192 of them, and leads to the blocks of 16 TiB.
        words.truncate(words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1));
        words.shrink_to_fit();
        Self { offset: at.0, clusters, cluster_bits, words, dirty: BTreeSet::new() }
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    pub(crate) fn clusters(&self) -> u64 {
        self.clusters
    }

    /// Bytes of memory.
    pub(crate) fn footprint(&self) -> u64 {
        self.words.capacity() as u64 * ENTRY_BYTES
    }

    /// The entries in host byte order, up to the last that leads to a block.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
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

    /// Blocks that there are entries for.
    pub(crate) fn len(&self) -> u64 {
        self.words.len() as u64
    }

    fn has_outgrown(&self) -> bool {
        self.words.len() as u64 > self.capacity()
    }

    fn capacity(&self) -> u64 {
        (self.clusters << self.cluster_bits) / ENTRY_BYTES
    }

    /// Where the file has the table, and how many entries fit there.
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.offset, self.capacity())
    }

    /// Clusters of the table that has to be made if there is a block `index`.
    pub(crate) fn clusters_to_lead_to(&self, index: u64) -> u64 {
        self.clusters_for((index + 1).max(self.words.len() as u64))
    }

    /// Whether a table that leads to block `index` may be made.
    pub(crate) fn may_lead_to(index: u64) -> bool {
        index < TABLE_BYTES_MAX / ENTRY_BYTES
    }

    /// Half as much again as needed, so that growing byte by byte costs a logarithmic number of moves.
    fn clusters_for(&self, entries: u64) -> u64 {
        let bytes = (entries * 3 / 2 * ENTRY_BYTES).min(TABLE_BYTES_MAX);
        bytes.div_ceil(1 << self.cluster_bits)
    }

    /// What is to be written now.
    pub(crate) fn dirty(&self) -> DirtyTable {
        if self.has_outgrown() {
            return DirtyTable::Outgrown(self.clusters_for(self.words.len() as u64));
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

    /// What the file is to have so that it leads to no block from index `first` on, and to none of those `before`, which are in ascending
    /// order. Nothing else changes yet, but the sectors are dirty from now on: whatever becomes of writing them, the file has what
    /// memory has only after the next commit, or after [`RefcountTable::forget`]. Fails if there is no memory.
    pub(crate) fn without_blocks_from(
        &mut self,
        first: u64,
        before: &[u64],
        geometry: &Geometry,
    ) -> Result<WithoutBlocks, TryReserveError> {
        let words = (0u64..).zip(&self.words);
        let goes = |index: &u64| *index >= first || before.binary_search(index).is_ok();
        let blocks = words.filter(|(index, _)| goes(index)).filter_map(|(index, &word)| {
            Some((index, RefcountTableEntry::decode(word, geometry).ok()?.block?))
        });
        let blocks = lists::collect(blocks)?;
        let mut sectors: Vec<(u64, Vec<u8>)> = Vec::new();
        for &(index, _) in &blocks {
            let (sector, at) = (index as usize / SECTOR_ENTRIES, index as usize % SECTOR_ENTRIES);
            let offset = self.offset + (sector * SECTOR_ENTRIES) as u64 * ENTRY_BYTES;
            if sectors.last().is_none_or(|(last, _)| *last != offset) {
                self.dirty.insert(sector);
                lists::push(&mut sectors, (offset, self.encode(sector * SECTOR_ENTRIES, SECTOR_ENTRIES)))?;
            }
            let entry = sectors.last_mut().and_then(|(_, bytes)| bytes.as_chunks_mut::<8>().0.get_mut(at));
            if let Some(entry) = entry {
                *entry = [0; 8];
            }
        }
        Ok(WithoutBlocks { blocks, sectors })
    }

    /// The file leads to these blocks no more.
    pub(crate) fn forget(&mut self, without: &WithoutBlocks) {
        for &(index, _) in &without.blocks {
            if let Some(word) = self.words.get_mut(index as usize) {
                *word = 0;
            }
        }
        self.written(&without.sectors);
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
        let word = |words: &[u64]| words.get(at).copied().unwrap_or(0);
        word(&self.words) == word(&before.words)
    }

    /// Clusters that hold all entries; at least as many as the table has.
    pub(crate) fn clusters_needed(&self) -> u64 {
        let bytes = self.words.len() as u64 * ENTRY_BYTES;
        bytes.div_ceil(1 << self.cluster_bits).max(self.clusters)
    }

    /// Says that the table now lies at `offset` as `bytes`, and the header says so.
    pub(crate) fn moved(&mut self, at: HostOffset, clusters: u64, bytes: &[u8]) {
        self.offset = at.0;
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
