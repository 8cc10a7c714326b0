//! The headers of sparse extents: KDMV of hosted products, and COWD of ESX.
//!
//! "Virtual Disk Format 5.0" of VMware, "Hosted Sparse Extents" and "ESX Server Sparse Extents". Numbers are little-endian, places are in sectors.

use block::{Blame, Error, SECTOR_BYTES};
use storage::Storage;

use crate::fields::Fields;

/// What a sparse extent begins with.
pub const SPARSE_MAGIC: &[u8; 4] = b"KDMV";
/// What ESX's older one begins with.
pub const COWD_MAGIC: &[u8; 4] = b"COWD";

const HEADER_BYTES: usize = 512;
/// The directory's place is in the footer.
const IN_FOOTER: u64 = u64::MAX;
/// Marker, footer, end-of-stream marker: a sector each.
const FOOTER_BYTES: usize = 3 * HEADER_BYTES;
const FOOTER_MARKER: u32 = 3;
const END_OF_STREAM: u32 = 0;
const VERSIONS: std::ops::RangeInclusive<u32> = 1..=3;
const HAS_REDUNDANT: u32 = 1 << 1;
const HAS_ZERO_GRAINS: u32 = 1 << 2;
const HAS_MARKERS: u32 = 1 << 17;
const DEFLATE: u16 = 1;
/// As in QEMU: 1 GiB.
const GRAIN_SECTORS_MAX: u64 = 0x20_0000;
/// A grain that is compressed is unpacked as a whole, for several requests at a time. Writers use 64 KiB.
const PACKED_GRAIN_SECTORS_MAX: u64 = 4096;
/// Entries of a grain table at most.
const TABLE_ENTRIES_MAX: u64 = 512;
const COWD_TABLE_ENTRIES: u64 = 4096;
/// As in QEMU.
const DIRECTORY_ENTRIES_MAX: u64 = 32 << 20;

/// The tables of a sparse extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sparse {
    /// Sectors of the disk that it holds.
    pub sectors: u64,
    /// Bytes of a grain.
    pub grain_bytes: u64,
    /// Grains that a table finds.
    pub table_entries: u64,
    /// Where the grain directory begins in the file.
    pub directory: u64,
    /// Entries of the directory.
    pub directory_entries: u64,
    /// Grains are compressed.
    pub is_packed: bool,
    /// Before a compressed grain stands how long it is.
    pub has_markers: bool,
    /// An entry of 1 says that a grain reads as zeroes.
    pub has_zero_grains: bool,
}

/// What a sparse header leads to.
#[derive(Clone, Debug)]
pub struct SparseFile {
    /// `None`: the file holds a descriptor alone.
    pub sparse: Option<Sparse>,
    /// Bytes of the descriptor inside the file, if there is one.
    pub descriptor: Option<(u64, u64)>,
}

/// Reads the header of a sparse extent of either kind.
pub async fn read(file: &dyn Storage) -> Result<SparseFile, Error> {
    let header = Fields::read(file, 0, HEADER_BYTES, "header").await?;
    match &header.array::<4>(0) {
        SPARSE_MAGIC => hosted(file, header).await,
        COWD_MAGIC => Ok(SparseFile { sparse: Some(cowd(file, &header)?), descriptor: None }),
        _ => Err(Blame::new(file.name()).corrupt("a sparse extent begins with neither KDMV nor COWD")),
    }
}

async fn hosted(file: &dyn Storage, header: Fields) -> Result<SparseFile, Error> {
    let blame = Blame::new(file.name());
    let (first, sectors) = (header.le64(28), header.le64(36));
    let bytes = |sectors: u64| sectors.checked_mul(SECTOR_BYTES).ok_or_else(|| too_far(&blame, sectors));
    let descriptor = match first {
        0 => None,
        first => Some((bytes(first)?, bytes(sectors)?)),
    };
    if header.le64(12) == 0 && descriptor.is_some() {
        return Ok(SparseFile { sparse: None, descriptor });
    }
    let header = match header.le64(56) {
        IN_FOOTER => footer(file).await?,
        _ => header,
    };
    Ok(SparseFile { sparse: Some(tables(file, &header)?), descriptor })
}

fn too_far(blame: &Blame, sector: u64) -> Error {
    blame.corrupt(format!("the header leads to sector {sector}, which no file has"))
}

/// The copy of the header at the end, between its marker and that of the end.
async fn footer(file: &dyn Storage) -> Result<Fields, Error> {
    let blame = Blame::new(file.name());
    let end = file.length().next_multiple_of(SECTOR_BYTES);
    let Some(at) = end.checked_sub(FOOTER_BYTES as u64) else {
        return Err(blame.corrupt("the file is too short for a footer, which its header says there is"));
    };
    let marker = Fields::read(file, at, HEADER_BYTES, "marker of the footer").await?;
    let footer = Fields::read(file, at + SECTOR_BYTES, HEADER_BYTES, "footer").await?;
    // The last sector may be cut short: nothing but zeroes are in it.
    let last = at + 2 * SECTOR_BYTES;
    let len = (file.length() - last).min(SECTOR_BYTES) as usize;
    let end = Fields::read(file, last, len, "end-of-stream marker").await?;
    let is_footer = (marker.le32(8), marker.le32(12)) == (0, FOOTER_MARKER)
        && footer.array::<4>(0) == *SPARSE_MAGIC
        && (end.le64(0), end.le32(8), end.le32(12)) == (0, 0, END_OF_STREAM);
    match is_footer {
        true => Ok(footer),
        false => Err(blame.corrupt(format!(
            "there is no footer between its markers at {at}, where the header says that the grain directory is found: the file was cut \
             short, or has bytes behind its end"
        ))),
    }
}

