//! Ranges of any alignment over a server that takes whole blocks, and pieces no longer than it takes.

use std::io;

use memory::{Filling, IoBuf, IoBytes, IoVec};
use storage::{RangeMode, Zeroing};
use wire::nbd::{CommandFlags, ExportFlags};

use crate::nbd::ask::{Ask, What};
use crate::nbd::errors::Error;
use crate::nbd::export::NbdStorage;

/// Most bytes of one request to zero or to discard: below what 32 bits hold, and a multiple of every block.
pub(crate) const CHANGE_BYTES_MAX: u64 = 1 << 30;
/// Bytes of zeroes that are written at a time to a server that cannot zero.
const ZEROES_BYTES: u64 = 1 << 20;

impl NbdStorage {
    fn is_aligned(&self, offset: u64, len: u64) -> bool {
        offset.is_multiple_of(self.block) && len.is_multiple_of(self.block)
    }

    /// Whole blocks that hold a range, which is inside the export.
    fn around(&self, offset: u64, len: u64) -> (u64, u64) {
        let start = offset - offset % self.block;
        (start, (offset + len).next_multiple_of(self.block) - start)
    }

    /// Reads whole blocks inside the export.
    async fn read_blocks(&self, offset: u64, buf: IoBuf) -> (io::Result<()>, IoBuf) {
        let piece = usize::try_from(self.request_bytes_max).unwrap_or(usize::MAX);
        let mut filling = Filling::new(buf);
        let mut at = offset;
        loop {
            let len = filling.left().min(piece);
            let ask = Ask::new(What::Read, at, len as u64);
            let reply = self.client.run(&ask, Some(filling.take(len))).await;
            filling.give(reply.buf.unwrap_or_else(|| IoBuf::uninit(len)));
            at += len as u64;
            if reply.result.is_err() || filling.is_full() {
                return (reply.result.map_err(Into::into), filling.end());
            }
        }
    }

    /// Reads any range inside the export.
    pub(crate) async fn read_inside(&self, offset: u64, mut buf: IoBuf) -> (io::Result<()>, IoBuf) {
        if buf.is_empty() || self.is_aligned(offset, buf.len() as u64) {
            return if buf.is_empty() { (Ok(()), buf) } else { self.read_blocks(offset, buf).await };
        }
        let (start, len) = self.around(offset, buf.len() as u64);
        let blocks = match IoBuf::for_request(usize::try_from(len).unwrap_or(usize::MAX)) {
            Ok(blocks) => blocks,
            Err(error) => return (Err(error), buf),
        };
        let (result, blocks) = self.read_blocks(start, blocks).await;
        let skip = usize::try_from(offset - start).unwrap_or(usize::MAX);
        if let Some(wanted) = blocks.get(skip..skip + buf.len()) {
            buf.copy_from_slice(wanted);
        }
        (result, buf)
    }

    /// Sends a change, once there is room to keep it.
    pub(crate) async fn change(&self, ask: &Ask) -> Result<(), Error> {
        if self.client.unflushed.is_full() {
            let _turn = self.making_room.lock().await;
            if self.client.unflushed.is_full() {
                self.client.run(&Ask::flush(), None).await.result?;
            }
        }
        self.extents.changed();
        let reply = self.client.run(ask, None).await;
        self.extents.changed();
        reply.result
    }

    async fn write_blocks(&self, offset: u64, data: &IoVec) -> Result<(), Error> {
        let piece = usize::try_from(self.request_bytes_max).unwrap_or(usize::MAX);
        let mut at = 0;
        while at < data.len() {
            let end = data.len().min(at.saturating_add(piece));
            self.change(&Ask::write(What::Write, offset + at as u64, data.slice(at, end))).await?;
            at = end;
        }
        Ok(())
    }

    /// Writes any range inside the export.
    pub(crate) async fn write_inside(&self, offset: u64, data: IoVec) -> io::Result<()> {
        let len = data.len() as u64;
        if self.block == 1 {
            return Ok(self.write_blocks(offset, &data).await?);
        }
        let (start, around) = self.around(offset, len);
        let is_aligned = self.is_aligned(offset, len);
        let mode = if is_aligned { RangeMode::Shared } else { RangeMode::Exclusive };
        let _held = self.blocks.acquire(start, start + around, mode).await;
        if is_aligned {
            return Ok(self.write_blocks(offset, &data).await?);
        }
        let blocks = IoBuf::for_request(usize::try_from(around).unwrap_or(usize::MAX))?;
        let (result, blocks) = self.read_blocks(start, blocks).await;
        result?;
        let blocks = blocks.freeze();
        let skip = usize::try_from(offset - start).unwrap_or(usize::MAX);
        let mut whole = IoVec::from(blocks.slice(0, skip));
        whole.append(data.clone());
        whole.push(blocks.slice(skip + data.len(), blocks.len()));
        Ok(self.write_blocks(start, &whole).await?)
    }

    /// Asks the server to zero whole blocks.
    async fn zero_blocks(&self, offset: u64, len: u64, flags: CommandFlags) -> io::Result<()> {
        let _held = self.blocks.acquire(offset, offset + len, RangeMode::Shared).await;
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let len = (end - at).min(CHANGE_BYTES_MAX);
            self.change(&Ask::new(What::Zero(flags), at, len)).await?;
            at += len;
        }
        Ok(())
    }

    async fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        let zeroes = IoBytes::zeroed(usize::try_from(len.min(ZEROES_BYTES)).unwrap_or(0));
        let (mut at, end) = (offset, offset + len);
        while at < end {
            // Pieces end at multiples of their size, so that few are parts of blocks.
            let piece = (end - at).min(ZEROES_BYTES - at % ZEROES_BYTES);
            self.write_inside(at, zeroes.slice(0, usize::try_from(piece).unwrap_or(0)).into()).await?;
            at += piece;
        }
        Ok(())
    }

    /// Zeroes any range inside the export.
    pub(crate) async fn zero_inside(&self, offset: u64, len: u64, how: Zeroing) -> io::Result<()> {
        let flags = match how {
            Zeroing::Keep => CommandFlags::NO_HOLE,
            Zeroing::Unmap => CommandFlags::NONE,
            Zeroing::FastOnly => CommandFlags::FAST_ZERO,
        };
        let can = match how {
            Zeroing::FastOnly => ExportFlags::WRITE_ZEROES | ExportFlags::FAST_ZERO,
            Zeroing::Keep | Zeroing::Unmap => ExportFlags::WRITE_ZEROES,
        };
        let whole = (offset.next_multiple_of(self.block), (offset + len) - (offset + len) % self.block);
        let is_able = self.has(can);
        if how == Zeroing::FastOnly && (!is_able || whole != (offset, offset + len)) {
            return Err(Error::Unsupported("zero this fast").into());
        }
        if !is_able || whole.0 >= whole.1 {
            return self.write_zeroes(offset, len).await;
        }
        self.write_zeroes(offset, whole.0 - offset).await?;
        self.zero_blocks(whole.0, whole.1 - whole.0, flags).await?;
        self.write_zeroes(whole.1, offset + len - whole.1).await
    }
}
