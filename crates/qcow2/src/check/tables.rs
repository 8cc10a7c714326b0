//! Walking L1 and L2 tables.

use std::collections::BTreeMap;

use futures_util::stream::{FuturesOrdered, StreamExt};
use qcow2_layout::{Cluster, EntryError, HostOffset, L1Entry, L2Entry};

use super::CheckError;
use super::claims::Claim;
use super::pass::Pass;
use super::reading::BATCHES_AT_ONCE;
use super::report::{Finding, Owner, Progress, Repair};
use super::summary::{Piece, Summary, entry_at, summary};
use crate::lists;
use crate::table_io::PIECE_BYTES;

/// An L1 table that was claimed: of the disk, or of snapshots.
pub(super) struct L1Table {
    offset: u64,
    entries: u64,
    /// Snapshots that use this very table; one, unless the image is damaged.
    times: u32,
    active: bool,
    /// Nothing but an L1 table, as far as can be seen.
    readable: bool,
}

impl L1Table {
    fn overlaps(&self, other: &L1Table) -> bool {
        let ends = (self.offset + self.entries * 8, other.offset + other.entries * 8);
        self.offset < ends.1 && other.offset < ends.0
    }
}

/// An L2 table to be read.
#[derive(Clone, Copy, Debug)]
struct L2Table {
    offset: u64,
    /// L1 entries that lead to it.
    times: u32,
    /// Where on the disk its first entry is; tables that only snapshots use have no place there.
    guest: Option<u64>,
}

/// Tables that are listed at a time.
const TABLES_LISTED_MAX: usize = (PIECE_BYTES / 8) as usize;

