//! What the simple formats have in common: a disk of blocks in one file, each of them in the file or all zeroes.

use std::convert::Infallible;
use std::sync::Arc;

use block::{Blame, Error};
use storage::Storage;

use crate::Kind;
use crate::pieces::{Disk, Layout, Piece, Place};
use crate::table::Table;

/// Where the bytes of the disk are in the file.
#[derive(Debug)]
pub enum Places {
    /// One after the other, from this byte on.
    Flat(u64),
    /// In blocks that a table finds.
    Blocks(Blocks),
}

#[derive(Debug)]
pub struct Blocks {
    pub table: Table,
    pub block_bytes: u64,
    /// Entries from this one on say that a block reads as zeroes.
    pub zero_from: u32,
    /// Where a block of entry 0 is.
    pub base: u64,
    /// Bytes of the file for each step of an entry.
    pub unit_bytes: u64,
    /// All blocks were allocated with the image: holes of the file say which have no data.
    pub preallocated: bool,
}

/// An open image, read-only.
pub type Image = Disk<OneFile>;

/// What is known of it.
#[derive(Debug)]
pub struct OneFile {
    pub(crate) kind: Kind,
    pub(crate) file: Arc<dyn Storage>,
    pub(crate) size: u64,
    pub(crate) places: Places,
}

impl OneFile {
    fn at(&self, at: u64, reserved: bool) -> Place<Infallible> {
        Place::File { file: Arc::clone(&self.file), at, reserved }
    }
}

impl Layout for OneFile {
    type Packed = Infallible;

    fn kind(&self) -> Kind {
        self.kind
    }

    fn name(&self) -> &str {
        self.file.name()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn cluster_bytes(&self) -> Option<u64> {
        match &self.places {
            Places::Flat(_) => None,
            Places::Blocks(blocks) => Some(blocks.block_bytes),
        }
    }

    fn alignment(&self) -> u32 {
        self.file.capabilities().alignment
    }

    async fn locate(&self, offset: u64, len: u64) -> Result<Piece<Infallible>, Error> {
        let blocks = match &self.places {
            Places::Flat(start) => return Ok(Piece { len, place: self.at(start + offset, true) }),
            Places::Blocks(blocks) => blocks,
        };
        let inside = offset % blocks.block_bytes;
        let len = len.min(blocks.block_bytes - inside);
        let index = offset / blocks.block_bytes;
        let entry = blocks.table.entry(&*self.file, index).await?;
        if entry >= blocks.zero_from {
            return Ok(Piece { len, place: Place::Zeroes });
        }
        let start =
            u64::from(entry).checked_mul(blocks.unit_bytes).and_then(|at| at.checked_add(blocks.base));
        match start.filter(|start| *start < self.file.length()) {
            Some(start) => Ok(Piece { len, place: self.at(start + inside, blocks.preallocated) }),
            None => {
                let detail = format!(
                    "block {index} has entry {entry}, which leads beyond the end of the file ({} bytes)",
                    self.file.length()
                );
                Err(Blame::new(self.file.name()).corrupt(detail))
            }
        }
    }

    async fn unpack(&self, packed: Infallible, _: &mut [u8]) -> Result<(), Error> {
        match packed {}
    }
}
