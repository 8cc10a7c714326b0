//! The device's configuration as its driver reads it (virtio 1.2, 5.2.4).

use export::{Abilities, BlockSizes};

use crate::features::device;
use crate::limits::{RANGE_SECTORS_MAX, RANGES_MAX, SEGMENTS_MAX};
use crate::message::CONFIG_BYTES_MAX;
use crate::request::SECTOR_BYTES;

/// Where the switch of the write cache is.
pub const CACHE_AT: usize = 32;

/// What the configuration depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Described {
    /// Bytes of the disk. What is beyond the last whole sector cannot be reached.
    pub size: u64,
    /// Bytes of a logical block.
    pub logical_block_size: u32,
    /// What requests should look like.
    pub blocks: BlockSizes,
    /// How many queues there may be.
    pub queues: u16,
    /// The write cache is on.
    pub cache: bool,
}

/// Its bytes; those behind what is known are zero.
pub fn configuration(described: &Described) -> [u8; CONFIG_BYTES_MAX] {
    let Described { size, logical_block_size, blocks, queues, cache } = *described;
    let physical = blocks.preferred.max(logical_block_size);
    let per_physical = (physical / logical_block_size.max(1)).max(1);
    // Both are powers of two: at most 31.
    let exponent = per_physical.ilog2() as u8;
    let least = u16::try_from(per_physical).unwrap_or(u16::MAX);
    let discard_sectors = u64::from(blocks.discard.max(logical_block_size)) / SECTOR_BYTES;
    let mut bytes = [0; CONFIG_BYTES_MAX];
    let mut put = |at: usize, value: &[u8]| {
        if let Some(place) = bytes.get_mut(at..at + value.len()) {
            place.copy_from_slice(value);
        }
    };
    put(0, &(size / SECTOR_BYTES).to_le_bytes());
    put(12, &SEGMENTS_MAX.to_le_bytes());
    put(20, &logical_block_size.to_le_bytes());
    put(24, &[exponent, 0]);
    put(26, &least.to_le_bytes());
    put(28, &per_physical.to_le_bytes());
    put(CACHE_AT, &[u8::from(cache)]);
    put(34, &queues.to_le_bytes());
    put(36, &RANGE_SECTORS_MAX.to_le_bytes());
    put(40, &RANGES_MAX.to_le_bytes());
    put(44, &(discard_sectors as u32).to_le_bytes());
    put(48, &RANGE_SECTORS_MAX.to_le_bytes());
    put(52, &RANGES_MAX.to_le_bytes());
    put(56, &[1]);
    bytes
}

/// The features of a disk.
pub fn features(read_only: bool, abilities: Abilities) -> u64 {
    let when = |on: bool, bit: u64| if on { bit } else { 0 };
    device::ALWAYS
        | when(read_only, device::RO)
        | when(!read_only && abilities.discard, device::DISCARD)
        | when(!read_only && abilities.zero, device::WRITE_ZEROES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_where_the_specification_has_them() {
        let described = Described {
            size: (1 << 30) + 100,
            logical_block_size: 512,
            blocks: BlockSizes { minimum: 1, preferred: 4096, discard: 65536 },
            queues: 3,
            cache: true,
        };
        let bytes = configuration(&described);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        assert_eq!(u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")), (1 << 30) / 512);
        assert_eq!((word(12), word(20), bytes[24], bytes[26]), (SEGMENTS_MAX, 512, 3, 8));
        assert_eq!((bytes[32], bytes[34], word(36), word(40), word(44)), (1, 3, 1 << 21, 16, 128));
        assert_eq!((word(48), word(52), bytes[56]), (1 << 21, 16, 1));
        let blocks = BlockSizes { discard: 512, ..described.blocks };
        let large = Described { logical_block_size: 4096, blocks, cache: false, ..described };
        let large = configuration(&large);
        assert_eq!((large[24], large[26], large[32], large[44]), (0, 1, 0, 8));
    }

    #[test]
    fn a_read_only_disk_offers_no_changes() {
        let all = Abilities { discard: true, zero: true, ..Abilities::default() };
        let changes = device::DISCARD | device::WRITE_ZEROES;
        assert_eq!(features(true, all) & (changes | device::RO), device::RO);
        assert_eq!(features(false, all) & (changes | device::RO), changes);
    }
}