impl Pass<'_> {
    /// Claims all L1 tables and the snapshot table; tables that lie on something else are reported and left out.
    pub(super) async fn claim_l1_tables(&mut self) -> Result<Vec<L1Table>, CheckError> {
        let mut tables = Vec::new();
        let active = L1Table {
            offset: self.header.l1_table_offset.0,
            entries: u64::from(self.header.l1_size),
            times: 1,
            active: true,
            readable: true,
        };
        self.claim_l1_table(active, &mut tables)?;
        self.read_snapshots().await?;
        let mut inactive = BTreeMap::new();
        for index in 0..self.snapshots.entries.len() {
            let Some(entry) = self.snapshots.entries.get(index) else { break };
            let key = (entry.l1_table_offset.0, u64::from(entry.l1_size));
            match entry.check(&self.geometry) {
                Ok(()) => *inactive.entry(key).or_insert(0u32) += 1,
                Err(error) => self.found_incomplete(&Finding::Snapshot(error)),
            }
        }
        for ((offset, entries), times) in inactive {
            let table = L1Table { offset, entries, times, active: false, readable: true };
            self.claim_l1_table(table, &mut tables)?;
        }
        Ok(tables)
    }

    /// Tables come in the order of their place, behind the active one. One that starts inside another one is
    /// neither counted nor read in full, or thousands of them could keep us busy forever.
    fn claim_l1_table(&mut self, table: L1Table, tables: &mut Vec<L1Table>) -> Result<(), CheckError> {
        let bytes = table.entries * 8;
        let mut others = tables.first().into_iter().chain(tables.last());
        if others.any(|other| other.overlaps(&table)) {
            self.complete = false;
            return self.claim(Owner::L1, table.offset, bytes.min(1), table.times).map(drop);
        }
        let kept = match self.claim(Owner::L1, table.offset, bytes, table.times)? {
            Claim::Good => table,
            // The same table in several snapshots is damage, but can be read.
            Claim::Overlapping if table.times > 1 || table.active => table,
            Claim::Overlapping => {
                self.complete = false;
                // Kept, so that no other table may start inside it.
                L1Table { readable: false, ..table }
            }
            Claim::Outside => {
                self.complete = false;
                return Ok(());
            }
        };
        lists::push(tables, kept).map_err(|_| CheckError::NoMemory { what: "the list of L1 tables" })
    }

    /// Claims every L2 table, as often as L1 entries refer to it.
    pub(super) async fn count_l2_tables(&mut self, tables: &[L1Table]) -> Result<(), CheckError> {
        for table in tables.iter().filter(|table| table.readable) {
            let bytes = table.entries * 8;
            let mut done = 0;
            while done < bytes {
                let len = PIECE_BYTES.min(bytes - done);
                if let Some(piece) = self.read_piece(Owner::L1, table.offset + done, len).await {
                    self.count_l1_piece(table, table.offset + done, &piece)?;
                }
                done += len;
            }
        }
        Ok(())
    }

    fn count_l1_piece(&mut self, table: &L1Table, offset: u64, piece: &[u8]) -> Result<(), CheckError> {
        for (at, word) in (offset..).step_by(8).zip(piece.as_chunks::<8>().0) {
            let word = u64::from_be_bytes(*word);
            if word != 0
                && let Some(host) = self.decode_l1(HostOffset(at), word, table.active)
            {
                self.claim_l2_table(host.0, table.times)?;
            }
        }
        Ok(())
    }

    /// The table of an L1 entry. Reserved bits are reported and ignored; other faults lose the table.
    fn decode_l1(&mut self, at: HostOffset, word: u64, active: bool) -> Option<HostOffset> {
        let mut decoded = L1Entry::decode(word, &self.geometry);
        if let Err(error @ EntryError::Reserved { .. }) = decoded {
            self.found(&Finding::Entry { at, error });
            decoded = L1Entry::decode(L1Entry::without_reserved(word), &self.geometry);
        }
        match decoded {
            Ok(entry) => {
                self.claims.any_uncopied |= active && entry.table.is_some() && !entry.copied;
                entry.table
            }
            Err(error) => {
                self.found_incomplete(&Finding::Entry { at, error });
                None
            }
        }
    }

    fn claim_l2_table(&mut self, offset: u64, times: u32) -> Result<(), CheckError> {
        match self.claim(Owner::L2, offset, self.geometry.cluster_size(), times)? {
            Claim::Good => {
                let counted = self.l2_tables.add(self.cluster_of(offset), times);
                counted.map(drop).map_err(self.full(self.l2_tables.bytes_max()))
            }
            Claim::Overlapping | Claim::Outside => {
                self.complete = false;
                Ok(())
            }
        }
    }

    /// Reads every L2 table once: those of the disk in guest order, for the sake of the statistics, then
    /// those that only snapshots use.
    pub(super) async fn scan_l2_tables(&mut self) -> Result<(), CheckError> {
        let (start, total) = (self.header.l1_table_offset.0, u64::from(self.header.l1_size));
        let mut done = 0;
        while done < total {
            let entries = (PIECE_BYTES / 8).min(total - done);
            let piece = self.read_piece(Owner::L1, start + done * 8, entries * 8).await;
            let mut tables = Vec::new();
            let mut guest = done.saturating_mul(self.geometry.bytes_per_l2_table());
            for word in piece.as_deref().unwrap_or_default().as_chunks::<8>().0 {
                let word = L1Entry::without_reserved(u64::from_be_bytes(*word));
                if let Ok(L1Entry { table: Some(table), .. }) = L1Entry::decode(word, &self.geometry) {
                    self.take_l2_table(self.cluster_of(table.0), Some(guest), &mut tables)?;
                }
                guest = guest.saturating_add(self.geometry.bytes_per_l2_table());
            }
            self.read_l2_tables(tables).await?;
            done += entries;
            self.scanned(done.saturating_mul(self.geometry.bytes_per_l2_table()));
        }
        let mut from = 0;
        loop {
            let mut tables = Vec::new();
            while tables.len() < TABLES_LISTED_MAX
                && let Some(cluster) = self.l2_tables.next(from)
            {
                self.take_l2_table(cluster, None, &mut tables)?;
                from = cluster + 1;
            }
            if tables.is_empty() {
                return Ok(());
            }
            self.read_l2_tables(tables).await?;
        }
    }

    /// So much of the disk was looked at.
    fn scanned(&mut self, guest: u64) {
        let total = self.header.guest_size();
        self.progress(Progress::Scanned { done: guest.min(total), total });
    }

    /// Puts a table on the list, unless that was done before.
    fn take_l2_table(
        &mut self,
        cluster: u64,
        guest: Option<u64>,
        tables: &mut Vec<L2Table>,
    ) -> Result<(), CheckError> {
        let times = self.l2_tables.get(cluster);
        if times == 0 {
            return Ok(());
        }
        let forgotten = self.l2_tables.set(cluster, 0);
        forgotten.map_err(self.full(self.l2_tables.bytes_max()))?;
        let table = L2Table { offset: self.offset_of(cluster).0, times, guest };
        lists::push(tables, table).map_err(|_| CheckError::NoMemory { what: "the list of L2 tables" })
    }

    /// Reads these tables, several at a time, and counts what they lead to, one after another.
    async fn read_l2_tables(&mut self, tables: Vec<L2Table>) -> Result<(), CheckError> {
        let (reader, geometry) = (self.reader.clone(), self.geometry);
        let look = move |table: L2Table, bytes: &[u8]| summary(bytes, table.guest, &geometry);
        let mut reading = FuturesOrdered::new();
        let mut tables = tables.into_iter();
        loop {
            while reading.len() < BATCHES_AT_ONCE {
                let batch = self.next_batch(&mut tables, |table| table.offset).await;
                if batch.is_empty() {
                    break;
                }
                reading.push_back(reader.clone().read_each(batch, geometry.cluster_size(), look));
            }
            let Some(batch) = reading.next().await else { return Ok(()) };
            for (table, summed) in batch {
                match summed {
                    Ok(Ok(summary)) => self.count_l2_table(table, summary).await?,
                    Ok(Err(error)) => self.unreadable(Owner::L2, table.offset, &error),
                    Err(error) => self.unreadable(Owner::L2, table.offset, &error),
                }
            }
        }
    }

    async fn count_l2_table(&mut self, table: L2Table, summary: Summary) -> Result<(), CheckError> {
        if summary.is_zero {
            self.found_zeroes(table.offset).await;
            return Ok(());
        }
        for piece in summary.pieces {
            match piece {
                Piece::Data { host, clusters } => {
                    self.claim_data(host, clusters << self.geometry.cluster_bits, table.times)?;
                }
                Piece::Entry { index, words } => self.count_odd_entry(table, index, words)?,
            }
        }
        if let Some(guest) = table.guest {
            self.report.allocated_clusters += summary.allocated;
            self.report.compressed_clusters += summary.compressed;
            self.report.fragmented_clusters += summary.fragmented;
            self.claims.any_uncopied |= summary.uncopied;
            self.scanned(guest.saturating_add(self.geometry.bytes_per_l2_table()));
        }
        Ok(())
    }

    /// Claims neighbours: at once, or one by one where each is reported.
    fn claim_data(&mut self, host: u64, bytes: u64, times: u32) -> Result<(), CheckError> {
        let cluster_size = self.geometry.cluster_size();
        if host.saturating_add(bytes) <= self.file_length {
            return self.claim(Owner::Data, host, bytes, times).map(drop);
        }
        for at in (0..bytes).step_by(cluster_size as usize) {
            self.claim(Owner::Data, host.saturating_add(at), cluster_size, times)?;
        }
        Ok(())
    }

    /// Counts what a compressed or faulty entry refers to: what might be data is not free.
    fn count_odd_entry(&mut self, table: L2Table, index: u64, words: [u64; 2]) -> Result<(), CheckError> {
        let guest = table.guest.map(|guest| guest.saturating_add(index << self.geometry.cluster_bits));
        let (entry, error) = entry_at(words, guest, &self.geometry);
        if let Some(error) = error {
            let at = HostOffset(table.offset + index * self.geometry.l2_entry_bytes());
            self.found(&Finding::Entry { at, error });
        }
        // The disk's tables get such an entry without its place (`copied.rs`).
        if self.repair == Repair::All
            && table.guest.is_some()
            && L2Entry::without_unaligned_place(words, &self.geometry).is_some()
        {
            return Ok(());
        }
        let (offset, len) = match entry {
            Some(L2Entry::Compressed(compressed)) => (compressed.host.0, compressed.len),
            Some(L2Entry::Standard(Cluster { host: Some(host), .. })) if !self.geometry.external_data => {
                // Of a faulty entry; may refer to parts of two clusters.
                (host.0, self.geometry.cluster_size())
            }
            Some(L2Entry::Standard(_)) | None => return Ok(()),
        };
        self.claim(Owner::Data, offset, len, table.times).map(drop)
    }
}

/// The entries of an L2 table with their places in it, in host byte order.
pub(crate) fn l2_words(table: &[u8], extended: bool) -> impl Iterator<Item = (u64, [u64; 2])> {
    let step = if extended { 16 } else { 8 };
    (0u64..).step_by(step).zip(table.chunks_exact(step)).map(move |(at, entry)| {
        let mut words = entry.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word));
        (at, [words.next().unwrap_or(0), words.next().unwrap_or(0)])
    })
}
