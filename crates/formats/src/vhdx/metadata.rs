//! What the metadata region says of the disk.
//!
//! MS-VHDX 2.6, "Metadata Region".

use block::{Blame, Error};
use storage::Storage;

use super::header::{MIB, Region, guid};
use crate::fields::Fields;

const TABLE_BYTES: usize = 64 << 10;
const ITEMS_MAX: u16 = 2047;
const IS_REQUIRED: u32 = 1 << 2;
const LEAVES_ALLOCATED: u32 = 1 << 0;
const HAS_PARENT: u32 = 1 << 1;
/// 64 TiB.
const DISK_BYTES_MAX: u64 = 64 << 40;
const BLOCK_BYTES: std::ops::RangeInclusive<u64> = MIB..=256 * MIB;

/// GUIDs of items.
mod id {
    pub const PARAMETERS: [u8; 16] = 0xcaa1_6737_fa36_4d43_b3b6_33f0_aa44_e76b_u128.to_be_bytes();
    pub const SIZE: [u8; 16] = 0x2fa5_4224_cd1b_4876_b211_5dbe_d83b_f4b8_u128.to_be_bytes();
    pub const DISK_ID: [u8; 16] = 0xbeca_12ab_b2e6_4523_93ef_c309_e000_c746_u128.to_be_bytes();
    pub const LOGICAL: [u8; 16] = 0x8141_bf1d_a96f_4709_ba47_f233_a8fa_ab5f_u128.to_be_bytes();
    pub const PHYSICAL: [u8; 16] = 0xcda3_48c7_445d_4471_9cc9_e988_5251_c556_u128.to_be_bytes();
    pub const PARENT: [u8; 16] = 0xa8d3_5f2d_b30b_454d_abf7_d3d8_4834_ab0c_u128.to_be_bytes();
}

/// The disk as its metadata describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    pub size: u64,
    pub block_bytes: u64,
    /// Of the guest's disk: 512 or 4096.
    pub sector_bytes: u64,
    /// All blocks were allocated with the image.
    pub is_fixed: bool,
}

/// Reads the items that a disk needs.
pub async fn read(file: &dyn Storage, region: Region) -> Result<Metadata, Error> {
    let blame = Blame::new(file.name());
    let table = Fields::read(file, region.offset, TABLE_BYTES, "metadata table").await?;
    let count = u16::from_le_bytes(table.array(10));
    if !table.bytes().starts_with(b"metadata") || count > ITEMS_MAX {
        return Err(blame.corrupt(format!(
            "there is no metadata table of up to {ITEMS_MAX} entries at {}",
            region.offset
        )));
    }
    let (mut parameters, mut size, mut sector_bytes) = (None, None, None);
    for entry in (0..usize::from(count)).map(|index| 32 + 32 * index) {
        let (place, flags) = ((table.le32(entry + 16), table.le32(entry + 20)), table.le32(entry + 24));
        match guid(table.array(entry)) {
            id::PARAMETERS => parameters = Some(item(file, region, place, 8).await?),
            id::SIZE => size = Some(item(file, region, place, 8).await?.le64(0)),
            id::LOGICAL => sector_bytes = Some(u64::from(item(file, region, place, 4).await?.le32(0))),
            id::DISK_ID | id::PHYSICAL | id::PARENT => {}
            _ if flags & IS_REQUIRED == 0 => {}
            other => {
                let id = u128::from_be_bytes(other);
                return Err(blame.unsupported(format!(
                    "a vhdx image with metadata {id:032x}, which is required and not known"
                )));
            }
        }
    }
    let (Some(parameters), Some(size), Some(sector_bytes)) = (parameters, size, sector_bytes) else {
        return Err(blame.corrupt("the metadata lacks the size of the disk, of its blocks or of its sectors"));
    };
    let (block_bytes, flags) = (u64::from(parameters.le32(0)), parameters.le32(4));
    if flags & HAS_PARENT != 0 {
        return Err(blame.unsupported(
            "a differencing vhdx: merge it into its parent first (Hyper-V's Merge-VHD, or Convert-VHD, which makes a copy without one)",
        ));
    }
    let found = Metadata { size, block_bytes, sector_bytes, is_fixed: flags & LEAVES_ALLOCATED != 0 };
    found.check(&blame)?;
    Ok(found)
}

impl Metadata {
    fn check(&self, blame: &Blame) -> Result<(), Error> {
        let Self { size, block_bytes, sector_bytes, .. } = *self;
        if !matches!(sector_bytes, 512 | 4096) {
            return Err(blame.corrupt(format!("a sector has {sector_bytes} bytes; allowed: 512, 4096")));
        }
        if !block_bytes.is_power_of_two() || !BLOCK_BYTES.contains(&block_bytes) {
            let (min, max) = (BLOCK_BYTES.start(), BLOCK_BYTES.end());
            return Err(blame.corrupt(format!(
                "the block size is {block_bytes}; must be a power of two from {min} to {max}"
            )));
        }
        match size <= DISK_BYTES_MAX && size % sector_bytes == 0 {
            true => Ok(()),
            false => Err(blame.corrupt(format!(
                "the disk has {size} bytes; allowed: whole sectors of {sector_bytes}, up to {DISK_BYTES_MAX}"
            ))),
        }
    }
}

/// An item of `need` bytes, which the table says is at `offset` of the region and has `len`.
async fn item(
    file: &dyn Storage,
    region: Region,
    (offset, len): (u32, u32),
    need: usize,
) -> Result<Fields, Error> {
    let (offset, len) = (u64::from(offset), u64::from(len));
    if offset < TABLE_BYTES as u64 || offset + len > region.len || len < need as u64 {
        return Err(Blame::new(file.name()).corrupt(format!(
            "a metadata item has {len} bytes at {offset}; must be {need} behind the table and inside the region ({} bytes)",
            region.len
        )));
    }
    Fields::read(file, region.offset + offset, need, "metadata item").await
}
