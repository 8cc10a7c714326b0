//! `vpc` (VHD, specification 1.0): a fixed disk and its footer, or blocks of 2 MiB with a table in front of them. Numbers are big-endian.

use block::SECTOR_BYTES;
use memory::{IoBuf, IoBytes};

use super::{Packing, Piece, Sink, SinkError, Stamp, VpcOptions, VpcSubformat};
use crate::vpc::{CHS_MAX, COOKIE, DYNAMIC, DYNAMIC_BYTES, FIXED, FOOTER_BYTES, UNALLOCATED, sum};

/// As in QEMU: 2040 GiB.
const DISK_BYTES_MAX: u64 = 0xff00_0000 * SECTOR_BYTES;
const BLOCK_BYTES: u64 = 2 << 20;
/// A bit for each sector of a block.
const BITMAP_BYTES: u64 = BLOCK_BYTES / SECTOR_BYTES / 8;
const TABLE_OFFSET: u64 = (FOOTER_BYTES + DYNAMIC_BYTES) as u64;
/// What its times are counted from: the first second of the year 2000.
const EPOCH: u64 = 946_684_800;
const VERSION: u32 = 0x0001_0000;

/// A VHD on its way.
#[derive(Debug)]
pub(super) struct Vhd {
    options: VpcOptions,
    stamp: Stamp,
    geometry: Geometry,
    /// Of the disk, in bytes.
    size: u64,
    /// Where each block is, in sectors.
    table: Vec<u32>,
    /// Where the next block will be.
    end: u64,
}

impl Vhd {
    pub(super) fn new(options: VpcOptions, stamp: Stamp) -> Self {
        Self { options, stamp, geometry: Geometry::default(), size: 0, table: Vec::new(), end: 0 }
    }

    fn footer(&self) -> IoBytes {
        let mut footer = IoBuf::zeroed(FOOTER_BYTES);
        let (data_offset, kind) = match self.options.subformat {
            VpcSubformat::Dynamic => (FOOTER_BYTES as u64, DYNAMIC),
            VpcSubformat::Fixed => (u64::MAX, FIXED),
        };
        // The program's name decides whether readers go by the size or by the geometry. These are those that QEMU writes.
        let creator = if self.options.force_size { b"qem2" } else { b"qemu" };
        let seconds = u32::try_from(self.stamp.unix_seconds.saturating_sub(EPOCH)).unwrap_or(u32::MAX);
        let Geometry { cylinders, heads, sectors } = self.geometry;
        put(&mut footer, 0, COOKIE);
        put(&mut footer, 0x08, &2_u32.to_be_bytes());
        put(&mut footer, 0x0c, &VERSION.to_be_bytes());
        put(&mut footer, 0x10, &data_offset.to_be_bytes());
        put(&mut footer, 0x18, &seconds.to_be_bytes());
        put(&mut footer, 0x1c, creator);
        put(&mut footer, 0x20, &[0, 5, 0, 3]);
        put(&mut footer, 0x24, b"Wi2k");
        put(&mut footer, 0x28, &self.size.to_be_bytes());
        put(&mut footer, 0x30, &self.size.to_be_bytes());
        put(&mut footer, 0x38, &(cylinders as u16).to_be_bytes());
        put(&mut footer, 0x3a, &[heads as u8, sectors as u8]);
        put(&mut footer, 0x3c, &kind.to_be_bytes());
        put(&mut footer, 0x44, &self.stamp.id);
        with_sum(footer, 0x40)
    }

    fn dynamic_header(&self) -> IoBytes {
        let mut header = IoBuf::zeroed(DYNAMIC_BYTES);
        put(&mut header, 0, b"cxsparse");
        put(&mut header, 0x08, &[0xff; 8]);
        put(&mut header, 0x10, &TABLE_OFFSET.to_be_bytes());
        put(&mut header, 0x18, &VERSION.to_be_bytes());
        put(&mut header, 0x1c, &(self.table.len() as u32).to_be_bytes());
        put(&mut header, 0x20, &(BLOCK_BYTES as u32).to_be_bytes());
        with_sum(header, 0x24)
    }

    /// Where the data of the block `index` is; a new block begins with its bitmap.
    fn block(&mut self, index: u64, pieces: &mut Vec<Piece>) -> u64 {
        let entry = usize::try_from(index).ok().and_then(|index| self.table.get_mut(index));
        let Some(entry) = entry else { return self.end };
        if *entry == UNALLOCATED {
            // At most 2040 GiB of blocks and their bitmaps: below 2^32 sectors.
            *entry = (self.end / SECTOR_BYTES) as u32;
            let mut bitmap = IoBuf::uninit(BITMAP_BYTES as usize);
            bitmap.fill(0xff);
            pieces.push(Piece { at: self.end, bytes: bitmap.freeze() });
            self.end += BITMAP_BYTES + BLOCK_BYTES;
        }
        u64::from(*entry) * SECTOR_BYTES + BITMAP_BYTES
    }

    fn table_bytes(&self) -> u64 {
        (self.table.len() as u64 * 4).next_multiple_of(SECTOR_BYTES)
    }
}

impl Sink for Vhd {
    fn unit_bytes(&self) -> u64 {
        SECTOR_BYTES
    }

    fn packing(&self) -> Option<Packing> {
        None
    }

    /// The table of a dynamic disk is in front of its blocks.
    fn is_sequential(&self) -> bool {
        self.options.subformat == VpcSubformat::Fixed
    }

