//! Reading the snapshot table.

use qcow2_layout::{
    DecodedSnapshot, SNAPSHOT_EXTRA_BYTES_MAX, SNAPSHOT_EXTRA_BYTES_V3, SNAPSHOT_TABLE_BYTES_MAX,
    SnapshotError, Version, decode_snapshots_dropping_extra,
};

use super::CheckError;
use super::claims::Claim;
use super::pass::{Pass, Snapshots};
use super::report::{Finding, Owner};
use crate::lists;
use crate::table_io::read_bytes;

/// How much of a table whose length is unknown is read first.
const FIRST_BYTES: u64 = 64 << 10;

impl Pass<'_> {
    /// Reads the table and claims it; what is wrong with entries is reported, damaged tables count as empty.
    pub(super) async fn read_snapshots(&mut self) -> Result<(), CheckError> {
        if self.header.snapshots == 0 {
            return Ok(());
        }
        let Some(decoded) = self.decode_snapshots().await else { return Ok(()) };
        let bytes = decoded.iter().map(|snapshot| snapshot.bytes as u64).sum();
        if self.claim(Owner::SnapshotTable, self.header.snapshots_offset.0, bytes, 1)? != Claim::Good {
            self.complete = false;
        }
        let mut faulty = false;
        for (index, snapshot) in decoded.iter().enumerate() {
            faulty |= self.check_extra(index, snapshot.extra_bytes);
        }
        let entries = lists::collect(decoded.into_iter().map(|snapshot| snapshot.entry));
        let mut entries = entries.map_err(|_| CheckError::NoMemory { what: "the snapshot table" })?;
        if self.geometry.version == Version::V3 {
            // An entry that does not say the size of its disk is of the disk as it is, for every reader of it, QEMU's too: the
            // repaired entry says just that.
            let size = self.header.size;
            entries.iter_mut().for_each(|entry| entry.disk_size = entry.disk_size.or(Some(size)));
        }
        self.snapshots = Snapshots { entries, bytes, faulty };
        Ok(())
    }

    /// The length of the table stands nowhere: read more until it is enough.
    async fn decode_snapshots(&mut self) -> Option<Vec<DecodedSnapshot>> {
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
                Ok(decoded) => return Some(decoded),
                Err(SnapshotError::Truncated { needed, .. }) if needed <= available && len < available => {
                    len = needed.max(len * 2).min(available);
                }
                Err(error @ SnapshotError::NoMemory(_)) => {
                    self.unreadable(Owner::SnapshotTable, offset, &error);
                    return None;
                }
                Err(error) => {
                    self.found_incomplete(&Finding::Snapshot(error));
                    return None;
                }
            }
        }
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
