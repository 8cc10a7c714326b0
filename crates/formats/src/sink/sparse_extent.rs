//! What both forms of a vmdk have in common ("Virtual Disk Format 5.0", "Hosted Sparse Extents"): the header, and tables of grains. Numbers are
//! little-endian.

use block::SECTOR_BYTES;

pub(super) const FORMAT: &str = "vmdk";
pub(super) const GRAIN_BYTES: u64 = 64 << 10;
pub(super) const TABLE_ENTRIES: u64 = 512;
pub(super) const TABLE_BYTES: u64 = TABLE_ENTRIES * 4;
/// Bytes of the disk that a table is for.
pub(super) const TABLE_REACH: u64 = TABLE_ENTRIES * GRAIN_BYTES;
pub(super) const DESCRIPTOR_SECTOR: u64 = 1;
pub(super) const DESCRIPTOR_SECTORS: u64 = 20;
/// VMware's disks have at most 62 TiB. A directory of tables then takes 8 MiB.
pub(super) const DISK_BYTES_MAX: u64 = 64 << 40;
/// Places are numbers of sectors in 32 bits.
pub(super) const FILE_BYTES_MAX: u64 = SECTOR_BYTES << 32;

const MAGIC: &[u8; 4] = b"KDMV";

/// What of a header differs from image to image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) flags: u32,
    /// Of the disk, in bytes.
    pub(super) size: u64,
    /// The second directory, in sectors.
    pub(super) redundant: u64,
    /// The directory, in sectors.
    pub(super) directory: u64,
    /// Where grains begin, in sectors.
    pub(super) overhead: u64,
    /// How grains are compressed; 0: not at all.
    pub(super) method: u16,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; SECTOR_BYTES as usize] {
        let mut header = [0; SECTOR_BYTES as usize];
        let mut put = |at: usize, field: &[u8]| {
            if let Some(place) = header.get_mut(at..at + field.len()) {
                place.copy_from_slice(field);
            }
        };
        put(0, MAGIC);
        put(4, &self.version.to_le_bytes());
        put(8, &self.flags.to_le_bytes());
        put(12, &self.size.div_ceil(SECTOR_BYTES).to_le_bytes());
        put(20, &(GRAIN_BYTES / SECTOR_BYTES).to_le_bytes());
        put(28, &DESCRIPTOR_SECTOR.to_le_bytes());
        put(36, &DESCRIPTOR_SECTORS.to_le_bytes());
        put(44, &(TABLE_ENTRIES as u32).to_le_bytes());
        put(48, &self.redundant.to_le_bytes());
        put(56, &self.directory.to_le_bytes());
        put(64, &self.overhead.to_le_bytes());
        put(73, b"\n \r\n");
        put(77, &self.method.to_le_bytes());
        header
    }

    /// Header and descriptor, with zeroes behind the descriptor up to its end.
    pub(super) fn with_descriptor(&self, descriptor: &str) -> Vec<u8> {
        let mut head = self.encode().to_vec();
        head.extend(descriptor.bytes().take((DESCRIPTOR_SECTORS * SECTOR_BYTES) as usize));
        head.resize(((DESCRIPTOR_SECTOR + DESCRIPTOR_SECTORS) * SECTOR_BYTES) as usize, 0);
        head
    }
}

/// Where grains are, in sectors.
#[derive(Debug)]
pub(super) struct Table {
    /// Its place in the directory.
    pub(super) number: u64,
    entries: [u32; TABLE_ENTRIES as usize],
    is_empty: bool,
}

impl Table {
    pub(super) fn new(number: u64) -> Self {
        Self { number, entries: [0; TABLE_ENTRIES as usize], is_empty: true }
    }

    /// No grain of it has data.
    pub(super) fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// The grain at `offset` of the disk is at `sector`.
    pub(super) fn put(&mut self, offset: u64, sector: u32) {
        let index = (offset % TABLE_REACH / GRAIN_BYTES) as usize;
        if let Some(entry) = self.entries.get_mut(index) {
            *entry = sector;
        }
        self.is_empty = false;
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        le_bytes(&self.entries)
    }
}

pub(super) fn le_bytes(entries: &[u32]) -> Vec<u8> {
    entries.iter().flat_map(|entry| entry.to_le_bytes()).collect()
}
