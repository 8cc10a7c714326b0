//! Refcount table entries, and refcounts of 1 to 64 bits inside a block.

use std::ops::Range;

use thiserror::Error;

use crate::offset::check_cluster;
use crate::{EntryError, Geometry, HostOffset};

const OFFSET_MASK: u64 = 0xffff_ffff_ffff_fe00;

/// One entry of the refcount table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefcountTableEntry {
    /// The refcount block; `None` when all its clusters are free.
    pub block: Option<HostOffset>,
}

impl RefcountTableEntry {
    /// Checks a word (host byte order): reserved bits, alignment, limit.
    #[inline]
    pub fn decode(word: u64, geometry: &Geometry) -> Result<Self, EntryError> {
        let reserved = word & !OFFSET_MASK;
        if reserved != 0 {
            return Err(EntryError::Reserved { table: "refcount table", entry: word, bits: reserved });
        }
        match word {
            0 => Ok(Self { block: None }),
            offset => Ok(Self { block: Some(check_cluster("refcount table", word, offset, geometry)?) }),
        }
    }

    /// The word (host byte order) on disk.
    #[inline]
    pub fn encode(&self) -> u64 {
        self.block.map_or(0, |block| block.0)
    }
}

/// Why a refcount was not stored.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RefcountError {
    /// The value needs more bits.
    #[error("refcount {value} does not fit in {bits} bits")]
    TooLarge {
        /// The value.
        value: u64,
        /// Bits of a refcount in this image.
        bits: u32,
    },
    /// The block has no such refcount.
    #[error("refcount {index} is beyond the end of a block of {len} bytes")]
    OutOfBlock {
        /// Which refcount.
        index: u64,
        /// Bytes of the block.
        len: usize,
    },
}

/// Refcount `index` of `block`, at a width of `1 << order` bits (order 0 to 6). `None` when it lies beyond the
/// block. Narrower than a byte: the lowest bits come first; otherwise big endian.
#[inline]
pub fn refcount_get(block: &[u8], index: u64, order: u32) -> Option<u64> {
    let index = usize::try_from(index).ok()?;
    match order {
        0..3 => {
            let per_byte = 8usize >> order;
            let byte = block.get(index / per_byte)?;
            Some(u64::from((byte >> ((index % per_byte) << order)) & narrow_mask(order)))
        }
        3 => block.get(index).map(|&byte| u64::from(byte)),
        4 => block.as_chunks().0.get(index).map(|bytes| u64::from(u16::from_be_bytes(*bytes))),
        5 => block.as_chunks().0.get(index).map(|bytes| u64::from(u32::from_be_bytes(*bytes))),
        6 => block.as_chunks().0.get(index).map(|bytes| u64::from_be_bytes(*bytes)),
        _ => None,
    }
}

/// The first refcount of `range` of `block` that is 0, at a width of `1 << order` bits (order 0 to 6). What of `range` lies beyond the block
/// is not looked at. At widths from a byte on it reads as fast as memory does: one who looks for a free cluster behind 4 TiB in use passes
/// millions.
pub fn refcount_find_zero(block: &[u8], mut range: Range<u64>, order: u32) -> Option<u64> {
    let wide = match order {
        3 => find_zero::<1>(block, &range),
        4 => find_zero::<2>(block, &range),
        5 => find_zero::<4>(block, &range),
        6 => find_zero::<8>(block, &range),
        _ => return range.find(|&index| refcount_get(block, index, order) == Some(0)),
    };
    wide.map(|behind| range.start + behind as u64)
}

/// How far behind the start of `range` the first element is that is all zeroes.
fn find_zero<const BYTES: usize>(block: &[u8], range: &Range<u64>) -> Option<usize> {
    /// Elements looked at together, without a branch.
    const TOGETHER: usize = 64;
    let all = block.as_chunks::<BYTES>().0;
    let index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(all.len());
    let elements = all.get(index(range.start)..index(range.end))?;
    let is_zero = |element: &[u8; BYTES]| *element == [0; BYTES];
    let (pieces, _) = elements.as_chunks::<TOGETHER>();
    let has_zero =
        |piece: &[[u8; BYTES]; TOGETHER]| piece.iter().fold(false, |found, one| found | is_zero(one));
    let skipped = TOGETHER * pieces.iter().position(has_zero).unwrap_or(pieces.len());
    let behind = elements.get(skipped..)?.iter().position(is_zero)?;
    Some(skipped + behind)
}

