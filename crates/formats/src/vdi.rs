//! `vdi`: VirtualBox's images of version 1.1, with blocks of 1 MiB. Entries of the table count blocks behind the header.

use std::fmt;
use std::sync::Arc;

use block::{Blame, Error, SECTOR_BYTES};
use storage::Storage;

use crate::Kind;
use crate::fields::Fields;
use crate::image::{Blocks, Image, OneFile, Places};
use crate::pieces::Disk;
use crate::table::{Order, Table};

/// What says that a file is one, and where it stands.
pub const SIGNATURE: [u8; 4] = [0x7f, 0x10, 0xda, 0xbe];
/// Its place.
pub const SIGNATURE_OFFSET: usize = 0x40;

const HEADER_BYTES: usize = 512;
/// Where the header counts the blocks that have data.
const ALLOCATED_AT: u64 = 0x184;
const DYNAMIC: u32 = 1;
const FIXED: u32 = 2;
const VERSION_1_1: u32 = 0x0001_0001;
const BLOCK_BYTES: u64 = 1 << 20;
/// As in QEMU: a disk of 512 TiB.
const BLOCKS_MAX: u64 = 0x2000_0000;
/// Entries from here on have no block: never written, or given back.
const DISCARDED: u32 = 0xffff_fffe;

pub async fn open(file: Arc<dyn Storage>) -> Result<Image, Error> {
    let header = Fields::read(&*file, 0, HEADER_BYTES, "header").await?;
    let blame = Blame::new(file.name());
    let corrupt = |detail: String| Err(blame.corrupt(detail));
    if header.array(SIGNATURE_OFFSET) != SIGNATURE {
        return corrupt("there is no signature of a vdi image".to_owned());
    }
    let unsupported = unsupported(&header);
    if let Some(detail) = unsupported {
        return Err(blame.unsupported(detail));
    }
    let (map_offset, base) = (u64::from(header.le32(0x154)), u64::from(header.le32(0x158)));
    for (what, offset) in [("table of blocks", map_offset), ("data", base)] {
        if offset % SECTOR_BYTES != 0 {
            return corrupt(format!("the {what} begins at {offset}; must be a multiple of {SECTOR_BYTES}"));
        }
    }
    let (size, blocks) = (header.le64(0x170), u64::from(header.le32(0x180)));
    if blocks > BLOCKS_MAX || size > blocks * BLOCK_BYTES {
        return corrupt(format!(
            "the disk has {size} bytes in {blocks} blocks of {BLOCK_BYTES}; at most {BLOCKS_MAX} blocks, which hold it, are allowed"
        ));
    }
    let table = Table::new(&*file, map_offset, blocks, Order::Little)?;
    // Some writers give a size that is no whole number of sectors; the last block holds the rest of the sector.
    let size = size.next_multiple_of(SECTOR_BYTES);
    let blocks = Blocks {
        table,
        block_bytes: BLOCK_BYTES,
        zero_from: DISCARDED,
        base,
        unit_bytes: BLOCK_BYTES,
        preallocated: header.le32(0x4c) == FIXED,
    };
    Ok(Disk { layout: OneFile { kind: Kind::Vdi, file, size, places: Places::Blocks(blocks) } })
}

/// What of the header is not read, if anything.
fn unsupported(header: &Fields) -> Option<String> {
    let found = [
        ("version", header.le32(0x44), VERSION_1_1),
        ("sector size", header.le32(0x168), SECTOR_BYTES as u32),
        ("block size", header.le32(0x178), BLOCK_BYTES as u32),
    ];
    if let Some((what, found, allowed)) = found.into_iter().find(|(_, found, allowed)| found != allowed) {
        return Some(format!("a vdi image of {what} {found:#x}; only {allowed:#x} is supported"));
    }
    let image_type = header.le32(0x4c);
    if !matches!(image_type, DYNAMIC | FIXED) {
        return Some(format!(
            "a vdi image of type {image_type}; only 1 (dynamic) and 2 (fixed) are supported"
        ));
    }
    let linked = [0x1a8, 0x1b8].into_iter().any(|at| header.array(at) != [0; 16]);
    linked.then(|| {
        "a vdi image that is a difference to another one: merge it with VBoxManage clonemedium".to_owned()
    })
}

/// What is wrong with an image. Each is a corruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// An entry leads behind all blocks that the image can have.
    OutOfRange {
        /// The block of the disk.
        block: u64,
        /// What its entry says.
        entry: u32,
        /// How many blocks there can be.
        blocks: u64,
    },
    /// Two entries lead to one block.
    Shared {
        /// The block of the disk with the second one.
        block: u64,
        /// What both say.
        entry: u32,
    },
    /// The header counts other blocks than the table has.
    Allocated {
        /// Entries of the table.
        found: u64,
        /// What the header says.
        counted: u32,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange { block, entry, blocks } => {
                write!(f, "block {block} has entry {entry}; the image has {blocks} blocks")
            }
            Self::Shared { block, entry } => {
                write!(f, "block {block} has entry {entry}, which another block has, too")
            }
            Self::Allocated { found, counted } => {
                write!(f, "the header counts {counted} blocks with data; the table has {found}")
            }
        }
    }
}

impl Finding {
    /// As QEMU's tools word it.
    pub fn in_qemus_words(&self) -> String {
        match self {
            Self::OutOfRange { block, entry, .. } => {
                format!("ERROR: block index {block} out of range, is {entry}")
            }
            Self::Shared { entry, .. } => format!("ERROR: block index {entry} also used by {entry}"),
            Self::Allocated { found, counted } => {
                format!("ERROR: allocated blocks mismatch, is {found}, should be {counted}")
            }
        }
    }
}

/// Reads the table of an open image, shows `found` what is wrong, and gives the number of corruptions. Costs a bit of memory for each block of the
/// disk: a 32nd of the table.
///
/// # Errors
/// When the table cannot be read.
pub(crate) async fn check(image: &Image, found: &mut dyn FnMut(Finding)) -> Result<u64, Error> {
    let Places::Blocks(blocks) = &image.layout.places else { return Ok(0) };
    let file = &*image.layout.file;
    let count = blocks.table.entries();
    let blame = Blame::new(file.name());
    let words = count.div_ceil(64) as usize;
    let mut used: Vec<u64> = Vec::new();
    used.try_reserve_exact(words).map_err(|_| blame.no_memory("a bit for each block"))?;
    used.resize(words, 0);
    let (mut allocated, mut corruptions) = (0, 0);
    let mut report = |finding| {
        corruptions += 1;
        found(finding);
    };
    for block in 0..count {
        let entry = blocks.table.entry(file, block).await?;
        if entry >= DISCARDED {
            continue;
        }
        let Some(word) = used.get_mut(entry as usize / 64).filter(|_| u64::from(entry) < count) else {
            report(Finding::OutOfRange { block, entry, blocks: count });
            continue;
        };
        allocated += 1;
        let bit = 1 << (entry % 64);
        if *word & bit != 0 {
            report(Finding::Shared { block, entry });
        }
        *word |= bit;
    }
    let counted = Fields::read(file, ALLOCATED_AT, 4, "header").await?.le32(0);
    if allocated != u64::from(counted) {
        report(Finding::Allocated { found: allocated, counted });
    }
    Ok(corruptions)
}
