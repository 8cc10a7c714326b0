//! Reading the snapshot table.

use std::io;
use std::ops::Range;

use qcow2_layout::{
    DecodedSnapshot, SNAPSHOT_EXTRA_BYTES_MAX, SNAPSHOT_EXTRA_BYTES_V3, SNAPSHOT_FIXED_BYTES,
    SNAPSHOT_TABLE_BYTES_MAX, SnapshotError, Version, decode_snapshots_dropping_extra,
};
use storage::Storage;

use super::CheckError;
use super::claims::Claim;
use super::pass::{Pass, Snapshots};
use super::report::{Finding, Owner};
use crate::lists;
use crate::table_io::read_bytes;

/// How much of a table whose length is unknown is read first.
const FIRST_BYTES: u64 = 64 << 10;

/// How much of a table with too much extra data is looked through, as QEMU does.
const TABLE_READ_BYTES_MAX: u64 = i32::MAX as u64;

/// Bytes of a table that are read together.
const WINDOW_BYTES: u64 = 64 << 10;
/// Reads of a table at most: ten times what the largest allowed one needs. Entries with much extra data cost a read each.
const READS_MAX: u32 = 10_000;

/// A part of a file that was read last: entries that follow one another cost no read each.
struct Window<'a> {
    file: &'a dyn Storage,
    start: u64,
    bytes: Vec<u8>,
    reads: u32,
}

impl Window<'_> {
    async fn bytes(&mut self, part: Range<u64>) -> io::Result<&[u8]> {
        let (len, end) = (part.end - part.start, self.start + self.bytes.len() as u64);
        if part.start < self.start || part.end > end {
            let there = self.file.length().saturating_sub(part.start);
            let wanted = len.max(WINDOW_BYTES);
            self.bytes = match wanted.min(there) {
                0 => Vec::new(),
                len => read_bytes(self.file, part.start, len).await?.to_vec(),
            };
            // Behind its end a file reads as zeroes, for QEMU too.
            self.bytes.resize(wanted as usize, 0);
            (self.start, self.reads) = (part.start, self.reads + 1);
        }
        let from = (part.start - self.start) as usize;
        Ok(self.bytes.get(from..from + len as usize).unwrap_or_default())
    }
}

/// What was read of a table.
#[derive(Default)]
struct Decoded {
    entries: Vec<DecodedSnapshot>,
    /// So many entries behind those are beyond what a table may have.
    beyond: u32,
}

