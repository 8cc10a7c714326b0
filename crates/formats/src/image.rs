//! What the formats have in common: a disk of blocks, each of them in the file or all zeroes.

use std::sync::Arc;

use block::{Blame, Block, BlockFuture, BlockStatus, Capabilities, Error, ReadKind, ZeroOptions};
use buffer::{Filling, IoBuf, IoVec};
use storage::{ExtentKind, Hints, Storage};

use crate::Kind;
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

/// A range of the disk in one state.
struct Piece {
    len: u64,
    /// Where it is in the file; `None`: it reads as zeroes.
    host: Option<u64>,
}

/// An open image, read-only.
#[derive(Debug)]
pub struct Image {
    pub(crate) kind: Kind,
    pub(crate) file: Arc<dyn Storage>,
    pub(crate) size: u64,
    pub(crate) places: Places,
}

impl Image {
    /// Bytes that are allocated together, where the image has a table.
    pub fn block_bytes(&self) -> Option<u64> {
        match &self.places {
            Places::Flat(_) => None,
            Places::Blocks(blocks) => Some(blocks.block_bytes),
        }
    }

    fn blame(&self) -> Blame {
        Blame::new(self.file.name())
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(self.blame().past_end(offset, len, self.size)),
        }
    }

    async fn locate(&self, offset: u64, len: u64) -> Result<Piece, Error> {
        let blocks = match &self.places {
            Places::Flat(start) => return Ok(Piece { len, host: Some(start + offset) }),
            Places::Blocks(blocks) => blocks,
        };
        let inside = offset % blocks.block_bytes;
        let len = len.min(blocks.block_bytes - inside);
        let index = offset / blocks.block_bytes;
        let entry = blocks.table.entry(&*self.file, index).await?;
        if entry >= blocks.zero_from {
            return Ok(Piece { len, host: None });
        }
        let start =
            u64::from(entry).checked_mul(blocks.unit_bytes).and_then(|at| at.checked_add(blocks.base));
        match start.filter(|start| *start < self.file.length()) {
            Some(start) => Ok(Piece { len, host: Some(start + inside) }),
            None => {
                let detail = format!(
                    "block {index} has entry {entry}, which leads beyond the end of the file ({} bytes)",
                    self.file.length()
                );
                Err(self.blame().corrupt(detail))
            }
        }
    }

    /// Reads a piece. What a file that was cut short lacks reads as zeroes, as in QEMU.
    async fn fill(&self, host: Option<u64>, mut buf: IoBuf) -> (Result<(), Error>, IoBuf) {
        let there = host.map_or(0, |host| self.file.length().saturating_sub(host).min(buf.len() as u64));
        let mut rest = buf.split_off(there as usize);
        rest.fill(0);
        if let Some(host) = host.filter(|_| there > 0) {
            let (result, back) = self.file.read(host, buf, Hints::NONE).await;
            buf = back;
            buf.rejoin(rest);
            return (result.map_err(self.blame().io("reading data")), buf);
        }
        buf.rejoin(rest);
        (Ok(()), buf)
    }

    async fn read_all(&self, offset: u64, buf: IoBuf) -> (Result<ReadKind, Error>, IoBuf) {
        if let Err(error) = self.check(offset, buf.len() as u64) {
            return (Err(error), buf);
        }
        let (mut at, mut filling) = (offset, Filling::new(buf));
        let (mut kind, mut failure) = (ReadKind::Zeroes, None);
        while failure.is_none() && !filling.is_full() {
            let piece = match self.locate(at, filling.left() as u64).await {
                Ok(piece) => piece,
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            };
            if piece.host.is_some() {
                kind = ReadKind::Data;
            }
            let (result, part) = self.fill(piece.host, filling.take(piece.len as usize)).await;
            failure = result.err();
            filling.give(part);
            at += piece.len;
        }
        (failure.map_or(Ok(kind), Err), filling.end())
    }

    /// As QEMU reports it: a block without data is a hole that reads as zeroes. Where all space was allocated with the image, a hole of the file
    /// reads as zeroes and is data.
    async fn status(&self, offset: u64, len: u64) -> Result<BlockStatus, Error> {
        self.check(offset, len)?;
        let piece = self.locate(offset, len).await?;
        let data = BlockStatus::data(piece.len, 0, piece.host);
        let Some(host) = piece.host else {
            return Ok(BlockStatus { zero: true, hole: true, data: false, ..data });
        };
        let there = self.file.length().saturating_sub(host).min(piece.len);
        if !self.is_preallocated() || there == 0 {
            return Ok(data);
        }
        let extent = self.file.extent(host, there).await.map_err(self.blame().io("asking for holes"))?;
        let hole = extent.kind == ExtentKind::Hole;
        Ok(BlockStatus { len: extent.len.clamp(1, there), zero: hole, hole, ..data })
    }

    fn is_preallocated(&self) -> bool {
        match &self.places {
            Places::Flat(_) => true,
            Places::Blocks(blocks) => blocks.preallocated,
        }
    }

    fn refused<T: 'static>(&self) -> BlockFuture<'_, Result<T, Error>> {
        let kind = self.kind.name();
        let detail = format!(
            "{kind} images are only read: cowhand convert -O qcow2 makes an image of it that is written"
        );
        let error = self.blame().refused(detail);
        Box::pin(async move { Err(error) })
    }
}

impl Block for Image {
    fn driver(&self) -> &'static str {
        self.kind.name()
    }

    fn name(&self) -> &str {
        self.file.name()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            read_only: true,
            alignment: self.file.capabilities().alignment,
            cached: false,
            cluster_bytes: self.block_bytes(),
        }
    }

    fn read(&self, offset: u64, buf: IoBuf, _: Hints) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(self.read_all(offset, buf))
    }

    fn write(&self, _: u64, _: IoVec, _: Hints) -> BlockFuture<'_, Result<(), Error>> {
        self.refused()
    }

    fn zero(&self, _: u64, _: u64, _: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        self.refused()
    }

    fn discard(&self, _: u64, _: u64) -> BlockFuture<'_, Result<(), Error>> {
        self.refused()
    }

    fn flush(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        Box::pin(self.status(offset, len))
    }

    fn close(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }
}
