//! Entries of the snapshot table.

use std::borrow::Cow;
use std::collections::TryReserveError;

use thiserror::Error;

use crate::bytes::{be16, be32, be64, copied, pad8, part};
use crate::header::L1_BYTES_MAX;
use crate::{Geometry, HostOffset, Version};

/// Bytes of an entry before its extra data.
pub const SNAPSHOT_FIXED_BYTES: usize = 40;
/// Most bytes of the snapshot table.
pub const SNAPSHOT_TABLE_BYTES_MAX: u64 = 1024 * 65536;
/// Most bytes of extra data in an entry.
pub const SNAPSHOT_EXTRA_BYTES_MAX: usize = 1024;
/// Bytes of extra data that version 3 demands: size of the VM state, size of the disk.
pub const SNAPSHOT_EXTRA_BYTES_V3: u32 = 16;
/// Bytes of extra data known here: those and the instruction count.
const EXTRA_KNOWN_BYTES: usize = 24;
/// The instruction count of a snapshot that has none.
const ICOUNT_NONE: u64 = u64::MAX;

/// One internal snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// Where the snapshot's L1 table is.
    pub l1_table_offset: HostOffset,
    /// Entries of it.
    pub l1_size: u32,
    /// Unique id, by convention a decimal number.
    pub id: Vec<u8>,
    /// The user's name for it.
    pub name: Vec<u8>,
    /// When it was taken: seconds since 1970.
    pub date_sec: u32,
    /// And nanoseconds.
    pub date_nsec: u32,
    /// How long the guest had been running, in nanoseconds.
    pub vm_clock_nsec: u64,
    /// Bytes of VM state, stored as guest data behind the end of the disk.
    pub vm_state_size: u64,
    /// Size of the guest's disk at that time; `None` in old version 2 images.
    pub disk_size: Option<u64>,
    /// Instructions the guest had executed, where that was recorded.
    pub icount: Option<u64>,
    /// Extra data that is not known here, kept as it is.
    pub unknown_extra: Vec<u8>,
}

/// What a decoded table entry had on disk besides its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedSnapshot {
    /// The entry.
    pub entry: SnapshotEntry,
    /// Bytes on disk, padding included.
    pub bytes: usize,
    /// Bytes of extra data on disk; more than were kept when the limit was exceeded.
    pub extra_bytes: u32,
}

/// Bytes of the longest entry whose extra data is within its limit.
pub const SNAPSHOT_ENTRY_BYTES_MAX: usize =
    (SNAPSHOT_FIXED_BYTES + SNAPSHOT_EXTRA_BYTES_MAX + 2 * u16::MAX as usize).next_multiple_of(8);

/// Why a snapshot table is not one, or cannot be written.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SnapshotError {
    /// The bytes end inside the table: read more.
    #[error("snapshot {index} ends {needed} bytes into the table, of which {len} are there")]
    Truncated {
        /// Which entry.
        index: u32,
        /// Bytes of the table up to its end, as far as that can be seen.
        needed: u64,
        /// Bytes given.
        len: usize,
    },
    /// The table is longer than allowed.
    #[error("the snapshot table has {bytes} bytes or more; at most {SNAPSHOT_TABLE_BYTES_MAX} are allowed")]
    TableTooLarge {
        /// Bytes up to the entry at which this was noticed.
        bytes: u64,
    },
    /// An entry carries more extra data than allowed.
    #[error(
        "snapshot {index} has {bytes} bytes of extra data; at most {SNAPSHOT_EXTRA_BYTES_MAX} are allowed"
    )]
    ExtraTooLarge {
        /// Which entry.
        index: u32,
        /// Bytes of extra data.
        bytes: u32,
    },
    /// The L1 table is out of limits.
    #[error(
        "the L1 table of snapshot {name:?} is at {offset} with {entries} entries; must start at a cluster and have at most {L1_BYTES_MAX} bytes"
    )]
    L1Table {
        /// Name of the snapshot.
        name: String,
        /// Where it is.
        offset: HostOffset,
        /// Entries.
        entries: u32,
    },
    /// A field is longer than its length field can say.
    #[error("{field} of a snapshot has {len} bytes; at most {max} are allowed")]
    FieldTooLong {
        /// Which field.
        field: &'static str,
        /// Bytes.
        len: usize,
        /// Limit.
        max: usize,
    },
    /// Version 3 says how large the disk was, and the entry does not.
    #[error("snapshot {name:?} does not say how large its disk is, as version 3 has to")]
    NoDiskSize {
        /// Name of the snapshot.
        name: String,
    },
    /// There is no memory for so many entries.
    #[error("no memory for the snapshot table")]
    NoMemory(#[from] TryReserveError),
}