/// Stores refcount `index` of `block`, at a width of `1 << order` bits (order 0 to 6).
///
/// # Errors
/// The value does not fit the width, or the index the block; nothing is changed then.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the value was checked against the width before")]
pub fn refcount_set(block: &mut [u8], index: u64, order: u32, value: u64) -> Result<(), RefcountError> {
    let bits = 1u32.checked_shl(order).unwrap_or(u32::MAX);
    if bits < 64 && value >> bits != 0 {
        return Err(RefcountError::TooLarge { value, bits });
    }
    let outside = RefcountError::OutOfBlock { index, len: block.len() };
    let at = usize::try_from(index).map_err(|_| outside)?;
    match order {
        0..3 => {
            let per_byte = 8usize >> order;
            let shift = (at % per_byte) << order;
            let byte = block.get_mut(at / per_byte).ok_or(outside)?;
            *byte = *byte & !(narrow_mask(order) << shift) | (value as u8) << shift;
        }
        3 => *block.get_mut(at).ok_or(outside)? = value as u8,
        4 => *block.as_chunks_mut().0.get_mut(at).ok_or(outside)? = (value as u16).to_be_bytes(),
        5 => *block.as_chunks_mut().0.get_mut(at).ok_or(outside)? = (value as u32).to_be_bytes(),
        6 => *block.as_chunks_mut().0.get_mut(at).ok_or(outside)? = value.to_be_bytes(),
        _ => return Err(outside),
    }
    Ok(())
}

/// The bits of one refcount narrower than a byte.
#[inline]
fn narrow_mask(order: u32) -> u8 {
    (1u8 << (1u32 << order)) - 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Version;

    #[test]
    fn narrow_refcounts_start_at_the_lowest_bit_and_wide_ones_are_big_endian() {
        let mut block = [0u8; 8];
        refcount_set(&mut block, 1, 0, 1).unwrap();
        assert_eq!(block[0], 0b10);
        refcount_set(&mut block, 3, 2, 0xa).unwrap();
        assert_eq!(block[1], 0xa0);
        refcount_set(&mut block, 3, 4, 0x1234).unwrap();
        assert_eq!(block[6..], [0x12, 0x34]);
    }

    #[test]
    fn the_widest_value_fits_and_one_more_does_not() {
        for order in 0..=6 {
            let geometry = Geometry::new(Version::V3, 9, order).unwrap();
            let mut block = [0u8; 512];
            let last = geometry.refcount_block_entries() - 1;
            refcount_set(&mut block, last, order, geometry.refcount_max()).unwrap();
            assert_eq!(refcount_get(&block, last, order), Some(geometry.refcount_max()));
            assert_eq!(refcount_get(&block, last + 1, order), None);
            assert!(refcount_set(&mut block, last + 1, order, 0).is_err());
            if order < 6 {
                let wide = refcount_set(&mut block, 0, order, geometry.refcount_max() + 1);
                assert!(matches!(wide, Err(RefcountError::TooLarge { .. })));
            }
        }
    }

    proptest! {
        #[test]
        fn the_first_zero_is_found_wherever_it_lies(
            order in 0u32..=6, from in 0u64..300, len in 0u64..5000, zeroes in proptest::collection::vec(0usize..512, 0..4),
        ) {
            let mut block = [0x55u8; 512];
            for at in zeroes {
                block[at..(at + 8).min(512)].fill(0);
            }
            let range = from..from + len;
            let expected = range.clone().find(|&index| refcount_get(&block, index, order) == Some(0));
            prop_assert_eq!(refcount_find_zero(&block, range, order), expected);
        }

        #[test]
        fn setting_one_refcount_changes_no_other(
            order in 0u32..=6, index in 0u64..64, value: u64, mut block in proptest::collection::vec(any::<u8>(), 512),
        ) {
            let value = value & Geometry::new(Version::V3, 9, order).unwrap().refcount_max();
            let before = block.clone();
            refcount_set(&mut block, index, order, value).unwrap();
            for i in 0..64 {
                let expected = if i == index { Some(value) } else { refcount_get(&before, i, order) };
                prop_assert_eq!(refcount_get(&block, i, order), expected);
            }
        }

        #[test]
        fn every_table_word_is_refused_or_survives_a_round_trip(word: u64, bits in 9u32..=21) {
            let geometry = Geometry::new(Version::V3, bits, 4).unwrap();
            for word in [word, word >> 8 & !(geometry.cluster_size() - 1)] {
                if let Ok(entry) = RefcountTableEntry::decode(word, &geometry) {
                    prop_assert_eq!(entry.encode(), word);
                }
            }
        }
    }
}
