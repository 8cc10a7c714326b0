//! `vhdx`: Hyper-V's images since 2012. A table finds blocks of 1 to 256 MiB; entries of bitmaps, which only differencing images have, are between.
//!
//! MS-VHDX. A log that was not replayed when the writer died is replayed in memory (`replay.rs`): the file is not written.

mod crc;
mod header;
mod log;
mod replay;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::sync::Arc;

use block::{Blame, Error};
use storage::Storage;

pub use self::crc::sum_but as checksum;
pub use self::header::SIGNATURE;
use self::header::{Header, MIB, Region, Regions, guid};
use self::replay::Replayed;
use crate::Kind;
use crate::fields::Fields;
use crate::pages::{Numbered, Pages};
use crate::pieces::{Disk, Layout, Piece, Place};

/// An open vhdx image.
pub type Vhdx = Disk<HyperV>;

const ENTRY_BYTES: u64 = 8;
/// Sectors of the disk that a bitmap's block describes.
const BITMAP_SECTORS: u64 = 1 << 23;
const STATE: u64 = 7;
/// What of an entry is a place in the file, in bytes.
const PLACE: u64 = !(MIB - 1);

/// What an open image knows of its disk.
#[derive(Debug)]
pub struct HyperV {
    /// With what the log changes.
    file: Arc<dyn Storage>,
    metadata: Metadata,
    bat: Region,
    /// The log has changes that the file has not.
    is_replayed: bool,
    /// What no block may overlap.
    taken: [Region; 4],
    pages: Pages,
}

/// What an entry says of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unallocated,
    Zeroes,
    At(u64),
    /// It has no meaning in an image that is not a difference.
    Bad,
}

impl State {
    fn of(entry: u64) -> Self {
        match entry & STATE {
            0 => Self::Unallocated,
            // Undefined, zero, unmapped, and what a draft of the specification had for unmapped.
            1 | 2 | 3 | 5 => Self::Zeroes,
            6 => Self::At(entry & PLACE),
            _ => Self::Bad,
        }
    }
}

/// Opens the image in `file` for reading.
///
/// # Errors
/// [`block::ErrorKind::Corrupt`] where it contradicts itself, [`block::ErrorKind::Unsupported`] for a differencing image, and what reading the
/// file reports.
pub async fn open(file: Arc<dyn Storage>) -> Result<Vhdx, Error> {
    let header = header::read(&*file).await?;
    let (file, is_replayed) = match log::read(&*file, &header).await? {
        Some(replay) => (Arc::new(Replayed::new(file, replay)) as Arc<dyn Storage>, true),
        None => (file, false),
    };
    let regions = header::regions(&*file).await?;
    let metadata = read(&*file, regions.metadata).await?;
    let layout = HyperV::new(file, &header, regions, metadata)?;
    Ok(Disk { layout: HyperV { is_replayed, ..layout } })
}

impl Vhdx {
    /// Whether the image was not closed: it is read as it is after the replay of its log, which the file is not.
    pub fn is_replayed(&self) -> bool {
        self.layout.is_replayed
    }
}

impl HyperV {
    fn new(
        file: Arc<dyn Storage>,
        header: &Header,
        regions: Regions,
        metadata: Metadata,
    ) -> Result<Self, Error> {
        let Regions { bat, metadata: items } = regions;
        let first = Region { offset: 0, len: MIB };
        let (taken, pages) = ([first, header.log, bat, items], Pages::default());
        let layout = Self { file, metadata, bat, is_replayed: false, taken, pages };
        let need = layout.entries() * ENTRY_BYTES;
        let end = bat.offset.saturating_add(need);
        match need <= bat.len && end <= layout.file.length() {
            true => Ok(layout),
            false => Err(Blame::new(layout.file.name()).corrupt(format!(
                "the table of blocks needs {need} bytes at {}; its region has {}, and the file {}",
                bat.offset,
                bat.len,
                layout.file.length()
            ))),
        }
    }

    /// Blocks of the disk between two entries of bitmaps.
    fn chunk(&self) -> u64 {
        BITMAP_SECTORS * self.metadata.sector_bytes / self.metadata.block_bytes
    }

    fn blocks(&self) -> u64 {
        self.metadata.size.div_ceil(self.metadata.block_bytes)
    }