impl SnapshotEntry {
    /// The id as text.
    pub fn id_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.id)
    }

    /// The name as text.
    pub fn name_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.name)
    }

    /// Checks the place and the size of the L1 table: not done while decoding, because a damaged snapshot does
    /// not keep the image from being opened.
    pub fn check(&self, geometry: &Geometry) -> Result<(), SnapshotError> {
        let bytes = u64::from(self.l1_size) * 8;
        let end = self.l1_table_offset.0.checked_add(bytes).filter(|&end| i64::try_from(end).is_ok());
        let on_header = self.l1_table_offset.0 == 0 && bytes > 0;
        let aligned = geometry.in_cluster(self.l1_table_offset.0) == 0;
        if bytes > L1_BYTES_MAX || end.is_none() || on_header || !aligned {
            return Err(SnapshotError::L1Table {
                name: self.name_text().into_owned(),
                offset: self.l1_table_offset,
                entries: self.l1_size,
            });
        }
        Ok(())
    }

    /// Reads entry `index`, which starts at `at` in the table. Extra data beyond the limit is left out;
    /// [`DecodedSnapshot::extra_bytes`] tells. `None` when the bytes end before the entry does.
    fn decode(table: &[u8], at: usize) -> Option<Result<DecodedSnapshot, TryReserveError>> {
        let fixed = part(table, at, SNAPSHOT_FIXED_BYTES)?;
        let (id_len, name_len) = (usize::from(be16(fixed, 12)?), usize::from(be16(fixed, 14)?));
        let extra_bytes = be32(fixed, 36)?;
        let extra_at = at + SNAPSHOT_FIXED_BYTES;
        let id_at = extra_at.checked_add(usize::try_from(extra_bytes).ok()?)?;
        let id = part(table, id_at, id_len)?;
        let name = part(table, id_at + id_len, name_len)?;
        let end = (id_at + id_len + name_len - at).next_multiple_of(8);
        part(table, at, end)?;
        let extra = table.get(extra_at..id_at.min(extra_at + SNAPSHOT_EXTRA_BYTES_MAX))?;
        let unknown = extra.get(EXTRA_KNOWN_BYTES..).unwrap_or_default();
        let copies = || Ok((copied(id)?, copied(name)?, copied(unknown)?));
        let (id, name, unknown_extra) = match copies() {
            Ok(copies) => copies,
            Err(error) => return Some(Err(error)),
        };
        let entry = SnapshotEntry {
            l1_table_offset: HostOffset(be64(fixed, 0)?),
            l1_size: be32(fixed, 8)?,
            id,
            name,
            date_sec: be32(fixed, 16)?,
            date_nsec: be32(fixed, 20)?,
            vm_clock_nsec: be64(fixed, 24)?,
            vm_state_size: be64(extra, 0).unwrap_or(u64::from(be32(fixed, 32)?)),
            disk_size: be64(extra, 8),
            icount: be64(extra, 16).filter(|&icount| icount != ICOUNT_NONE),
            unknown_extra,
        };
        Some(Ok(DecodedSnapshot { entry, bytes: end, extra_bytes }))
    }

    /// Bytes of the table up to the end of the entry at `at`, as far as its fixed part tells.
    fn needed(table: &[u8], at: usize) -> u64 {
        let field = |place: usize| part(table, at, SNAPSHOT_FIXED_BYTES).and_then(|fixed| be16(fixed, place));
        let extra = part(table, at, SNAPSHOT_FIXED_BYTES).and_then(|fixed| be32(fixed, 36));
        let variable = u64::from(extra.unwrap_or(0))
            + u64::from(field(12).unwrap_or(0))
            + u64::from(field(14).unwrap_or(0));
        at as u64 + (SNAPSHOT_FIXED_BYTES as u64 + variable).next_multiple_of(8)
    }

    /// Appends the entry as it lies on disk, padding included. Version 3 gets all known extra data, version 2
    /// as much as the values need.
    fn encode(&self, version: Version, out: &mut Vec<u8>) -> Result<(), SnapshotError> {
        let extra = self.encode_extra(version)?;
        let length = |field, len: usize| {
            u16::try_from(len).map_err(|_| SnapshotError::FieldTooLong { field, len, max: 65535 })
        };
        let (len, max) = (extra.len(), SNAPSHOT_EXTRA_BYTES_MAX);
        let extra_len = u32::try_from(len).ok().filter(|_| len <= max);
        let extra_len = extra_len.ok_or(SnapshotError::FieldTooLong { field: "the extra data", len, max })?;
        out.try_reserve(SNAPSHOT_FIXED_BYTES + len + self.id.len() + self.name.len() + 7)?;
        out.extend(self.l1_table_offset.0.to_be_bytes());
        out.extend(self.l1_size.to_be_bytes());
        out.extend(length("the id", self.id.len())?.to_be_bytes());
        out.extend(length("the name", self.name.len())?.to_be_bytes());
        out.extend(self.date_sec.to_be_bytes());
        out.extend(self.date_nsec.to_be_bytes());
        out.extend(self.vm_clock_nsec.to_be_bytes());
        out.extend(u32::try_from(self.vm_state_size).unwrap_or(0).to_be_bytes());
        out.extend(extra_len.to_be_bytes());
        out.extend(extra);
        out.extend(&self.id);
        out.extend(&self.name);
        pad8(out);
        Ok(())
    }

    fn encode_extra(&self, version: Version) -> Result<Vec<u8>, SnapshotError> {
        let mut extra = Vec::new();
        let known = version == Version::V3 || self.disk_size.is_some() || self.icount.is_some();
        if known || !self.unknown_extra.is_empty() {
            // Any size written here is what the disk has when a user goes back to the snapshot: none is made up.
            let no_size = || SnapshotError::NoDiskSize { name: self.name_text().into_owned() };
            extra.extend(self.vm_state_size.to_be_bytes());
            extra.extend(self.disk_size.ok_or_else(no_size)?.to_be_bytes());
            extra.extend(self.icount.unwrap_or(ICOUNT_NONE).to_be_bytes());
            extra.extend(&self.unknown_extra);
        } else if u32::try_from(self.vm_state_size).is_err() {
            extra.extend(self.vm_state_size.to_be_bytes());
        }
        Ok(extra)
    }
}

