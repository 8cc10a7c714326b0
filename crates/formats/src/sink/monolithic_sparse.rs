//! vmdk `monolithicSparse`: grains of 64 KiB in the order of the disk, behind two copies of the tables that find them. Room for all tables is in front,
//! so that each is written as soon as its grains are there, and none of them stays in memory.

use block::SECTOR_BYTES;
use memory::IoBytes;

use super::sparse_extent::{
    DESCRIPTOR_SECTOR, DESCRIPTOR_SECTORS, DISK_BYTES_MAX, FILE_BYTES_MAX, FORMAT, GRAIN_BYTES, Header,
    TABLE_BYTES, TABLE_REACH, Table, le_bytes,
};
use super::{Packing, Piece, Sink, SinkError, Stamp, VmdkOptions, descriptor};

const VERSION: u32 = 1;
/// The characters that tell of a file that was changed as text are there, and a second copy of the tables.
const FLAGS: u32 = 1 | 1 << 1;
const TABLE_SECTORS: u64 = TABLE_BYTES / SECTOR_BYTES;

/// A vmdk on its way.
#[derive(Debug)]
pub(super) struct MonolithicSparse {
    options: VmdkOptions,
    stamp: Stamp,
    places: Places,
    /// Where the next grain will be.
    end: u64,
    /// The table that grains are put into.
    table: Table,
}

/// Where everything in front of the grains is, in sectors.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    tables: u64,
    redundant: u64,
    directory: u64,
    grains: u64,
}

impl Places {
    fn of(size: u64) -> Self {
        let tables = size.div_ceil(TABLE_REACH);
        let each = directory_sectors(tables) + tables * TABLE_SECTORS;
        let redundant = DESCRIPTOR_SECTOR + DESCRIPTOR_SECTORS;
        let directory = redundant + each;
        let grains = (directory + each).next_multiple_of(GRAIN_BYTES / SECTOR_BYTES);
        Self { tables, redundant, directory, grains }
    }

    /// The table `number` of the directory at `directory`.
    fn table(&self, directory: u64, number: u64) -> u64 {
        directory + directory_sectors(self.tables) + number * TABLE_SECTORS
    }

    fn directory_bytes(&self, directory: u64) -> IoBytes {
        let entries: Vec<u32> = (0..self.tables).map(|number| self.table(directory, number) as u32).collect();
        IoBytes::copy_from(&le_bytes(&entries))
    }
}

fn directory_sectors(tables: u64) -> u64 {
    (tables * 4).div_ceil(SECTOR_BYTES)
}

impl MonolithicSparse {
    pub(super) fn new(options: VmdkOptions, stamp: Stamp) -> Self {
        Self { options, stamp, places: Places::default(), end: 0, table: Table::new(0) }
    }

    /// The grains of a table are all there: both of its copies are written, if any of them has data.
    fn end_table(&mut self, next: u64, pieces: &mut Vec<Piece>) {
        let table = std::mem::replace(&mut self.table, Table::new(next));
        if table.is_empty() {
            return;
        }
        let bytes = IoBytes::copy_from(&table.bytes());
        for directory in [self.places.redundant, self.places.directory] {
            let at = self.places.table(directory, table.number) * SECTOR_BYTES;
            pieces.push(Piece { at, bytes: bytes.clone() });
        }
    }
}

impl Sink for MonolithicSparse {
    fn unit_bytes(&self) -> u64 {
        GRAIN_BYTES
    }

    fn packing(&self) -> Option<Packing> {
        None
    }

    /// The tables are in front.
    fn is_sequential(&self) -> bool {
        false
    }

    fn begin(&mut self, size: u64) -> Result<Vec<Piece>, SinkError> {
        if size == 0 {
            return Err(SinkError::Empty { format: FORMAT });
        }
        if size > DISK_BYTES_MAX {
            return Err(SinkError::Disk { format: FORMAT, found: size, max: DISK_BYTES_MAX });
        }
        let places = Places::of(size);
        (self.places, self.end) = (places, places.grains * SECTOR_BYTES);
        let Places { redundant, directory, grains, .. } = places;
        let header = Header {
            version: VERSION,
            flags: FLAGS,
            size,
            redundant,
            directory,
            overhead: grains,
            method: 0,
        };
        let descriptor = descriptor::of("monolithicSparse", &self.options, &self.stamp, size);
        Ok(vec![
            Piece { at: 0, bytes: IoBytes::copy_from(&header.with_descriptor(&descriptor)) },
            Piece { at: redundant * SECTOR_BYTES, bytes: places.directory_bytes(redundant) },
            Piece { at: directory * SECTOR_BYTES, bytes: places.directory_bytes(directory) },
            // A file without grains reaches up to where they would begin.
            Piece { at: (grains - 1) * SECTOR_BYTES, bytes: IoBytes::zeroed(SECTOR_BYTES as usize) },
        ])
    }

    fn data(&mut self, offset: u64, bytes: IoBytes) -> Result<Vec<Piece>, SinkError> {
        let (start, mut pieces) = (self.end, Vec::new());
        let grains = (bytes.len() as u64).div_ceil(GRAIN_BYTES);
        for number in 0..grains {
            let at = offset + number * GRAIN_BYTES;
            let table = at / TABLE_REACH;
            if table != self.table.number {
                self.end_table(table, &mut pieces);
            }
            let sector = u32::try_from(self.end / SECTOR_BYTES).ok();
            self.end += GRAIN_BYTES;
            let sector = sector.filter(|_| self.end <= FILE_BYTES_MAX);
            self.table.put(at, sector.ok_or(SinkError::File { format: FORMAT, max: FILE_BYTES_MAX })?);
        }
        // The last grain of a disk is filled up with zeroes.
        let missing = (grains * GRAIN_BYTES) as usize - bytes.len();
        let behind = start + bytes.len() as u64;
        pieces.push(Piece { at: start, bytes });
        if missing > 0 {
            pieces.push(Piece { at: behind, bytes: IoBytes::zeroed(missing) });
        }
        Ok(pieces)
    }

    fn finish(&mut self) -> Result<Vec<Piece>, SinkError> {
        let mut pieces = Vec::new();
        self.end_table(0, &mut pieces);
        Ok(pieces)
    }
}
