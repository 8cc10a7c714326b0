//! Persistent dirty bitmaps: the directory, and the tables of each bitmap.

use std::collections::{HashSet, TryReserveError};

use thiserror::Error;

use crate::bytes::{be16, be32, be64, copied, pad8, part};
use crate::offset::check_cluster;
use crate::{EntryError, Geometry, HostOffset};

/// Most bitmaps in an image.
pub const BITMAPS_MAX: u32 = 65535;
/// Most bytes of the bitmap directory.
pub const BITMAP_DIRECTORY_BYTES_MAX: u64 = 1024 * 65535;
/// Most entries of a bitmap's table.
pub const BITMAP_TABLE_ENTRIES_MAX: u32 = 0x800_0000;
/// Most bytes of a bitmap's data.
pub const BITMAP_BYTES_MAX: u64 = 0x2000_0000;
/// Most bytes of a bitmap's name.
pub const BITMAP_NAME_BYTES_MAX: usize = 1023;
/// log2 of the smallest and largest granularity in bytes.
pub const BITMAP_GRANULARITY_BITS: std::ops::RangeInclusive<u8> = 9..=31;

/// Bytes of a directory entry before its extra data.
const FIXED_BYTES: usize = 24;
/// The type of a dirty tracking bitmap, the only one there is.
const DIRTY_TRACKING: u8 = 1;
const TABLE_OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;
const TABLE_RESERVED_MASK: u64 = 0xff00_0000_0000_01fe;
const ALL_ONES: u64 = 1;

/// Flags of a bitmap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BitmapFlags(pub u32);

impl BitmapFlags {
    /// The bitmap was not saved after its last use: its bits are not to be trusted.
    pub const IN_USE: Self = Self(1);
    /// The bitmap records writes.
    pub const AUTO: Self = Self(2);
    /// Extra data may be ignored.
    pub const EXTRA_DATA_COMPATIBLE: Self = Self(4);

    /// Whether all bits of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Sets or clears all bits of `other`.
    pub fn set(&mut self, other: Self, on: bool) {
        self.0 = if on { self.0 | other.0 } else { self.0 & !other.0 };
    }
}

/// One bitmap of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitmapEntry {
    /// Where the bitmap's table is.
    pub table_offset: HostOffset,
    /// Entries of it.
    pub table_entries: u32,
    /// Flags.
    pub flags: BitmapFlags,
    /// log2 of the guest bytes that a bit stands for.
    pub granularity_bits: u8,
    /// Name, unique in the image.
    pub name: String,
    /// Data of later versions of the format.
    pub extra: Vec<u8>,
}

/// Why a bitmap directory is not one, or cannot be written.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BitmapError {
    /// The directory ends inside an entry, or does not end with the last one.
    #[error("the bitmap directory has {len} bytes; entry {index} of {count} does not fit it")]
    Length {
        /// Which entry.
        index: u32,
        /// Entries there should be.
        count: u32,
        /// Bytes of the directory.
        len: usize,
    },
    /// A field is out of its limits.
    #[error("{field} of bitmap {index} is {found}; allowed: {allowed}")]
    Field {
        /// Which entry.
        index: u32,
        /// Which field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// Its limits.
        allowed: &'static str,
    },
    /// The name is not usable.
    #[error("bitmap {index} has a name that is not UTF-8 or holds a zero byte")]
    Name {
        /// Which entry.
        index: u32,
    },
    /// Two bitmaps have one name.
    #[error("bitmap {index} has the name {name:?} of another one")]
    DuplicateName {
        /// Which entry.
        index: u32,
        /// The name.
        name: String,
    },
    /// There is no memory for so many entries.
    #[error("no memory for the bitmap directory")]
    NoMemory(#[from] TryReserveError),
}

/// Reads all `count` entries of a directory; its length must be exactly theirs.
pub fn decode_bitmap_directory(
    directory: &[u8],
    count: u32,
    geometry: &Geometry,
) -> Result<Vec<BitmapEntry>, BitmapError> {
    let mut found = Vec::new();
    let mut names = HashSet::new();
    let mut at = 0usize;
    let length = |index| BitmapError::Length { index, count, len: directory.len() };
    for index in 0..count {
        let raw = Raw::decode(directory, at).ok_or(length(index))?;
        let entry = BitmapEntry::of(&raw, index)?;
        entry.check(index, geometry)?;
        names.try_reserve(1)?;
        if !names.insert(raw.name) {
            return Err(BitmapError::DuplicateName { index, name: entry.name });
        }
        at += raw.bytes;
        found.try_reserve(1)?;
        found.push(entry);
    }
    if at != directory.len() {
        return Err(length(count));
    }
    Ok(found)
}