    fn begin(&mut self, size: u64) -> Result<Vec<Piece>, SinkError> {
        self.geometry = match self.options.force_size {
            true => Geometry::MAX,
            false => Geometry::holding(size.div_ceil(SECTOR_BYTES)),
        };
        self.size = match self.geometry.total() {
            CHS_MAX => size,
            sectors => sectors * SECTOR_BYTES,
        };
        if self.size > DISK_BYTES_MAX {
            return Err(SinkError::Disk { format: "vpc", found: size, max: DISK_BYTES_MAX });
        }
        if self.options.subformat == VpcSubformat::Fixed {
            return Ok(Vec::new());
        }
        self.table = vec![UNALLOCATED; self.size.div_ceil(BLOCK_BYTES) as usize];
        self.end = TABLE_OFFSET + self.table_bytes();
        Ok(vec![
            Piece { at: 0, bytes: self.footer() },
            Piece { at: FOOTER_BYTES as u64, bytes: self.dynamic_header() },
        ])
    }

    fn data(&mut self, offset: u64, bytes: IoBytes) -> Result<Vec<Piece>, SinkError> {
        if self.options.subformat == VpcSubformat::Fixed {
            return Ok(vec![Piece { at: offset, bytes }]);
        }
        let (mut pieces, mut done) = (Vec::new(), 0);
        while done < bytes.len() {
            let at = offset + done as u64;
            let inside = at % BLOCK_BYTES;
            let len = ((BLOCK_BYTES - inside) as usize).min(bytes.len() - done);
            let start = self.block(at / BLOCK_BYTES, &mut pieces);
            pieces.push(Piece { at: start + inside, bytes: bytes.slice(done, done + len) });
            done += len;
        }
        Ok(pieces)
    }

    fn finish(&mut self) -> Result<Vec<Piece>, SinkError> {
        let footer = self.footer();
        if self.options.subformat == VpcSubformat::Fixed {
            return Ok(vec![Piece { at: self.size, bytes: footer }]);
        }
        let mut table = IoBuf::uninit(self.table_bytes() as usize);
        table.fill(0xff);
        for (place, entry) in table.chunks_exact_mut(4).zip(&self.table) {
            place.copy_from_slice(&entry.to_be_bytes());
        }
        Ok(vec![Piece { at: TABLE_OFFSET, bytes: table.freeze() }, Piece { at: self.end, bytes: footer }])
    }
}

fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + field.len()) {
        place.copy_from_slice(field);
    }
}

/// With the checksum, which stands at `at`.
fn with_sum(mut bytes: IoBuf, at: usize) -> IoBytes {
    let right = sum(&bytes, at).to_be_bytes();
    put(&mut bytes, at, &right);
    bytes.freeze()
}

/// Of geometries with 63 sectors a track.
const SECTORS_OF_63_MAX: u64 = 65_535 * 16 * 63;
/// What a BIOS counts.
const CYLINDERS_MAX: u64 = 1024;
const HEADS_MIN: u64 = 4;
const HEADS_MAX: u64 = 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Geometry {
    cylinders: u64,
    heads: u64,
    sectors: u64,
}

impl Geometry {
    const MAX: Self = Self { cylinders: 65_535, heads: 16, sectors: 255 };

    fn total(self) -> u64 {
        self.cylinders * self.heads * self.sectors
    }

    /// The largest geometry that the specification gives a disk of so many sectors: it may have less than those.
    fn of(total: u64) -> Self {
        let total = total.min(CHS_MAX);
        if total >= SECTORS_OF_63_MAX {
            return Self::with(total, HEADS_MAX, 255);
        }
        let heads = (total / 17).div_ceil(CYLINDERS_MAX).max(HEADS_MIN);
        if heads <= HEADS_MAX && total / 17 < heads * CYLINDERS_MAX {
            return Self::with(total, heads, 17);
        }
        match total / 31 < HEADS_MAX * CYLINDERS_MAX {
            true => Self::with(total, HEADS_MAX, 31),
            false => Self::with(total, HEADS_MAX, 63),
        }
    }

    fn with(total: u64, heads: u64, sectors: u64) -> Self {
        Self { cylinders: total / sectors / heads, heads, sectors }
    }

    /// The smallest one with at least so many sectors; the largest there is for more.
    fn holding(total: u64) -> Self {
        let total = total.min(CHS_MAX);
        if total == 0 {
            return Self::default();
        }
        // A cylinder more is always enough, and one has at most 16 * 255 sectors.
        let mut tried = (total..).map(Self::of);
        tried.find(|geometry| geometry.total() >= total).unwrap_or(Self::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// QEMU 10's images have these sizes.
    #[test]
    fn a_disk_is_rounded_up_to_a_geometry() {
        let table = [
            (0, (0, 0, 0)),
            (1, (1, 4, 17)),
            (2048, (31, 4, 17)),
            (20_480, (302, 4, 17)),
            (2_097_152, (2081, 16, 63)),
            (SECTORS_OF_63_MAX - 1008, (65_534, 16, 63)),
            (SECTORS_OF_63_MAX - 1, (16_191, 16, 255)),
            (SECTORS_OF_63_MAX, (16_191, 16, 255)),
            (CHS_MAX, (65_535, 16, 255)),
            (u64::MAX, (65_535, 16, 255)),
        ];
        for (total, (cylinders, heads, sectors)) in table {
            assert_eq!(Geometry::holding(total), Geometry { cylinders, heads, sectors }, "{total} sectors");
        }
    }
}
