//! A second opinion on images: refcounts, COPIED and snapshots, recomputed from the bytes alone.
//!
//! It shares the decoders with the engine and nothing else. Leaks are fine, everything else is not.

use std::collections::BTreeMap;

use qcow2_layout::{
    Autoclear, BitmapTableEntry, Compatible, Geometry, Header, Incompatible, L1Entry, L2Entry,
    RefcountTableEntry, decode_bitmap_directory, decode_snapshots, refcount_get,
};
use sim::Content;

/// Bytes of the image file that must never change: they belong to a snapshot.
#[derive(Clone, Debug)]
pub struct Frozen {
    offset: u64,
    bytes: Vec<u8>,
}

/// Where everything in an image is.
struct Walk<'a> {
    file: &'a Content,
    geometry: Geometry,
    /// References to each cluster of the file.
    references: Vec<u32>,
    refcount_table: Vec<u64>,
    /// What snapshots refer to: offset and length.
    snapshots: Vec<(u64, u64)>,
    /// Who refers to this cluster, if anybody asks.
    asked: Option<u64>,
    answer: Vec<String>,
    /// Start of each cluster in use, and what it is.
    pieces: BTreeMap<u64, Piece>,
}

/// What a cluster of the image file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    Header,
    RefcountTable,
    RefcountBlock,
    L1,
    L2,
    Data,
    Snapshot,
    Bitmap,
    Record,
}

/// The header.
pub fn header(file: &Content) -> Result<Header, String> {
    let first = |len: u64| {
        let mut bytes = vec![0; file.length().min(len) as usize];
        file.read(0, &mut bytes);
        bytes
    };
    let decoded = Header::cluster_bits_of(&first(512)).and_then(|bits| Header::decode(&first(1 << bits)));
    decoded.map_err(|error| error.to_string())
}

/// Whether the image must be repaired before it is used.
pub fn is_dirty(file: &Content) -> bool {
    header(file).is_ok_and(|header| header.incompatible.contains(Incompatible::DIRTY))
}

/// Whether a writer with clusters in reserve was not closed.
pub fn tells_of_a_reserve(file: &Content) -> bool {
    header(file).is_ok_and(|header| header.compatible.contains(Compatible::RESERVE))
}

/// Nothing in the image is worse than a leak.
pub fn check(file: &Content, frozen: &[Frozen]) -> Result<(), String> {
    let header = header(file)?;
    if header.incompatible.contains(Incompatible::CORRUPT) {
        return Err("the corrupt bit is set".into());
    }
    for part in frozen {
        let mut bytes = vec![0; part.bytes.len()];
        file.read(part.offset, &mut bytes);
        if bytes != part.bytes {
            return Err(format!("{} bytes of a snapshot at {:#x} changed", bytes.len(), part.offset));
        }
    }
    Walk::of(file, &header, None)?.compare(&header)
}

/// Everything that the snapshots of an image are made of.
pub fn frozen(file: &Content) -> Vec<Frozen> {
    let header = header(file).expect("an image of qemu-img");
    let walk = Walk::of(file, &header, None).expect("an image of qemu-img");
    let part = |&(offset, len): &(u64, u64)| {
        let mut bytes = vec![0; len as usize];
        file.read(offset, &mut bytes);
        Frozen { offset, bytes }
    };
    walk.snapshots.iter().map(part).collect()
}

/// What each cluster in use is, by its offset in the file.
pub fn pieces(file: &Content) -> BTreeMap<u64, Piece> {
    let header = header(file).expect("a sound image");
    Walk::of(file, &header, None).expect("a sound image").pieces
}

impl<'a> Walk<'a> {
    fn of(file: &'a Content, header: &Header, asked: Option<u64>) -> Result<Self, String> {
        let geometry = header.geometry().map_err(|error| error.to_string())?;
        let (references, refcount_table, snapshots, answer, pieces) = Default::default();
        let mut walk = Self { file, geometry, references, refcount_table, snapshots, asked, answer, pieces };
        walk.refer(0, 1, Piece::Header, || "header".into())?;
        let table_bytes = u64::from(header.refcount_table_clusters) << geometry.cluster_bits;
        walk.refer(header.refcount_table_offset.0, table_bytes, Piece::RefcountTable, || {
            "refcount table".into()
        })?;
        walk.refcount_table = walk.words(header.refcount_table_offset.0, table_bytes / 8);
        for index in 0..walk.refcount_table.len() as u64 {
            if let Some(block) = walk.block(index)? {
                walk.refer(block, 1, Piece::RefcountBlock, || format!("refcount block {index}"))?;
            }
        }
        walk.map(header.l1_table_offset.0, u64::from(header.l1_size), false)?;
        walk.snapshots(header)?;
        walk.bitmaps(header)?;
        Ok(walk)
    }