/// Reads the `count` entries at the start of `table`. Memory grows with the bytes given, not with `count`.
///
/// The length of a table stands nowhere: on [`SnapshotError::Truncated`] give at least `needed` bytes.
///
/// # Errors
/// Also [`SnapshotError::ExtraTooLarge`], unless [`decode_snapshots_dropping_extra`] is used, and
/// [`SnapshotError::NoMemory`].
pub fn decode_snapshots(table: &[u8], count: u32) -> Result<Vec<DecodedSnapshot>, SnapshotError> {
    let found = decode_snapshots_dropping_extra(table, count)?;
    for (index, snapshot) in (0u32..).zip(&found) {
        if snapshot.extra_bytes as usize > SNAPSHOT_EXTRA_BYTES_MAX {
            return Err(SnapshotError::ExtraTooLarge { index, bytes: snapshot.extra_bytes });
        }
    }
    Ok(found)
}

/// As [`decode_snapshots`], but extra data beyond the limit is dropped instead of refused: for repair.
pub fn decode_snapshots_dropping_extra(
    table: &[u8],
    count: u32,
) -> Result<Vec<DecodedSnapshot>, SnapshotError> {
    let mut found = Vec::new();
    let mut at = 0usize;
    for index in 0..count {
        let needed = SnapshotEntry::needed(table, at);
        if needed > SNAPSHOT_TABLE_BYTES_MAX {
            return Err(SnapshotError::TableTooLarge { bytes: needed });
        }
        let Some(snapshot) = SnapshotEntry::decode(table, at) else {
            return Err(SnapshotError::Truncated { index, needed, len: table.len() });
        };
        let snapshot = snapshot?;
        at += snapshot.bytes;
        found.try_reserve(1)?;
        found.push(snapshot);
    }
    Ok(found)
}

/// Reads the entry at the start of `window`, a part of a table, which is number `index` there: for tables that are read in parts. A window of
/// [`SNAPSHOT_ENTRY_BYTES_MAX`] holds every entry.
///
/// # Errors
/// [`SnapshotError::Truncated`] when the window ends before the entry does, [`SnapshotError::ExtraTooLarge`] and [`SnapshotError::NoMemory`].
pub fn decode_snapshot(window: &[u8], index: u32) -> Result<DecodedSnapshot, SnapshotError> {
    let extra = part(window, 0, SNAPSHOT_FIXED_BYTES).and_then(|fixed| be32(fixed, 36)).unwrap_or(0);
    if extra as usize > SNAPSHOT_EXTRA_BYTES_MAX {
        return Err(SnapshotError::ExtraTooLarge { index, bytes: extra });
    }
    let needed = SnapshotEntry::needed(window, 0);
    let entry = SnapshotEntry::decode(window, 0);
    Ok(entry.ok_or(SnapshotError::Truncated { index, needed, len: window.len() })??)
}

