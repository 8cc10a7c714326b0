//! `vpc` (VHD): a footer at the end of a fixed disk; a dynamic one has a copy in front and a table of blocks. Numbers are big-endian.

use std::sync::Arc;

use block::{Blame, Error, SECTOR_BYTES};
use storage::Storage;

use crate::Kind;
use crate::fields::Fields;
use crate::image::{Blocks, Image, OneFile, Places};
use crate::pieces::Disk;
use crate::table::{Order, Table};

/// What a footer begins with.
pub const COOKIE: &[u8; 8] = b"conectix";

pub(crate) const FOOTER_BYTES: usize = 512;
pub(crate) const DYNAMIC_BYTES: usize = 1024;
pub(crate) const FIXED: u32 = 2;
pub(crate) const DYNAMIC: u32 = 3;
const DIFFERENCING: u32 = 4;
pub(crate) const UNALLOCATED: u32 = u32::MAX;
/// The largest geometry, which stands for all larger disks.
pub(crate) const CHS_MAX: u64 = 65_535 * 16 * 255;
/// Programs whose disks have the size of the footer; those of others have that of the geometry, as Virtual PC shows it to a guest.
const SIZED: [&[u8; 4]; 6] = [b"win ", b"qem2", b"d2v ", b"tap\0", b"CTXS", b"wa\0\0"];
/// Blocks have at most 256 MiB; Hyper-V writes 2 MiB.
const BLOCK_BYTES_MAX: u64 = 256 << 20;

pub async fn open(file: Arc<dyn Storage>) -> Result<Image, Error> {
    let blame = Blame::new(file.name());
    let mut footer = Fields::read(&*file, 0, FOOTER_BYTES, "header").await?;
    let in_front = footer.bytes().starts_with(COOKIE);
    if !in_front {
        let at = file.length() - FOOTER_BYTES as u64;
        footer = Fields::read(&*file, at, FOOTER_BYTES, "footer").await?;
    }
    if !footer.bytes().starts_with(COOKIE) {
        return Err(blame.corrupt("there is no VHD footer, neither in front nor at the end"));
    }
    check_sum(&blame, &footer, 0x40, "footer")?;
    let size = disk_bytes(&footer);
    let places = match footer.be32(0x3c) {
        FIXED => fixed(&blame, &*file, size)?,
        DYNAMIC if in_front => dynamic(&blame, &*file, footer.be64(0x10), size).await?,
        DYNAMIC => return Err(blame.corrupt("a dynamic VHD without the copy of its footer in front")),
        DIFFERENCING => {
            return Err(
                blame.unsupported("a differencing VHD: merge it into its parent first (Hyper-V's Merge-VHD)")
            );
        }
        other => {
            return Err(
                blame.unsupported(format!("a VHD of type {other}; 2 (fixed) and 3 (dynamic) are supported"))
            );
        }
    };
    Ok(Disk { layout: OneFile { kind: Kind::Vpc, file, size, places } })
}

fn disk_bytes(footer: &Fields) -> u64 {
    let [heads, sectors] = footer.array::<2>(0x3a);
    let chs = u64::from(footer.be16(0x38)) * u64::from(heads) * u64::from(sectors);
    let is_sized = SIZED.contains(&&footer.array::<4>(0x1c));
    match is_sized || chs == CHS_MAX {
        true => footer.be64(0x30) / SECTOR_BYTES * SECTOR_BYTES,
        false => chs * SECTOR_BYTES,
    }
}

fn fixed(blame: &Blame, file: &dyn Storage, size: u64) -> Result<Places, Error> {
    let there = file.length() - FOOTER_BYTES as u64;
    match size <= there {
        true => Ok(Places::Flat(0)),
        false => {
            Err(blame
                .corrupt(format!("the disk has {size} bytes, and the file only {there} before its footer")))
        }
    }
}

async fn dynamic(blame: &Blame, file: &dyn Storage, at: u64, size: u64) -> Result<Places, Error> {
    let header = Fields::read(file, at, DYNAMIC_BYTES, "header of the dynamic disk").await?;
    if !header.bytes().starts_with(b"cxsparse") {
        return Err(blame.corrupt(format!("there is no header of a dynamic disk at {at}")));
    }
    check_sum(blame, &header, 0x24, "header of the dynamic disk")?;
    let (entries, block_bytes) = (u64::from(header.be32(0x1c)), u64::from(header.be32(0x20)));
    if !block_bytes.is_power_of_two() || !(SECTOR_BYTES..=BLOCK_BYTES_MAX).contains(&block_bytes) {
        let detail = format!(
            "the block size is {block_bytes}; must be a power of two from {SECTOR_BYTES} to {BLOCK_BYTES_MAX}"
        );
        return Err(blame.corrupt(detail));
    }
    if entries * block_bytes < size {
        return Err(blame.corrupt(format!(
            "{entries} blocks of {block_bytes} bytes do not hold the disk ({size} bytes)"
        )));
    }
    let table = Table::new(file, header.be64(0x10), entries, Order::Big)?;
    // A bit for each sector stands before the data of a block. It matters in a differencing disk only.
    let base = (block_bytes / SECTOR_BYTES).div_ceil(8).next_multiple_of(SECTOR_BYTES);
    Ok(Places::Blocks(Blocks {
        table,
        block_bytes,
        zero_from: UNALLOCATED,
        base,
        unit_bytes: SECTOR_BYTES,
        preallocated: false,
    }))
}

/// The complement of the sum of all bytes but those of the sum, which stands at `at`.
pub(crate) fn sum(bytes: &[u8], at: usize) -> u32 {
    let all = bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    let own = bytes.iter().skip(at).take(4).map(|byte| u32::from(*byte)).sum::<u32>();
    !(all - own)
}

fn check_sum(blame: &Blame, fields: &Fields, at: usize, what: &str) -> Result<(), Error> {
    let (found, right) = (fields.be32(at), sum(fields.bytes(), at));
    match found == right {
        true => Ok(()),
        false => {
            Err(blame.corrupt(format!("the checksum of the {what} is {found:#x}; its bytes have {right:#x}")))
        }
    }
}
