//! vmdk `streamOptimized` ("Virtual Disk Format 5.0", "Stream-Optimized Compressed Sparse Extents"): grains of 64 KiB, compressed, in the order of
//! the disk. A table follows the grains that it is for, the directory of tables follows all of them, and a copy of the header that finds the
//! directory stands at the end. Numbers are little-endian.

use std::io;

use block::SECTOR_BYTES;
use memory::{IoBuf, IoBytes};
use zlib_rs::{Deflate, DeflateFlush, Status};

use super::sparse_extent::{
    DISK_BYTES_MAX, FILE_BYTES_MAX, FORMAT, GRAIN_BYTES, Header, TABLE_REACH, Table, le_bytes,
};
use super::{Packing, Piece, Sink, SinkError, Stamp, VmdkOptions, descriptor};

const VERSION: u32 = 3;
/// The characters that tell of a file that was changed as text are there; grains are compressed; each block has a marker.
const FLAGS: u32 = 1 | 1 << 16 | 1 << 17;
/// Header and descriptor, up to the first grain.
const HEAD_BYTES: u64 = GRAIN_BYTES;
/// The directory is at the end, where the footer says.
const DIRECTORY_AT_END: u64 = u64::MAX;
const DEFLATE: u16 = 1;
/// What zlib has as its default.
const DEFLATE_LEVEL: i32 = 6;
const WINDOW_BITS: u8 = 15;
/// Bytes of a grain's marker, which its data follows directly: its first sector, and the length of the data.
const GRAIN_MARKER_BYTES: usize = 12;

/// What the marker before metadata says of it.
#[derive(Clone, Copy, Debug)]
enum Metadata {
    EndOfStream = 0,
    Table = 1,
    Directory = 2,
    Footer = 3,
}

/// A vmdk on its way.
#[derive(Debug)]
pub(super) struct StreamOptimized {
    options: VmdkOptions,
    stamp: Stamp,
    /// Of the disk, in bytes.
    size: u64,
    /// Where the next block will be.
    end: u64,
    /// Where the tables are, in sectors; 0: there is none, all of its grains are zeroes.
    directory: Vec<u32>,
    /// The table that grains are put into.
    table: Table,
}

impl StreamOptimized {
    pub(super) fn new(options: VmdkOptions, stamp: Stamp) -> Self {
        Self { options, stamp, size: 0, end: 0, directory: Vec::new(), table: Table::new(0) }
    }

    fn header(&self, directory: u64) -> Header {
        let overhead = HEAD_BYTES / SECTOR_BYTES;
        let size = self.size;
        Header { version: VERSION, flags: FLAGS, size, redundant: 0, directory, overhead, method: DEFLATE }
    }

    /// Appends a block of whole sectors; gives its first sector.
    fn append(&mut self, bytes: &[u8], pieces: &mut Vec<Piece>) -> Result<u32, SinkError> {
        let padded = bytes.len().next_multiple_of(SECTOR_BYTES as usize);
        let start = self.end;
        self.end += padded as u64;
        let sector = u32::try_from(start / SECTOR_BYTES).ok().filter(|_| self.end <= FILE_BYTES_MAX);
        let sector = sector.ok_or(SinkError::File { format: FORMAT, max: FILE_BYTES_MAX })?;
        let mut block = IoBuf::uninit(padded);
        let (there, rest) = block.split_at_mut(bytes.len());
        there.copy_from_slice(bytes);
        rest.fill(0);
        pieces.push(Piece { at: start, bytes: block.freeze() });
        Ok(sector)
    }

    /// A marker and the metadata that it announces; gives the sector of that.
    fn append_metadata(
        &mut self,
        kind: Metadata,
        bytes: &[u8],
        pieces: &mut Vec<Piece>,
    ) -> Result<u32, SinkError> {
        let mut marker = [0; 16];
        let sectors = (bytes.len() as u64).div_ceil(SECTOR_BYTES);
        marker[..8].copy_from_slice(&sectors.to_le_bytes());
        marker[12..].copy_from_slice(&(kind as u32).to_le_bytes());
        self.append(&marker, pieces)?;
        match bytes.is_empty() {
            true => Ok(0),
            false => self.append(bytes, pieces),
        }
    }