/// The table with these entries, as it lies on disk.
///
/// # Errors
/// A field does not fit, the table is longer than allowed, or there is no memory for it.
pub fn encode_snapshots(entries: &[SnapshotEntry], version: Version) -> Result<Vec<u8>, SnapshotError> {
    let mut out = Vec::new();
    for entry in entries {
        entry.encode(version, &mut out)?;
        if out.len() as u64 > SNAPSHOT_TABLE_BYTES_MAX {
            return Err(SnapshotError::TableTooLarge { bytes: out.len() as u64 });
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn bare(decoded: Vec<DecodedSnapshot>) -> Vec<SnapshotEntry> {
        decoded.into_iter().map(|snapshot| snapshot.entry).collect()
    }

    #[test]
    fn a_truncated_table_says_how_much_to_read() {
        let (id, name) = (b"1".to_vec(), vec![b'n'; 300]);
        let entry = SnapshotEntry { id, name, disk_size: Some(512), ..SnapshotEntry::default() };
        let table = encode_snapshots(&[entry.clone(), entry], Version::V3).unwrap();
        for len in 0..table.len() {
            let Err(SnapshotError::Truncated { needed, .. }) = decode_snapshots(&table[..len], 2) else {
                panic!("{len} bytes were enough");
            };
            assert!(needed > len as u64 && needed <= table.len() as u64);
        }
        assert_eq!(decode_snapshots(&table, 2).unwrap().len(), 2);
    }

    #[test]
    fn too_much_extra_data_is_refused_or_dropped_but_never_allocated() {
        let entry = SnapshotEntry { disk_size: Some(512), ..SnapshotEntry::default() };
        let mut table = encode_snapshots(&[entry], Version::V3).unwrap();
        table[36..40].copy_from_slice(&2048u32.to_be_bytes());
        table.resize(40 + 2048, 7);
        assert!(matches!(decode_snapshots(&table, 1), Err(SnapshotError::ExtraTooLarge { bytes: 2048, .. })));
        let kept = decode_snapshots_dropping_extra(&table, 1).unwrap();
        assert_eq!(kept[0].entry.unknown_extra.len(), SNAPSHOT_EXTRA_BYTES_MAX - 24);
        table[36..40].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(matches!(decode_snapshots(&table, 1), Err(SnapshotError::TableTooLarge { .. })));
    }

    /// A repair wrote 0 where a version 3 entry had no size, and the disk was 0 bytes long when its user went back to the snapshot.
    #[test]
    fn no_size_of_a_disk_is_made_up() {
        let entry = SnapshotEntry { name: b"s".to_vec(), ..SnapshotEntry::default() };
        let refused = encode_snapshots(std::slice::from_ref(&entry), Version::V3);
        assert_eq!(refused, Err(SnapshotError::NoDiskSize { name: "s".to_owned() }));
        assert!(encode_snapshots(&[entry], Version::V2).is_ok());
    }

    proptest! {
        #[test]
        fn a_written_table_reads_back_as_it_was(
            numbers in vec((any::<u64>(), any::<u32>(), any::<u64>(), any::<u64>()), 1..4),
            id in vec(any::<u8>(), 0..40), name in vec(any::<u8>(), 0..400), unknown in vec(any::<u8>(), 0..900),
            icount in proptest::option::of(0..u64::MAX),
        ) {
            let entries: Vec<_> = numbers.into_iter().map(|(a, b, c, d)| SnapshotEntry {
                l1_table_offset: HostOffset(a), l1_size: b, id: id.clone(), name: name.clone(), date_sec: b ^ 7,
                date_nsec: b ^ 9, vm_clock_nsec: c, vm_state_size: d, disk_size: Some(a ^ d), icount,
                unknown_extra: unknown.clone(),
            }).collect();
            for version in [Version::V2, Version::V3] {
                let table = encode_snapshots(&entries, version).unwrap();
                let decoded = decode_snapshots(&table, entries.len() as u32).unwrap();
                prop_assert_eq!(decoded.iter().map(|one| one.bytes).sum::<usize>(), table.len());
                prop_assert_eq!(bare(decoded), entries.clone());
            }
        }

        #[test]
        fn a_version_2_entry_without_extra_data_stays_without(size: u64) {
            let entry = SnapshotEntry { vm_state_size: size, ..SnapshotEntry::default() };
            let table = encode_snapshots(std::slice::from_ref(&entry), Version::V2).unwrap();
            prop_assert!(table.len() <= 48);
            prop_assert_eq!(bare(decode_snapshots(&table, 1).unwrap()), vec![entry]);
        }

        #[test]
        fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..300), count: u32) {
            let _ = decode_snapshots(&bytes, count);
        }
    }
}