fn tables(file: &dyn Storage, header: &Fields) -> Result<Sparse, Error> {
    let blame = Blame::new(file.name());
    let version = header.le32(4);
    if !VERSIONS.contains(&version) {
        return Err(blame.unsupported(format!("a vmdk extent of version {version}; 1 to 3 are supported")));
    }
    let compression = header.array::<2>(77);
    let compression = u16::from_le_bytes(compression);
    if compression > DEFLATE {
        return Err(blame.unsupported(format!(
            "grains are compressed by method {compression}; 0 (none) and 1 (deflate) are supported"
        )));
    }
    let flags = header.le32(8);
    let overhead = header.le64(64);
    if overhead > file.length().div_ceil(SECTOR_BYTES) {
        return Err(blame.corrupt(format!(
            "the file has {} bytes and its metadata alone {overhead} sectors: it was cut short",
            file.length()
        )));
    }
    let redundant = (flags & HAS_REDUNDANT != 0).then(|| header.le64(48));
    let sparse = Sparse {
        sectors: header.le64(12),
        grain_bytes: 0,
        table_entries: u64::from(header.le32(44)),
        directory: 0,
        directory_entries: 0,
        is_packed: compression == DEFLATE,
        has_markers: flags & HAS_MARKERS != 0,
        has_zero_grains: flags & HAS_ZERO_GRAINS != 0,
    };
    if !(1..=TABLE_ENTRIES_MAX).contains(&sparse.table_entries) {
        return Err(blame.corrupt(format!(
            "a grain table has {} entries; allowed: 1 to {TABLE_ENTRIES_MAX}",
            sparse.table_entries
        )));
    }
    placed(&blame, file, sparse, header.le64(20), (header.le64(56), redundant), None)
}

fn cowd(file: &dyn Storage, header: &Fields) -> Result<Sparse, Error> {
    let blame = Blame::new(file.name());
    let version = header.le32(4);
    if version != 1 {
        return Err(blame.unsupported(format!("an ESX sparse extent of version {version}; 1 is supported")));
    }
    let sparse = Sparse {
        sectors: u64::from(header.le32(12)),
        grain_bytes: 0,
        table_entries: COWD_TABLE_ENTRIES,
        directory: 0,
        directory_entries: 0,
        is_packed: false,
        has_markers: false,
        has_zero_grains: false,
    };
    let entries = u64::from(header.le32(24));
    placed(
        &blame,
        file,
        sparse,
        u64::from(header.le32(16)),
        (u64::from(header.le32(20)), None),
        Some(entries),
    )
}

/// `sparse` with grains of `grain_sectors` and the directory at a sector, or its copy where the first is not in the file.
fn placed(
    blame: &Blame,
    file: &dyn Storage,
    sparse: Sparse,
    grain_sectors: u64,
    (directory, redundant): (u64, Option<u64>),
    entries_there: Option<u64>,
) -> Result<Sparse, Error> {
    let max = if sparse.is_packed { PACKED_GRAIN_SECTORS_MAX } else { GRAIN_SECTORS_MAX };
    if !(1..=max).contains(&grain_sectors) {
        return Err(blame.corrupt(format!("a grain has {grain_sectors} sectors; allowed: 1 to {max}")));
    }
    // At most 2^21 sectors times 2^12 entries.
    let entries = sparse.sectors.div_ceil(grain_sectors * sparse.table_entries);
    if sparse.sectors == 0 || entries > DIRECTORY_ENTRIES_MAX {
        return Err(blame.corrupt(format!(
            "an extent of {} sectors has {entries} grain tables; allowed: 1 to {DIRECTORY_ENTRIES_MAX}",
            sparse.sectors
        )));
    }
    if let Some(there) = entries_there.filter(|there| *there < entries) {
        return Err(blame.corrupt(format!(
            "the grain directory has {there} entries; the extent of {} sectors needs {entries}",
            sparse.sectors
        )));
    }
    let in_file = |sector: u64| {
        let start = sector.checked_mul(SECTOR_BYTES).filter(|_| sector > 0)?;
        start.checked_add(entries * 4).filter(|end| *end <= file.length()).map(|_| start)
    };
    let Some(directory) = in_file(directory).or_else(|| in_file(redundant?)) else {
        return Err(blame.corrupt(format!(
            "the grain directory ({entries} entries at sector {directory}) is not inside the file ({} bytes)",
            file.length()
        )));
    };
    Ok(Sparse { grain_bytes: grain_sectors * SECTOR_BYTES, directory, directory_entries: entries, ..sparse })
}
