//! Zeroing, discarding, reserving.

use std::io;
use std::sync::Arc;

use memory::{IoBytes, IoVec};

use super::Shared;
use super::kind::Kind;
use crate::range_lock::{RangeGuard, RangeMode};
use crate::{Allocation, Hints, Zeroing};

/// What zeroes are written from, where the file system has nothing better: one buffer, many times
/// in one call.
const ZEROES: usize = 256 << 10;

/// Most zero bytes in one write: little enough that a dropped future soon stops.
const ZERO_WRITE_MAX: u64 = 8 << 20;

/// The unit in which a block device takes requests other than reads and writes, unless its sectors are larger: the kernel goes by
/// pages of its cache.
const DEVICE_UNIT: u64 = 4096;

const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
const PUNCH_HOLE: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32 | KEEP_SIZE;
const ZERO_RANGE: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;

impl Shared {
    pub(super) async fn zero(self: &Arc<Self>, offset: u64, len: u64, how: Zeroing) -> io::Result<()> {
        let end = self.check_write(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let done = match self.kind {
            Kind::Regular => self.zero_file(offset, len, how).await?,
            Kind::BlockDevice => self.zero_device(offset, len, how).await?,
            Kind::CharacterDevice => false,
        };
        if done {
            self.grown_to(end);
            return Ok(());
        }
        if how == Zeroing::FastOnly {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("{} cannot zero quickly", self.name),
            ));
        }
        self.write_zeroes(offset, len).await
    }

    /// Has the file system do it; false if it cannot, and nothing has changed.
    async fn zero_file(self: &Arc<Self>, offset: u64, len: u64, how: Zeroing) -> io::Result<bool> {
        let held = self.hold(offset, offset + len).await;
        if how != Zeroing::Keep && self.fallocate(PUNCH_HOLE, offset, len).await? {
            drop(held);
            self.grow_to(offset + len).await?;
            return Ok(true);
        }
        self.fallocate(ZERO_RANGE, offset, len).await
    }

    /// Zeroes whole units by the device, the rest by writing.
    async fn zero_device(self: &Arc<Self>, offset: u64, len: u64, how: Zeroing) -> io::Result<bool> {
        let end = offset + len;
        let (start, stop) = self.whole_units(offset, end);
        if start >= stop {
            return Ok(false);
        }
        let held = self.hold(start, stop).await;
        let unmapped = how != Zeroing::Keep && self.fallocate(PUNCH_HOLE, start, stop - start).await?;
        let may_write = how != Zeroing::FastOnly;
        let done =
            unmapped || may_write && self.fallocate(ZERO_RANGE | KEEP_SIZE, start, stop - start).await?;
        drop(held);
        if done {
            self.write_zeroes(offset, start - offset).await?;
            self.write_zeroes(stop, end - stop).await?;
        }
        Ok(done)
    }

    /// The units of a device that lie in the range, as start and end; none if the end is not behind the start.
    fn whole_units(&self, offset: u64, end: u64) -> (u64, u64) {
        let unit = DEVICE_UNIT.max(self.asked.logical_block_bytes.map_or(0, u64::from));
        (offset.next_multiple_of(unit), end - end % unit)
    }

    async fn write_zeroes(self: &Arc<Self>, offset: u64, len: u64) -> io::Result<()> {
        let zeroes = IoBytes::zeroed(ZEROES.min(len as usize));
        let mut at = 0;
        while at < len {
            // Keep to multiples, so that an unaligned start costs one unaligned write, not all.
            let step = (ZERO_WRITE_MAX - (offset + at) % ZERO_WRITE_MAX).min(len - at);
            self.write(offset + at, repeated(&zeroes, step), Hints::NONE).await?;
            at += step;
        }
        Ok(())
    }

    pub(super) async fn discard(self: &Arc<Self>, offset: u64, len: u64) -> io::Result<()> {
        let end = self.check_write(offset, len)?.min(self.length());
        if offset >= end {
            return Ok(());
        }
        match self.kind {
            Kind::Regular => {
                let held = self.hold(offset, end).await;
                if self.fallocate(PUNCH_HOLE, offset, end - offset).await? {
                    return Ok(());
                }
                drop(held);
                // The space stays, but what was promised to read as zeroes does.
                self.zero(offset, end - offset, Zeroing::Keep).await
            }
            Kind::CharacterDevice => Ok(()),
            Kind::BlockDevice => {
                let (start, stop) = self.whole_units(offset, end);
                if start >= stop {
                    return Ok(());
                }
                let _held = self.hold(start, stop).await;
                self.discard_device(start, stop - start).await
            }
        }
    }

    async fn discard_device(&self, offset: u64, len: u64) -> io::Result<()> {
        let fd = Arc::clone(self.file.fd());
        let result = reactor::blocking(move || super::extent::discard_blocks(&fd, offset, len)).await;
        match result {
            Err(error) if is_unsupported(&error) => Ok(()),
            result => result,
        }
    }

    pub(super) async fn allocate(self: &Arc<Self>, offset: u64, len: u64, how: Allocation) -> io::Result<()> {
        let end = self.check_write(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        if how == Allocation::Write {
            return self.write_zeroes(offset, len).await;
        }
        if self.kind != Kind::Regular {
            return Ok(());
        }
        let _held = self.hold(offset, end).await;
        if !self.fallocate(0, offset, len).await? {
            let message = format!("the file system of {} cannot reserve space without writing it", self.name);
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        self.grown_to(end);
        Ok(())
    }

    /// With O_DIRECT, keeps read-modify-writes off the range.
    pub(super) async fn hold(&self, start: u64, end: u64) -> Option<RangeGuard<'_>> {
        self.direct?;
        Some(self.ranges.acquire(start, end, RangeMode::Shared).await)
    }

    /// False if the file system does not know this mode.
    pub(super) async fn fallocate(&self, mode: u32, offset: u64, len: u64) -> io::Result<bool> {
        loop {
            match self.file.fallocate(mode, offset, len).await {
                Ok(()) => return Ok(self.noted(mode, true)),
                Err(error) if super::calls::is_transient(&error) => {}
                Err(error) if is_unsupported(&error) => return Ok(self.noted(mode, false)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Keeps what was learned of the device.
    fn noted(&self, mode: u32, done: bool) -> bool {
        match mode {
            PUNCH_HOLE => self.tried.punches_holes.note(done),
            mode if mode & ZERO_RANGE != 0 => self.tried.zeroes_ranges.note(done),
            _ => {}
        }
        done
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY))
}

/// `len` bytes made of `zeroes` over and over.
fn repeated(zeroes: &IoBytes, len: u64) -> IoVec {
    let mut data = IoVec::new();
    let mut rest = len as usize;
    while rest > 0 {
        let step = rest.min(zeroes.len());
        data.push(zeroes.slice(0, step));
        rest -= step;
    }
    data
}
