//! Walking L1 and L2 tables.

use std::collections::BTreeMap;

use qcow2_layout::{Cluster, CompressedCluster, EntryError, HostOffset, L1Entry, L2Entry};

use super::CheckError;
use super::claims::Claim;
use super::pass::Pass;
use super::report::{Finding, Owner, Progress};
use crate::lists;
use crate::table_io::PIECE_BYTES;

/// An L1 table that was claimed: of the disk, or of snapshots.
pub(super) struct L1Table {
    offset: u64,
    entries: u64,
    /// Snapshots that use this very table; one, unless the image is damaged.
    times: u32,
    active: bool,
    /// Nothing but an L1 table, as far as can be told.
    readable: bool,
}

impl L1Table {
    fn overlaps(&self, other: &L1Table) -> bool {
        let ends = (self.offset + self.entries * 8, other.offset + other.entries * 8);
        self.offset < ends.1 && other.offset < ends.0
    }
}

/// Clusters of data that follow each other in a table and in the file: claimed together.
#[derive(Clone, Copy, Default)]
struct DataRun {
    host: u64,
    bytes: u64,
}

/// How far the reading of an L2 table of the disk is; tables that only snapshots use have no place in it.
struct InDisk {
    /// Guest offset of the entry.
    guest: u64,
    /// Where the next allocated cluster should be to follow the one before; starts anew with every table, as
    /// QEMU counts.
    expected: Option<u64>,
}

impl InDisk {
    fn from(guest: u64) -> Self {
        Self { guest, expected: None }
    }
}

impl Pass<'_> {
    /// Claims all L1 tables and the snapshot table; tables that lie on something else are told and left out.
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

    /// The table of an L1 entry. Reserved bits are told and ignored; other faults lose the table.
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
            let mut guest = done.saturating_mul(self.geometry.bytes_per_l2_table());
            for word in piece.as_deref().unwrap_or_default().as_chunks::<8>().0 {
                let word = L1Entry::without_reserved(u64::from_be_bytes(*word));
                if let Ok(L1Entry { table: Some(table), .. }) = L1Entry::decode(word, &self.geometry) {
                    self.scan_l2_table(self.cluster_of(table.0), Some(InDisk::from(guest))).await?;
                }
                guest = guest.saturating_add(self.geometry.bytes_per_l2_table());
            }
            done += entries;
            let size = self.header.guest_size();
            let scanned = done.saturating_mul(self.geometry.bytes_per_l2_table()).min(size);
            self.progress(Progress::Scanned { done: scanned, total: size });
        }
        let mut from = 0;
        while let Some(cluster) = self.l2_tables.next(from) {
            self.scan_l2_table(cluster, None).await?;
            from = cluster + 1;
        }
        Ok(())
    }

    /// Reads one L2 table, unless that was done before.
    async fn scan_l2_table(&mut self, cluster: u64, mut in_disk: Option<InDisk>) -> Result<(), CheckError> {
        let times = self.l2_tables.get(cluster);
        if times == 0 {
            return Ok(());
        }
        let forgotten = self.l2_tables.set(cluster, 0);
        forgotten.map_err(self.full(self.l2_tables.bytes_max()))?;
        let offset = self.offset_of(cluster).0;
        let Some(table) = self.read_piece(Owner::L2, offset, self.geometry.cluster_size()).await else {
            return Ok(());
        };
        let mut run = DataRun::default();
        for (at, words) in l2_words(&table, self.geometry.extended_l2) {
            if words != [0, 0]
                && let Some(data) =
                    self.count_l2_entry(HostOffset(offset + at), words, times, in_disk.as_mut())?
            {
                run = self.extend_data_run(run, data.0, times)?;
            }
            if let Some(in_disk) = &mut in_disk {
                in_disk.guest = in_disk.guest.saturating_add(self.geometry.cluster_size());
            }
        }
        self.claim_data_run(run, times)
    }

    /// The run with one cluster more; one that it does not go on with is claimed.
    fn extend_data_run(&mut self, run: DataRun, host: u64, times: u32) -> Result<DataRun, CheckError> {
        let cluster_size = self.geometry.cluster_size();
        if !host.is_multiple_of(cluster_size) {
            // A faulty entry, which may refer to parts of two clusters.
            self.claim(Owner::Data, host, cluster_size, times)?;
            return Ok(run);
        }
        if run.bytes > 0 && run.host.checked_add(run.bytes) == Some(host) {
            return Ok(DataRun { bytes: run.bytes + cluster_size, ..run });
        }
        self.claim_data_run(run, times)?;
        Ok(DataRun { host, bytes: cluster_size })
    }

    /// Claims all of it: at once, or one by one where each cluster is told of.
    fn claim_data_run(&mut self, run: DataRun, times: u32) -> Result<(), CheckError> {
        let cluster_size = self.geometry.cluster_size();
        if run.host.saturating_add(run.bytes) <= self.file_length {
            return self.claim(Owner::Data, run.host, run.bytes, times).map(drop);
        }
        for at in (0..run.bytes).step_by(cluster_size as usize) {
            self.claim(Owner::Data, run.host.saturating_add(at), cluster_size, times)?;
        }
        Ok(())
    }

    /// Counts what an L2 entry refers to, even if the entry is faulty: what might be data is not free. Compressed data is claimed;
    /// the cluster of other data is given back, to be claimed with its neighbours.
    fn count_l2_entry(
        &mut self,
        at: HostOffset,
        words: [u64; 2],
        times: u32,
        in_disk: Option<&mut InDisk>,
    ) -> Result<Option<HostOffset>, CheckError> {
        let decoded = match &in_disk {
            Some(in_disk) => L2Entry::decode_at(words, in_disk.guest, &self.geometry),
            None => L2Entry::decode(words, &self.geometry),
        };
        let entry = match decoded {
            Ok(entry) => Some(entry),
            Err(error) => {
                self.found(&Finding::Entry { at, error });
                L2Entry::host_claim(words, &self.geometry)
            }
        };
        match entry {
            Some(L2Entry::Compressed(compressed)) => {
                self.count_compressed(compressed, times, in_disk)?;
                Ok(None)
            }
            Some(L2Entry::Standard(Cluster { host: Some(host), copied, .. })) => {
                self.claims.any_uncopied |= in_disk.is_some() && !copied;
                Ok(self.count_data(host, in_disk))
            }
            Some(L2Entry::Standard(_)) | None => Ok(None),
        }
    }

    fn count_compressed(
        &mut self,
        compressed: CompressedCluster,
        times: u32,
        in_disk: Option<&mut InDisk>,
    ) -> Result<(), CheckError> {
        if in_disk.is_some() {
            self.report.allocated_clusters += 1;
            self.report.compressed_clusters += 1;
            // Each needs a request of its own, neighbours or not.
            self.report.fragmented_clusters += 1;
        }
        self.claim(Owner::Data, compressed.host.0, compressed.len, times).map(drop)
    }

    /// The cluster, if it lies in this file.
    fn count_data(&mut self, host: HostOffset, in_disk: Option<&mut InDisk>) -> Option<HostOffset> {
        if let Some(in_disk) = in_disk {
            self.report.allocated_clusters += 1;
            if in_disk.expected.is_some_and(|expected| expected != host.0) {
                self.report.fragmented_clusters += 1;
            }
            in_disk.expected = Some(host.0.saturating_add(self.geometry.cluster_size()));
        }
        (!self.geometry.external_data).then_some(host)
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