    /// Counts a reference to every cluster that the range touches.
    fn refer(&mut self, offset: u64, len: u64, piece: Piece, who: impl Fn() -> String) -> Result<(), String> {
        if len == 0 {
            return Ok(());
        }
        let bits = self.geometry.cluster_bits;
        let (first, last) = (offset >> bits, (offset + len - 1) >> bits);
        if offset > self.file.length() {
            return Err(format!("a reference to {offset:#x}, past the end of the file, by {}", who()));
        }
        for cluster in first..=last {
            if self.asked == Some(cluster) {
                self.answer.push(who());
            }
            self.pieces.entry(cluster << bits).or_insert(piece);
            let cluster = cluster as usize;
            if cluster >= self.references.len() {
                self.references.resize(cluster + 1, 0);
            }
            self.references[cluster] += 1;
        }
        Ok(())
    }

    fn words(&self, offset: u64, count: u64) -> Vec<u64> {
        let mut bytes = vec![0; count as usize * 8];
        self.file.read(offset, &mut bytes);
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word)).collect()
    }

    fn block(&self, index: u64) -> Result<Option<u64>, String> {
        let word = self.refcount_table.get(index as usize).copied().unwrap_or(0);
        let entry = RefcountTableEntry::decode(word, &self.geometry);
        entry.map(|entry| entry.block.map(|block| block.0)).map_err(|error| error.to_string())
    }

    /// An L1 table with all it leads to.
    fn map(&mut self, l1: u64, entries: u64, of_snapshot: bool) -> Result<(), String> {
        self.keep(of_snapshot, l1, entries * 8);
        self.refer(l1, entries * 8, Piece::L1, || "L1 table".into())?;
        for word in self.words(l1, entries) {
            let entry = L1Entry::decode(word, &self.geometry).map_err(|error| error.to_string())?;
            let Some(table) = entry.table else { continue };
            self.keep(of_snapshot, table.0, self.geometry.cluster_size());
            self.refer(table.0, 1, Piece::L2, || format!("L2 table of an L1 table at {l1:#x}"))?;
            for (_, entry) in self.table(table.0)? {
                self.entry(&entry, of_snapshot, table.0)?;
            }
        }
        Ok(())
    }

    fn table(&self, offset: u64) -> Result<Vec<([u64; 2], L2Entry)>, String> {
        let width = (self.geometry.l2_entry_bytes() / 8) as usize;
        let words = self.words(offset, self.geometry.cluster_size() / 8);
        let mut entries = Vec::new();
        for (index, chunk) in words.chunks(width).enumerate() {
            let words = [chunk[0], chunk.get(1).copied().unwrap_or(0)];
            if words != [0, 0] {
                let entry = L2Entry::decode(words, &self.geometry);
                let entry = entry.map_err(|error| format!("entry {index} of L2 {offset:#x}: {error}"))?;
                entries.push((words, entry));
            }
        }
        Ok(entries)
    }

    fn entry(&mut self, entry: &L2Entry, of_snapshot: bool, table: u64) -> Result<(), String> {
        let (offset, len) = match entry {
            L2Entry::Compressed(cluster) => (cluster.host.0, cluster.len),
            L2Entry::Standard(cluster) if !self.geometry.external_data => match cluster.host {
                Some(host) => (host.0, self.geometry.cluster_size()),
                None => return Ok(()),
            },
            L2Entry::Standard(_) => return Ok(()),
        };
        self.keep(of_snapshot, offset, len);
        self.refer(offset, len, Piece::Data, || format!("{entry:?} of the L2 table at {table:#x}"))
    }

    fn keep(&mut self, of_snapshot: bool, offset: u64, len: u64) {
        if of_snapshot {
            self.snapshots.push((offset, len));
        }
    }

    fn snapshots(&mut self, header: &Header) -> Result<(), String> {
        if header.snapshots == 0 {
            return Ok(());
        }
        let offset = header.snapshots_offset.0;
        let there = self.file.length().saturating_sub(offset).next_multiple_of(8);
        let mut bytes = vec![0; there.min(1 << 20) as usize];
        self.file.read(offset, &mut bytes);
        let entries = decode_snapshots(&bytes, header.snapshots).map_err(|error| error.to_string())?;
        let len = entries.iter().map(|snapshot| snapshot.bytes as u64).sum();
        self.keep(true, offset, len);
        self.refer(offset, len, Piece::Snapshot, || "snapshot table".into())?;
        for snapshot in entries {
            self.map(snapshot.entry.l1_table_offset.0, u64::from(snapshot.entry.l1_size), true)?;
        }
        Ok(())
    }

    fn bitmaps(&mut self, header: &Header) -> Result<(), String> {
        let Some(bitmaps) = header.extensions.bitmaps else { return Ok(()) };
        if !header.autoclear.contains(Autoclear::BITMAPS) {
            return Ok(());
        }
        if let Some(record) = header.extensions.record {
            self.refer(record.offset.0, record.len, Piece::Record, || "record of changes".into())?;
        }
        self.refer(bitmaps.directory_offset.0, bitmaps.directory_size, Piece::Bitmap, || {
            "bitmap directory".into()
        })?;
        let mut bytes = vec![0; bitmaps.directory_size as usize];
        self.file.read(bitmaps.directory_offset.0, &mut bytes);
        let entries = decode_bitmap_directory(&bytes, bitmaps.count, &self.geometry)
            .map_err(|error| error.to_string())?;
        for entry in entries {
            let (table, len) = (entry.table_offset.0, u64::from(entry.table_entries));
            self.refer(table, len * 8, Piece::Bitmap, || "bitmap table".into())?;
            for word in self.words(table, len) {
                let found =
                    BitmapTableEntry::decode(word, &self.geometry).map_err(|error| error.to_string())?;
                if let BitmapTableEntry::Data(host) = found {
                    self.refer(host.0, 1, Piece::Bitmap, || "bitmap".into())?;
                }
            }
        }
        Ok(())
    }

    fn refcount(&self, blocks: &[Option<Vec<u8>>], cluster: u64) -> u64 {
        let entries = self.geometry.refcount_block_entries();
        let block = blocks.get((cluster / entries) as usize).and_then(Option::as_ref);
        block
            .and_then(|bytes| refcount_get(bytes, cluster % entries, self.geometry.refcount_order))
            .unwrap_or(0)
    }

    fn compare(&self, header: &Header) -> Result<(), String> {
        let mut blocks = Vec::new();
        for index in 0..self.refcount_table.len() as u64 {
            let bytes = self.block(index)?.map(|offset| {
                let mut bytes = vec![0; self.geometry.cluster_size() as usize];
                self.file.read(offset, &mut bytes);
                bytes
            });
            blocks.push(bytes);
        }
        let refcount = |cluster: u64| self.refcount(&blocks, cluster);
        for (cluster, &references) in self.references.iter().enumerate() {
            let stored = refcount(cluster as u64);
            if stored < u64::from(references) {
                let who = Walk::of(self.file, header, Some(cluster as u64))?.answer.join("; ");
                return Err(format!(
                    "cluster {cluster} has {references} references and refcount {stored}: {who}"
                ));
            }
        }
        let copied = |host: u64, copied: bool, what: &str| {
            let stored = refcount(host >> self.geometry.cluster_bits);
            match (stored == 1) == copied {
                true => Ok(()),
                false => {
                    Err(format!("COPIED is {copied} for the {what} at {host:#x} with refcount {stored}"))
                }
            }
        };
        for word in self.words(header.l1_table_offset.0, u64::from(header.l1_size)) {
            let entry = L1Entry::decode(word, &self.geometry).map_err(|error| error.to_string())?;
            let Some(table) = entry.table else { continue };
            copied(table.0, entry.copied, "L2 table")?;
            for (_, entry) in self.table(table.0)? {
                if let L2Entry::Standard(cluster) = entry
                    && let (false, Some(host)) = (self.geometry.external_data, cluster.host)
                {
                    copied(host.0, cluster.copied, "cluster")?;
                }
            }
        }
        Ok(())
    }
}
