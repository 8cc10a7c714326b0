//! Entries of an L1 table: where an L2 table is.

use crate::offset::check_cluster;
use crate::{EntryError, Geometry, HostOffset};

const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;
const RESERVED_MASK: u64 = 0x7f00_0000_0000_01ff;
const COPIED: u64 = 1 << 63;

/// One L1 entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct L1Entry {
    /// The L2 table; `None` when the whole range is unallocated.
    pub table: Option<HostOffset>,
    /// The table's refcount is exactly one: it may be written in place. Never without a table.
    pub copied: bool,
}

impl L1Entry {
    /// An entry without a table.
    pub const UNALLOCATED: Self = Self { table: None, copied: false };

    /// Checks a word (host byte order): reserved bits, alignment.
    #[inline]
    pub fn decode(word: u64, geometry: &Geometry) -> Result<Self, EntryError> {
        let reserved = word & RESERVED_MASK;
        if reserved != 0 {
            return Err(EntryError::Reserved { table: "L1", entry: word, bits: reserved });
        }
        match word & OFFSET_MASK {
            0 => Ok(Self::UNALLOCATED),
            offset => Ok(Self {
                table: Some(check_cluster("L1", word, offset, geometry)?),
                copied: word & COPIED != 0,
            }),
        }
    }

    /// The word (host byte order) on disk.
    #[inline]
    pub fn encode(&self) -> u64 {
        match self.table {
            None => 0,
            Some(table) => table.0 | if self.copied { COPIED } else { 0 },
        }
    }

    /// The word with its reserved bits cleared: what a checker reads on with after it reported them.
    #[inline]
    pub fn without_reserved(word: u64) -> u64 {
        word & !RESERVED_MASK
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Version;

    #[test]
    fn reserved_bits_and_unaligned_tables_are_refused() {
        let geometry = Geometry::new(Version::V3, 16, 4).unwrap();
        for bit in (0..9).chain(56..63) {
            let found = L1Entry::decode(0x10000 | 1 << bit, &geometry);
            assert!(matches!(found, Err(EntryError::Reserved { table: "L1", .. })), "bit {bit}");
        }
        assert!(matches!(L1Entry::decode(0x8000, &geometry), Err(EntryError::Unaligned { .. })));
    }

    proptest! {
        #[test]
        fn every_word_is_refused_or_survives_a_round_trip(word: u64, bits in 9u32..=21) {
            let geometry = Geometry::new(Version::V3, bits, 4).unwrap();
            for word in [word, L1Entry::without_reserved(word) & !(geometry.cluster_size() - 1)] {
                if let Ok(entry) = L1Entry::decode(word, &geometry) {
                    prop_assert_eq!(L1Entry::decode(entry.encode(), &geometry), Ok(entry));
                }
            }
        }
    }
}