/// The directory with these entries, as it lies on disk.
///
/// # Errors
/// An entry is outside the limits of the format, or there is no memory for so many.
pub fn encode_bitmap_directory(entries: &[BitmapEntry], geometry: &Geometry) -> Result<Vec<u8>, BitmapError> {
    let mut out = Vec::new();
    for (index, entry) in (0u32..).zip(entries) {
        entry.check(index, geometry)?;
        entry.encode(index, &mut out)?;
    }
    Ok(out)
}

impl BitmapEntry {
    /// Bytes of the directory entry of a bitmap called `name`.
    pub fn encoded_bytes(name: &str, extra_bytes: usize) -> u64 {
        (FIXED_BYTES + extra_bytes + name.len()).next_multiple_of(8) as u64
    }

    fn of(raw: &Raw<'_>, index: u32) -> Result<Self, BitmapError> {
        let field = |field, found, allowed| BitmapError::Field { index, field, found, allowed };
        if raw.kind != DIRTY_TRACKING {
            return Err(field("type", u64::from(raw.kind), "1 (dirty tracking)"));
        }
        if raw.flags & !7 != 0 {
            return Err(field("flags", u64::from(raw.flags), "bits 0 to 2"));
        }
        let name = String::from_utf8(copied(raw.name)?).ok().filter(|name| !name.contains('\0'));
        Ok(Self {
            table_offset: HostOffset(raw.table_offset),
            table_entries: raw.table_entries,
            flags: BitmapFlags(raw.flags),
            granularity_bits: raw.granularity_bits,
            name: name.ok_or(BitmapError::Name { index })?,
            extra: copied(raw.extra)?,
        })
    }

    fn check(&self, index: u32, geometry: &Geometry) -> Result<(), BitmapError> {
        let field = |field, found, allowed| Err(BitmapError::Field { index, field, found, allowed });
        let entries = u64::from(self.table_entries);
        if !(1..=BITMAP_TABLE_ENTRIES_MAX).contains(&self.table_entries) {
            return field("table size", entries, "1 to 0x8000000 entries");
        }
        if entries * geometry.cluster_size() > BITMAP_BYTES_MAX {
            return field("table size", entries, "at most 512 MiB of bits");
        }
        let offset = self.table_offset.0;
        let inside = offset.checked_add(entries * 8).is_some_and(|end| i64::try_from(end).is_ok());
        if offset == 0 || geometry.in_cluster(offset) != 0 || !inside {
            return field("table offset", offset, "start of a cluster behind the first, ending below 2^63");
        }
        if !BITMAP_GRANULARITY_BITS.contains(&self.granularity_bits) {
            return field("granularity_bits", u64::from(self.granularity_bits), "9 to 31");
        }
        if !(1..=BITMAP_NAME_BYTES_MAX).contains(&self.name.len()) {
            return field("name length", self.name.len() as u64, "1 to 1023 bytes");
        }
        Ok(())
    }

    fn encode(&self, index: u32, out: &mut Vec<u8>) -> Result<(), BitmapError> {
        let too_long = |field, len: usize| BitmapError::Field {
            index,
            field,
            found: len as u64,
            allowed: "what its length field can hold",
        };
        let name_len =
            u16::try_from(self.name.len()).map_err(|_| too_long("name length", self.name.len()))?;
        let extra_len =
            u32::try_from(self.extra.len()).map_err(|_| too_long("extra data", self.extra.len()))?;
        out.try_reserve(FIXED_BYTES + self.extra.len() + self.name.len() + 7)?;
        out.extend(self.table_offset.0.to_be_bytes());
        out.extend(self.table_entries.to_be_bytes());
        out.extend(self.flags.0.to_be_bytes());
        out.extend([DIRTY_TRACKING, self.granularity_bits]);
        out.extend(name_len.to_be_bytes());
        out.extend(extra_len.to_be_bytes());
        out.extend(&self.extra);
        out.extend(self.name.as_bytes());
        pad8(out);
        Ok(())
    }
}

/// The fields of a directory entry, not judged yet.
struct Raw<'a> {
    table_offset: u64,
    table_entries: u32,
    flags: u32,
    kind: u8,
    granularity_bits: u8,
    extra: &'a [u8],
    name: &'a [u8],
    bytes: usize,
}

impl<'a> Raw<'a> {
    fn decode(directory: &'a [u8], at: usize) -> Option<Self> {
        let fixed = part(directory, at, FIXED_BYTES)?;
        let name_len = usize::from(be16(fixed, 18)?);
        let extra_len = usize::try_from(be32(fixed, 20)?).ok()?;
        let extra = part(directory, at + FIXED_BYTES, extra_len)?;
        let name = part(directory, at + FIXED_BYTES + extra_len, name_len)?;
        let bytes = (FIXED_BYTES + extra_len + name_len).next_multiple_of(8);
        part(directory, at, bytes)?;
        Some(Self {
            table_offset: be64(fixed, 0)?,
            table_entries: be32(fixed, 8)?,
            flags: be32(fixed, 12)?,
            kind: *fixed.get(16)?,
            granularity_bits: *fixed.get(17)?,
            extra,
            name,
            bytes,
        })
    }
}