impl Pass<'_> {
    /// Reads the table and claims it; what is wrong with entries is reported, damaged tables count as empty.
    pub(super) async fn read_snapshots(&mut self) -> Result<(), CheckError> {
        if self.header.snapshots == 0 {
            return Ok(());
        }
        let Some(Decoded { entries: decoded, beyond }) = self.decode_snapshots().await else {
            return Ok(());
        };
        let beyond = beyond.saturating_add(self.snapshots.beyond);
        let bytes: u64 = decoded.iter().map(|snapshot| snapshot.bytes as u64).sum();
        let bytes =
            bytes.min(self.file_length.saturating_sub(self.header.snapshots_offset.0).next_multiple_of(8));
        if self.claim(Owner::SnapshotTable, self.header.snapshots_offset.0, bytes, 1)? != Claim::Good {
            self.complete = false;
        }
        let mut faulty = false;
        for (index, snapshot) in decoded.iter().enumerate() {
            faulty |= self.check_extra(index, snapshot.extra_bytes);
        }
        if beyond > 0 {
            self.found(&Finding::SnapshotsBeyond { snapshots: beyond });
        }
        let entries = lists::collect(decoded.into_iter().map(|snapshot| snapshot.entry));
        let mut entries = entries.map_err(|_| CheckError::NoMemory { what: "the snapshot table" })?;
        if self.geometry.version == Version::V3 {
            // An entry that does not say the size of its disk is of the disk as it is, for every reader of it, QEMU's too: the
            // repaired entry says just that.
            let size = self.header.size;
            entries.iter_mut().for_each(|entry| entry.disk_size = entry.disk_size.or(Some(size)));
        }
        let by_header = self.snapshots.beyond;
        self.snapshots = Snapshots { entries, bytes, faulty, cut: beyond > 0, beyond: by_header };
        Ok(())
    }

    /// The length of the table stands nowhere: read more until it is enough.
    async fn decode_snapshots(&mut self) -> Option<Decoded> {
        let offset = self.header.snapshots_offset.0;
        // QEMU does not write the padding behind the last entry: the file may end before it.
        let available =
            self.file_length.saturating_sub(offset).next_multiple_of(8).min(SNAPSHOT_TABLE_BYTES_MAX);
        let mut len = available.min(FIRST_BYTES);
        loop {
            let table = match read_bytes(self.file, offset, len).await {
                Ok(table) => table,
                Err(error) => {
                    self.unreadable(Owner::SnapshotTable, offset, &error);
                    return None;
                }
            };
            match decode_snapshots_dropping_extra(&table, self.header.snapshots) {
                Ok(entries) => return Some(Decoded { entries, beyond: 0 }),
                Err(SnapshotError::Truncated { needed, .. }) if needed <= available && len < available => {
                    len = needed.max(len * 2).min(available);
                }
                Err(error @ SnapshotError::NoMemory(_)) => {
                    self.unreadable(Owner::SnapshotTable, offset, &error);
                    return None;
                }
                Err(SnapshotError::TableTooLarge { .. }) => {
                    drop(table);
                    return self.decode_one_by_one(offset).await;
                }
                // A length of extra data that is wrong has the table reach over the end of the file.
                Err(error) => {
                    drop(table);
                    let is_long =
                        |entry: &DecodedSnapshot| entry.extra_bytes as usize > SNAPSHOT_EXTRA_BYTES_MAX;
                    let found = self.decode_one_by_one(offset).await;
                    if found.as_ref().is_some_and(|found| found.entries.iter().any(is_long)) {
                        return found;
                    }
                    self.found_incomplete(&Finding::Snapshot(error));
                    return None;
                }
            }
        }
    }

    /// A table that is longer than allowed: its entries up to there. Extra data beyond its limit goes, and does not count.
    async fn decode_one_by_one(&mut self, table: u64) -> Option<Decoded> {
        let (mut at, mut kept_bytes) = (table, 0);
        let mut decoded = Decoded::default();
        let mut window = Window { file: self.file, start: 0, bytes: Vec::new(), reads: 0 };
        for index in 0..self.header.snapshots {
            let entry = match Self::read_entry(&mut window, at, index).await {
                Ok(entry) => entry,
                Err(finding) => {
                    self.found_incomplete(&finding);
                    return None;
                }
            };
            let extra = (entry.extra_bytes as usize).saturating_sub(SNAPSHOT_EXTRA_BYTES_MAX) as u64;
            kept_bytes += (entry.bytes as u64).saturating_sub(extra).next_multiple_of(8);
            at += entry.bytes as u64;
            let is_long = kept_bytes > SNAPSHOT_TABLE_BYTES_MAX || at - table > TABLE_READ_BYTES_MAX;
            if is_long || window.reads > READS_MAX {
                decoded.beyond = self.header.snapshots - index;
                return Some(decoded);
            }
            if lists::push(&mut decoded.entries, entry).is_err() {
                self.unreadable(Owner::SnapshotTable, table, &io::Error::from(io::ErrorKind::OutOfMemory));
                return None;
            }
        }
        Some(decoded)
    }

    /// Entry `index`, which begins at `at` of the file, without extra data beyond its limit.
    async fn read_entry(window: &mut Window<'_>, at: u64, index: u32) -> Result<DecodedSnapshot, Finding> {
        let unreadable = |error: &io::Error| Finding::Unreadable {
            owner: Owner::SnapshotTable,
            offset: at,
            error: error.to_string(),
        };
        let fixed = window.bytes(at..at + SNAPSHOT_FIXED_BYTES as u64).await;
        let mut entry = fixed.map_err(|error| unreadable(&error))?.to_vec();
        let long = |entry: &[u8]| {
            entry.get(36..40).and_then(|bytes| Some(u32::from_be_bytes(bytes.try_into().ok()?)))
        };
        let short = |at: usize| {
            entry.get(at..at + 2).and_then(|bytes| Some(u16::from_be_bytes(bytes.try_into().ok()?)))
        };
        let extra_bytes = long(&entry).unwrap_or(0);
        let names_bytes = u64::from(short(12).unwrap_or(0)) + u64::from(short(14).unwrap_or(0));
        let kept = extra_bytes.min(SNAPSHOT_EXTRA_BYTES_MAX as u32);
        if let Some(field) = entry.get_mut(36..40) {
            field.copy_from_slice(&kept.to_be_bytes());
        }
        let extra_at = at + SNAPSHOT_FIXED_BYTES as u64;
        let parts = [(extra_at, u64::from(kept)), (extra_at + u64::from(extra_bytes), names_bytes)];
        for (offset, len) in parts {
            let part = window.bytes(offset..offset + len).await;
            entry.extend_from_slice(part.map_err(|error| unreadable(&error))?);
        }
        entry.resize(entry.len().next_multiple_of(8), 0);
        let decoded = decode_snapshots_dropping_extra(&entry, 1);
        let decoded = decoded.ok().and_then(|mut list| list.pop());
        let truncated = SnapshotError::Truncated { index, needed: entry.len() as u64, len: entry.len() };
        let decoded = decoded.ok_or(Finding::Snapshot(truncated))?;
        let bytes = SNAPSHOT_FIXED_BYTES + extra_bytes as usize + names_bytes as usize;
        Ok(DecodedSnapshot { bytes: bytes.next_multiple_of(8), extra_bytes, ..decoded })
    }

    /// Whether the entry's extra data must be written anew.
    fn check_extra(&mut self, index: usize, extra_bytes: u32) -> bool {
        if extra_bytes as usize > SNAPSHOT_EXTRA_BYTES_MAX {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            self.found(&Finding::Snapshot(SnapshotError::ExtraTooLarge { index, bytes: extra_bytes }));
            return true;
        }
        if self.geometry.version == Version::V3 && extra_bytes < SNAPSHOT_EXTRA_BYTES_V3 {
            self.found(&Finding::SnapshotIncomplete { index, extra_bytes });
            return true;
        }
        false
    }
}
