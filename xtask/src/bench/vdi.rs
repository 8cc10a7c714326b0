//! A VDI disk that shuffles another: how `qemu-img bench` gets random access.
//!
//! `qemu-img bench` knows sequential and strided access only, and no stride is fair: it either stays
//! with a slice or comes back to it after all the others, which an LRU cache never survives. A VDI
//! disk keeps its map of 1 MiB blocks in memory as a whole. With a map that is a random permutation,
//! laid over the qcow2 disk, a stride of a block and a bit above becomes random access below.

/// Bytes of a block; QEMU takes no other.
pub const BLOCK_BYTES: u64 = 1 << 20;
const HEADER_BYTES: u64 = 512;

/// The head of a VDI disk: what stands at the start of the shuffled disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shuffled {
    /// Header and map.
    pub bytes: Vec<u8>,
    /// Where the shuffled blocks begin.
    pub data_offset: u64,
}

/// Where blocks begin on a disk of `disk_bytes`: behind header and map, at a whole block.
pub fn data_offset(disk_bytes: u64) -> u64 {
    (HEADER_BYTES + disk_bytes / BLOCK_BYTES * 4).next_multiple_of(BLOCK_BYTES)
}

/// The head that shuffles a disk of `disk_bytes`.
pub fn shuffled(disk_bytes: u64, seed: u64) -> Shuffled {
    let data_offset = data_offset(disk_bytes);
    let blocks = u32::try_from(disk_bytes.saturating_sub(data_offset) / BLOCK_BYTES).unwrap_or(0);
    let mut bytes = header(blocks, data_offset);
    shuffle(blocks, seed).into_iter().for_each(|block| bytes.extend(block.to_le_bytes()));
    Shuffled { bytes, data_offset }
}

/// Bytes of the disk above.
pub fn disk_bytes_above(disk_bytes: u64) -> u64 {
    disk_bytes.saturating_sub(data_offset(disk_bytes)) / BLOCK_BYTES * BLOCK_BYTES
}

fn header(blocks: u32, data_offset: u64) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES as usize];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0x00, b"a shuffled disk\n");
    put(0x40, &0xbeda_107f_u32.to_le_bytes()); // signature
    put(0x44, &0x0001_0001_u32.to_le_bytes()); // version 1.1
    put(0x48, &0x190_u32.to_le_bytes()); // bytes of the header
    put(0x4c, &2u32.to_le_bytes()); // every block is there
    put(0x154, &(HEADER_BYTES as u32).to_le_bytes()); // the map
    put(0x158, &u32::try_from(data_offset).unwrap_or(0).to_le_bytes());
    put(0x168, &512u32.to_le_bytes()); // bytes of a sector
    put(0x170, &(u64::from(blocks) * BLOCK_BYTES).to_le_bytes());
    put(0x178, &(BLOCK_BYTES as u32).to_le_bytes());
    put(0x180, &blocks.to_le_bytes());
    put(0x184, &blocks.to_le_bytes());
    put(0x188, &1u128.to_le_bytes()); // an identity of its own
    bytes
}

/// `0..count` in random order.
pub fn shuffle(count: u32, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count).collect();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for at in (1..order.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let other = ((u128::from(state) * (at as u128 + 1)) >> 64) as usize;
        order.swap(at, other);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_shuffled_to_a_place_of_its_own_on_the_disk() {
        let disk = 4 << 30;
        let Shuffled { bytes, data_offset } = shuffled(disk, 1);
        let mut map: Vec<u32> =
            bytes[512..].chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        assert!(bytes.len() as u64 <= data_offset && !map.is_sorted());
        map.sort_unstable();
        assert!(map.iter().copied().eq(0..map.len() as u32));
        assert!(data_offset + map.len() as u64 * BLOCK_BYTES <= disk);
        assert_eq!(disk_bytes_above(disk), map.len() as u64 * BLOCK_BYTES);
    }
}