/// One entry of a bitmap's table: a cluster of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitmapTableEntry {
    /// All bits are 0, none stored.
    Zeroes,
    /// All bits are 1, none stored.
    Ones,
    /// The bits are in this cluster.
    Data(HostOffset),
}

impl BitmapTableEntry {
    /// Checks a word (host byte order): reserved bits, alignment; the all-ones bit only without a cluster.
    pub fn decode(word: u64, geometry: &Geometry) -> Result<Self, EntryError> {
        let offset = word & TABLE_OFFSET_MASK;
        let allowed = if offset == 0 { ALL_ONES } else { 0 };
        let reserved = word & (TABLE_RESERVED_MASK | ALL_ONES) & !allowed;
        if reserved != 0 {
            return Err(EntryError::Reserved { table: "bitmap table", entry: word, bits: reserved });
        }
        match (offset, word) {
            (0, 0) => Ok(Self::Zeroes),
            (0, _) => Ok(Self::Ones),
            (offset, _) => Ok(Self::Data(check_cluster("bitmap table", word, offset, geometry)?)),
        }
    }

    /// The word (host byte order) on disk.
    pub fn encode(&self) -> u64 {
        match self {
            Self::Zeroes => 0,
            Self::Ones => ALL_ONES,
            Self::Data(host) => host.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::Version;

    fn entry(name: &str) -> BitmapEntry {
        BitmapEntry {
            table_offset: HostOffset(0x5_0000),
            table_entries: 1,
            flags: BitmapFlags::AUTO,
            granularity_bits: 16,
            name: name.to_owned(),
            extra: Vec::new(),
        }
    }

    #[test]
    fn a_directory_out_of_limits_is_refused_by_field() {
        let geometry = Geometry::new(Version::V3, 16, 4).unwrap();
        let good = encode_bitmap_directory(&[entry("b")], &geometry).unwrap();
        let with = |at: usize, bytes: &[u8]| {
            let mut changed = good.clone();
            changed[at..at + bytes.len()].copy_from_slice(bytes);
            decode_bitmap_directory(&changed, 1, &geometry)
        };
        assert!(with(0, &[]).is_ok());
        for (at, bytes) in [
            (0, &[0u8; 8][..]),
            (0, &[0xff; 8]),
            (7, &[1]),
            (8, &[0; 4]),
            (8, &[0xff; 4]),
            (12, &[0xff]),
            (16, &[2]),
            (17, &[8]),
            (17, &[32]),
            (18, &[0, 0]),
            (18, &[0xff, 0xff]),
            (20, &[0xff; 4]),
            (24, &[0]),
            (24, &[0xff]),
        ] {
            assert!(with(at, bytes).is_err(), "{bytes:?} at {at}");
        }
        assert!(decode_bitmap_directory(&good, 2, &geometry).is_err());
        assert!(decode_bitmap_directory(&good, 0, &geometry).is_err());
    }

    #[test]
    fn two_bitmaps_never_share_a_name() {
        let geometry = Geometry::new(Version::V3, 16, 4).unwrap();
        let directory = encode_bitmap_directory(&[entry("b"), entry("b")], &geometry).unwrap();
        let found = decode_bitmap_directory(&directory, 2, &geometry);
        assert_eq!(found, Err(BitmapError::DuplicateName { index: 1, name: "b".to_owned() }));
    }

    proptest! {
        #[test]
        fn a_written_directory_reads_back_as_it_was(
            cluster in 1u64..1000, entries in 1u32..2000, flags in 0u32..8, granularity_bits in 9u8..=31,
            name in "[^\0]{1,200}", extra in vec(any::<u8>(), 0..50),
        ) {
            let geometry = Geometry::new(Version::V3, 16, 4).unwrap();
            let one = BitmapEntry {
                table_offset: HostOffset(cluster << 16), table_entries: entries, flags: BitmapFlags(flags),
                granularity_bits, name, extra,
            };
            let both = vec![one.clone(), BitmapEntry { name: one.name.clone() + "'", ..one }];
            let directory = encode_bitmap_directory(&both, &geometry).unwrap();
            prop_assert_eq!(decode_bitmap_directory(&directory, 2, &geometry), Ok(both));
        }

        #[test]
        fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..200), count: u32, word: u64) {
            let geometry = Geometry::new(Version::V3, 9, 4).unwrap();
            let _ = decode_bitmap_directory(&bytes, count, &geometry);
            if let Ok(entry) = BitmapTableEntry::decode(word, &geometry) {
                prop_assert_eq!(entry.encode(), word);
            }
        }
    }
}
