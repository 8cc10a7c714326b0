//! Headers and the region table: which copy counts, where the log, the metadata and the table of blocks are.
//!
//! MS-VHDX 2.2, "Header Section". Numbers are little-endian.

use block::{Blame, Error};
use storage::Storage;

use super::crc::sum_but;
use crate::fields::Fields;

/// What a file begins with.
pub const SIGNATURE: &[u8; 8] = b"vhdxfile";

/// What places and lengths of regions are multiples of.
pub(super) const MIB: u64 = 1 << 20;

const HEADERS: [u64; 2] = [64 << 10, 128 << 10];
const HEADER_BYTES: usize = 4096;
const REGION_TABLES: [u64; 2] = [192 << 10, 256 << 10];
const REGION_TABLE_BYTES: usize = 64 << 10;
const REGIONS_MAX: u32 = 2047;
const SUM_AT: usize = 4;
const VERSION: u16 = 1;
const LOG_VERSION: u16 = 0;

/// GUIDs as they are stored.
const BAT: [u8; 16] = 0x2dc2_7766_f623_4200_9d64_115e_9bfd_4a08_u128.to_be_bytes();
const METADATA: [u8; 16] = 0x8b7c_a206_4790_4b9a_b8fe_575f_050f_886e_u128.to_be_bytes();

/// A GUID with its first three parts in the order of numbers.
pub fn guid(mut stored: [u8; 16]) -> [u8; 16] {
    let (first, rest) = stored.split_at_mut(4);
    let (second, rest) = rest.split_at_mut(2);
    let third = rest.get_mut(..2).unwrap_or_default();
    for part in [first, second, third] {
        part.reverse();
    }
    stored
}

/// A range of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub offset: u64,
    pub len: u64,
}

impl Region {
    pub fn overlaps(&self, other: &Self) -> bool {
        self.offset < other.offset.saturating_add(other.len)
            && other.offset < self.offset.saturating_add(self.len)
    }
}

/// What the header that counts says.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Entries of the log that have it are to be replayed; zero: there are none.
    pub log_guid: [u8; 16],
    pub log: Region,
}

/// Reads both headers: the intact one with the higher sequence number counts.
pub async fn read(file: &dyn Storage) -> Result<Header, Error> {
    let blame = Blame::new(file.name());
    let start = Fields::read(file, 0, SIGNATURE.len(), "signature").await?;
    if start.bytes() != SIGNATURE {
        return Err(blame.corrupt("there is no signature of a vhdx image"));
    }
    let mut best: Option<Fields> = None;
    for at in HEADERS {
        let header = Fields::read(file, at, HEADER_BYTES, "header").await?;
        let is_intact = header.bytes().starts_with(b"head") && has_sum(&header);
        if is_intact && best.as_ref().is_none_or(|best| best.le64(8) < header.le64(8)) {
            best = Some(header);
        }
    }
    let header = best.ok_or_else(|| blame.corrupt("neither header is intact"))?;
    let (log_version, version) = (u16::from_le_bytes(header.array(64)), u16::from_le_bytes(header.array(66)));
    if (version, log_version) != (VERSION, LOG_VERSION) {
        return Err(blame.unsupported(format!(
            "a vhdx image of version {version} with a log of version {log_version}; {VERSION} and {LOG_VERSION} are supported"
        )));
    }
    let log = Region { offset: header.le64(72), len: u64::from(header.le32(68)) };
    check_place(&blame, log, "log")?;
    Ok(Header { log_guid: header.array(48), log })
}

fn has_sum(fields: &Fields) -> bool {
    sum_but(fields.bytes(), SUM_AT) == fields.le32(SUM_AT)
}

/// Regions are whole MiB, and none is in the first.
fn check_place(blame: &Blame, region: Region, what: &str) -> Result<(), Error> {
    let Region { offset, len } = region;
    let is_whole = offset % MIB == 0 && len % MIB == 0;
    match is_whole && offset >= MIB && offset.checked_add(len).is_some() {
        true => Ok(()),
        false => Err(blame
            .corrupt(format!("the {what} has {len} bytes at {offset}; must be whole MiB, behind the first"))),
    }
}

/// Where the table of blocks and the metadata are.
#[derive(Clone, Copy, Debug)]
pub struct Regions {
    pub bat: Region,
    pub metadata: Region,
}

/// Reads the region table, or its copy where that is damaged.
pub async fn regions(file: &dyn Storage) -> Result<Regions, Error> {
    let blame = Blame::new(file.name());
    for at in REGION_TABLES {
        let table = Fields::read(file, at, REGION_TABLE_BYTES, "region table").await?;
        if table.bytes().starts_with(b"regi") && has_sum(&table) {
            return of_table(&blame, &table);
        }
    }
    Err(blame.corrupt("neither region table is intact"))
}

fn of_table(blame: &Blame, table: &Fields) -> Result<Regions, Error> {
    let count = table.le32(8);
    if count > REGIONS_MAX {
        return Err(
            blame.corrupt(format!("the region table has {count} entries; allowed: up to {REGIONS_MAX}"))
        );
    }
    let (mut bat, mut metadata) = (None, None);
    for entry in (0..count as usize).map(|index| 16 + 32 * index) {
        let region = Region { offset: table.le64(entry + 16), len: u64::from(table.le32(entry + 24)) };
        let known = match guid(table.array(entry)) {
            BAT => &mut bat,
            METADATA => &mut metadata,
            _ if table.le32(entry + 28) & 1 == 0 => continue,
            other => {
                let id = u128::from_be_bytes(other);
                return Err(blame.unsupported(format!(
                    "a vhdx image with a region {id:032x}, which is required and not known"
                )));
            }
        };
        check_place(blame, region, "region")?;
        if known.replace(region).is_some() {
            return Err(blame.corrupt("the region table names a region twice"));
        }
    }
    match (bat, metadata) {
        (Some(bat), Some(metadata)) if !bat.overlaps(&metadata) => Ok(Regions { bat, metadata }),
        (Some(_), Some(_)) => Err(blame.corrupt("the table of blocks and the metadata overlap")),
        _ => Err(blame.corrupt("the region table lacks the table of blocks or the metadata")),
    }
}
