//! Sectors that say who they are: whatever is read back names the write it came from.

use std::fmt;

use crate::content::SECTOR_BYTES;
use crate::rng::mix;

const MAGIC: &[u8; 4] = b"CWHD";
const SECTOR: usize = SECTOR_BYTES as usize;

/// Which write a sector came from. A sector is: magic, disk, version, address, filling, checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// A number for the disk or layer that was written.
    pub disk: u32,
    /// Grows with every write to the disk.
    pub version: u64,
    /// Number of the sector on the disk.
    pub sector: u64,
}

impl Stamp {
    /// The 512 bytes of this sector.
    pub fn bytes(&self) -> [u8; SECTOR] {
        let mut bytes = [0; SECTOR];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..8].copy_from_slice(&self.disk.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.version.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sector.to_le_bytes());
        let mut word = self.seed();
        for chunk in bytes[24..].chunks_exact_mut(8) {
            word = word.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
            // Never a zero byte: a lost part of the sector cannot look like a kept one.
            chunk.copy_from_slice(&(word | 0x0101_0101_0101_0101).to_le_bytes());
        }
        bytes
    }

    fn seed(&self) -> u64 {
        mix(mix(self.version ^ 0x5eed) ^ self.sector ^ u64::from(self.disk) << 48)
    }

    fn named_in(bytes: &[u8; SECTOR]) -> Option<Stamp> {
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        if !bytes.starts_with(MAGIC) {
            return None;
        }
        let disk = u32::from_le_bytes(bytes[4..8].try_into().ok()?);
        Some(Stamp { disk, version: word(8)?, sector: word(16)? })
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {} of sector {:#x} of disk {}", self.version, self.sector, self.disk)
    }
}

/// What 512 bytes turn out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectorContent {
    /// All zero.
    Zero,
    /// One whole write of a sector.
    Stamped(Stamp),
    /// It begins as that sector, but not all of it is.
    Mixed(Stamp),
    /// Nothing that a client of ours ever wrote whole; the first bytes.
    Foreign([u8; 16]),
}

impl SectorContent {
    /// Looks at a sector.
    pub fn in_sector(bytes: &[u8; SECTOR]) -> SectorContent {
        match Stamp::named_in(bytes) {
            Some(stamp) if stamp.bytes() == *bytes => SectorContent::Stamped(stamp),
            Some(stamp) => SectorContent::Mixed(stamp),
            None if bytes.iter().all(|&byte| byte == 0) => SectorContent::Zero,
            None => {
                let mut first = [0; 16];
                first.copy_from_slice(&bytes[..16]);
                SectorContent::Foreign(first)
            }
        }
    }
}

impl fmt::Display for SectorContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SectorContent::Zero => write!(f, "zeroes"),
            SectorContent::Stamped(stamp) => write!(f, "{stamp}"),
            SectorContent::Mixed(stamp) => write!(f, "a mixture that begins as {stamp}"),
            SectorContent::Foreign(first) => write!(f, "bytes that are no client's, beginning {first:02x?}"),
        }
    }
}

/// `len` bytes from `offset` as the write `version` of disk `disk` has them; any alignment.
pub fn fill(disk: u32, version: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + SECTOR);
    let first = offset / SECTOR_BYTES;
    let skip = (offset % SECTOR_BYTES) as usize;
    for sector in first..first + ((skip + len) as u64).div_ceil(SECTOR_BYTES) {
        bytes.extend_from_slice(&Stamp { disk, version, sector }.bytes());
    }
    bytes.truncate(skip + len);
    bytes.drain(..skip);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_names_its_write_and_a_changed_one_does_not_pass_for_it() {
        let stamp = Stamp { disk: 3, version: 9, sector: 77 };
        let mut bytes = stamp.bytes();
        assert_eq!(SectorContent::in_sector(&bytes), SectorContent::Stamped(stamp));
        bytes[400] ^= 1;
        assert_eq!(SectorContent::in_sector(&bytes), SectorContent::Mixed(stamp));
    }

    #[test]
    fn an_unaligned_fill_is_a_part_of_the_aligned_one() {
        assert_eq!(fill(1, 2, 700, 900), fill(1, 2, 512, 2048)[188..1088]);
    }
}