    /// Entries up to that of the last block.
    fn entries(&self) -> u64 {
        self.blocks().checked_sub(1).map_or(0, |last| self.entry_of(last) + 1)
    }

    fn entry_of(&self, block: u64) -> u64 {
        block + block / self.chunk()
    }

    /// The states of `max` blocks from `block` on, as far as a page of the table tells: one, at least.
    async fn states(&self, block: u64, max: u64) -> Result<Vec<State>, Error> {
        let first = self.entry_of(block);
        let file = Numbered { file: &*self.file, number: 0 };
        let rest = self.pages.rest(file, self.bat.offset + first * ENTRY_BYTES, ENTRY_BYTES).await?;
        let period = self.chunk() + 1;
        let blocks = (first..).zip(rest.le64()).filter(|(entry, _)| entry % period != self.chunk());
        let left = (self.blocks() - block).min(max) as usize;
        Ok(blocks.take(left).map(|(_, entry)| State::of(entry)).collect())
    }

    /// What is wrong with `block` at `at`, if anything. Of the last one the file needs to have no more than the disk has.
    fn fault(&self, block: u64, at: u64) -> Option<String> {
        let Metadata { size, block_bytes, .. } = self.metadata;
        let len = size.saturating_sub(block * block_bytes).min(block_bytes);
        let block = Region { offset: at, len };
        let end = at.saturating_add(len);
        if end > self.file.length() {
            return Some(format!(
                "it ends at {end}, beyond the end of the file ({} bytes)",
                self.file.length()
            ));
        }
        let taken = self.taken.iter().any(|region| region.overlaps(&block));
        taken.then(|| format!("it is at {at}, where the file has metadata"))
    }

    fn corrupt(&self, block: u64, what: &str) -> Error {
        Blame::new(self.file.name()).corrupt(format!("block {block} is wrong: {what}"))
    }
}

impl Layout for HyperV {
    type Packed = Infallible;

    fn kind(&self) -> Kind {
        Kind::Vhdx
    }

    fn name(&self) -> &str {
        self.file.name()
    }

    fn size(&self) -> u64 {
        self.metadata.size
    }

    fn cluster_bytes(&self) -> Option<u64> {
        Some(self.metadata.block_bytes)
    }

    fn alignment(&self) -> u32 {
        self.file.capabilities().alignment
    }

    async fn locate(&self, offset: u64, len: u64) -> Result<Piece<Infallible>, Error> {
        let block_bytes = self.metadata.block_bytes;
        let (block, inside) = (offset / block_bytes, offset % block_bytes);
        let states = self.states(block, (inside + len).div_ceil(block_bytes)).await?;
        let state = states.first().copied().unwrap_or(State::Bad);
        let same = |blocks: u64| len.min(blocks * block_bytes - inside);
        let run = states.iter().take_while(|next| **next == state).count() as u64;
        match state {
            State::Unallocated => Ok(Piece { len: same(run), place: Place::Unallocated }),
            State::Zeroes => Ok(Piece { len: same(run), place: Place::Zeroes }),
            State::At(at) => match self.fault(block, at) {
                Some(fault) => Err(self.corrupt(block, &fault)),
                None => {
                    let (file, reserved) = (Arc::clone(&self.file), self.metadata.is_fixed);
                    Ok(Piece { len: same(1), place: Place::File { file, at: at + inside, reserved } })
                }
            },
            State::Bad => {
                Err(self.corrupt(block, "its state has no meaning in an image that is no difference"))
            }
        }
    }

    async fn unpack(&self, packed: Infallible, _: &mut [u8]) -> Result<(), Error> {
        match packed {}
    }
}

/// Looks at the places of all blocks. Gives how many are wrong.
///
/// # Errors
/// What reading the table reports.
pub async fn check(image: &Vhdx) -> Result<u64, Error> {
    let layout = &image.layout;
    let (mut block, mut wrong) = (0, 0);
    while block < layout.blocks() {
        let states = layout.states(block, u64::MAX).await?;
        let is_wrong = |(block, state): &(u64, &State)| match state {
            State::At(at) => layout.fault(*block, *at).is_some(),
            State::Bad => true,
            State::Unallocated | State::Zeroes => false,
        };
        wrong += (block..).zip(&states).filter(is_wrong).count() as u64;
        block += states.len().max(1) as u64;
    }
    Ok(wrong)
}

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