    /// The grains of a table are all there: it follows them, if any of them has data.
    fn end_table(&mut self, next: u64, pieces: &mut Vec<Piece>) -> Result<(), SinkError> {
        let table = std::mem::replace(&mut self.table, Table::new(next));
        if table.is_empty() {
            return Ok(());
        }
        let sector = self.append_metadata(Metadata::Table, &table.bytes(), pieces)?;
        let place = usize::try_from(table.number).ok().and_then(|number| self.directory.get_mut(number));
        if let Some(place) = place {
            *place = sector;
        }
        Ok(())
    }
}

impl Sink for StreamOptimized {
    fn unit_bytes(&self) -> u64 {
        GRAIN_BYTES
    }

    fn packing(&self) -> Option<Packing> {
        Some(pack)
    }

    fn is_sequential(&self) -> bool {
        true
    }

    fn begin(&mut self, size: u64) -> Result<Vec<Piece>, SinkError> {
        if size == 0 {
            return Err(SinkError::Empty { format: FORMAT });
        }
        if size > DISK_BYTES_MAX {
            return Err(SinkError::Disk { format: FORMAT, found: size, max: DISK_BYTES_MAX });
        }
        self.size = size;
        self.directory = vec![0; size.div_ceil(TABLE_REACH) as usize];
        let descriptor = descriptor::of("streamOptimized", &self.options, &self.stamp, size);
        let mut head = self.header(DIRECTORY_AT_END).with_descriptor(&descriptor);
        head.resize(HEAD_BYTES as usize, 0);
        let mut pieces = Vec::new();
        self.append(&head, &mut pieces)?;
        Ok(pieces)
    }

    fn data(&mut self, offset: u64, packed: IoBytes) -> Result<Vec<Piece>, SinkError> {
        let mut pieces = Vec::new();
        let number = offset / TABLE_REACH;
        debug_assert!(number >= self.table.number, "grains come in their order");
        if number != self.table.number {
            self.end_table(number, &mut pieces)?;
        }
        let mut block = Vec::with_capacity(GRAIN_MARKER_BYTES + packed.len());
        block.extend((offset / SECTOR_BYTES).to_le_bytes());
        block.extend((packed.len() as u32).to_le_bytes());
        block.extend_from_slice(&packed);
        let sector = self.append(&block, &mut pieces)?;
        self.table.put(offset, sector);
        Ok(pieces)
    }

    fn finish(&mut self) -> Result<Vec<Piece>, SinkError> {
        let mut pieces = Vec::new();
        self.end_table(0, &mut pieces)?;
        let directory = le_bytes(&self.directory);
        let sector = self.append_metadata(Metadata::Directory, &directory, &mut pieces)?;
        let footer = self.header(sector.into()).encode();
        self.append_metadata(Metadata::Footer, &footer, &mut pieces)?;
        self.append_metadata(Metadata::EndOfStream, &[], &mut pieces)?;
        Ok(pieces)
    }
}

/// A grain as a zlib stream. The last one of a disk is filled up with zeroes.
fn pack(grain: &[u8]) -> io::Result<Vec<u8>> {
    let mut whole = Vec::new();
    let grain = match grain.len() < GRAIN_BYTES as usize {
        true => {
            whole.extend_from_slice(grain);
            whole.resize(GRAIN_BYTES as usize, 0);
            &whole
        }
        false => grain,
    };
    let mut stream = Deflate::new(DEFLATE_LEVEL, true, WINDOW_BITS);
    // What cannot be packed becomes a little longer.
    let mut packed = vec![0; grain.len() + grain.len() / 64 + 64];
    match stream.compress(grain, &mut packed, DeflateFlush::Finish) {
        Ok(Status::StreamEnd) => packed.truncate(stream.total_out() as usize),
        Ok(_) => return Err(io::Error::other("a grain does not fit its room")),
        Err(error) => return Err(io::Error::other(error.as_str())),
    }
    Ok(packed)
}
