//! The check of a vdi image: each entry of its table leads to a block of its own, and the header counts them.

use std::fmt;

use block::{Blame, Error};

use crate::fields::Fields;
use crate::image::{Image, Places};
use crate::vdi::{ALLOCATED_AT, DISCARDED};

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
