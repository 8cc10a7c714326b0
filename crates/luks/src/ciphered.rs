//! Storage whose bytes are ciphered in another.

mod write;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use storage::{
    Allocation, Capabilities, Extent, ExtentKind, Hints, IoBuf, IoBytes, IoFuture, IoVec, Medium, RangeLocks,
    RangeMode, StepWatcher, Storage, Zeroing,
};

use crate::around::Around;
use crate::layout::{SECTOR_BYTES, SectorCipher};
use crate::parallel::{Direction, cipher, is_done_here};

/// Zeroes that are ciphered and written at once.
const ZEROES_BYTES: u64 = 1 << 20;

/// The plain text of a part of another storage. What was never written there reads as noise, so nothing of it is known to be zero:
/// zeroes are written, holes are data, and so is what lies between the end and a write behind it.
///
/// Requests of any alignment are correct. Those that do not keep to the cipher's sectors are read, changed and written back: with sectors of
/// more than 512 bytes such a write may be cut through by a crash, and what stood beside it is as before, since in XTS mode a block of
/// 16 bytes that does not change has the same cipher text (larger sectors of CBC are refused for that reason).
#[derive(Debug)]
pub struct CipherStorage {
    shared: Arc<Shared>,
}

/// Which part of another storage is ciphered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Where the first sector lies.
    pub start: u64,
    /// Bytes, however the storage grows; `None`: up to its end.
    pub len: Option<u64>,
    /// The number of the first sector for the cipher, in 512 bytes.
    pub first_number: u64,
}

/// What a write needs that goes on after no task awaits it any more.
#[derive(Debug)]
struct Shared {
    below: Arc<dyn Storage>,
    part: Part,
    cipher: Arc<SectorCipher>,
    around: Arc<dyn Around>,
    /// Writes of whole sectors hold theirs side by side, others alone.
    ranges: RangeLocks,
    rewrites: Rewrites,
}

impl CipherStorage {
    /// The sectors of a part of `below`.
    pub fn new(
        below: Arc<dyn Storage>,
        part: Part,
        cipher: Arc<SectorCipher>,
        around: Arc<dyn Around>,
    ) -> Self {
        let (ranges, rewrites) = Default::default();
        Self { shared: Arc::new(Shared { below, part, cipher, around, ranges, rewrites }) }
    }
}

impl CipherStorage {
    /// The same sectors, ciphered with the same key, in another storage.
    pub fn over(&self, below: Arc<dyn Storage>) -> Self {
        let Shared { part, cipher, around, .. } = &*self.shared;
        Self::new(below, *part, Arc::clone(cipher), Arc::clone(around))
    }
}

impl Shared {
    fn sector_bytes(&self) -> u64 {
        self.cipher.sector_bytes()
    }

    /// The number of the sector that begins at `offset`.
    fn number(&self, offset: u64) -> u64 {
        self.part.first_number.wrapping_add(offset / SECTOR_BYTES)
    }

    /// The sectors that `offset..offset + len` touches: first byte, and behind the last one.
    fn sectors(&self, offset: u64, len: u64) -> io::Result<(u64, u64)> {
        let end = offset.checked_add(len).and_then(|end| end.checked_next_multiple_of(self.sector_bytes()));
        let inside = |end: &u64| match self.part.len {
            Some(fixed) => *end <= fixed,
            None => end.checked_add(self.part.start).is_some_and(|end| i64::try_from(end).is_ok()),
        };
        let beyond = || {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{len} bytes at {offset} are too far behind"))
        };
        Ok((offset - offset % self.sector_bytes(), end.filter(inside).ok_or_else(beyond)?))
    }

    fn is_whole(&self, offset: u64, len: u64) -> bool {
        offset.is_multiple_of(self.sector_bytes()) && len.is_multiple_of(self.sector_bytes())
    }

    /// Whole sectors. What the last one lacks in the file below is zeroes there.
    fn length(&self) -> u64 {
        let length = self.below.length().saturating_sub(self.part.start);
        let length = self.part.len.unwrap_or(length).min(length);
        match self.sector_bytes() {
            // qemu-img makes files whose last sector is short, and counts it.
            SECTOR_BYTES => length.next_multiple_of(SECTOR_BYTES),
            // To the kernel a part of a larger one is no part of the disk.
            sector => length / sector * sector,
        }
    }

    /// Fills `buf`, whole sectors from `offset` on, with what they read as now; writes of parts of them are waited for.
    async fn read_whole(&self, offset: u64, buf: IoBuf, hints: Hints) -> (io::Result<()>, IoBuf) {
        let moment = self.rewrites.quiet();
        let (result, buf) = self.read_at_once(offset, buf, hints).await;
        if result.is_err() || moment.is_some_and(|moment| self.rewrites.quiet_since(moment)) {
            return (result, buf);
        }
        let end = offset + buf.len() as u64;
        let _held = self.ranges.acquire(offset, end, RangeMode::Shared).await;
        self.read_at_once(offset, buf, hints).await
    }

    /// Likewise; writes of parts of them are the caller's, or may be met half-way.
    async fn read_at_once(&self, offset: u64, mut buf: IoBuf, hints: Hints) -> (io::Result<()>, IoBuf) {
        // Behind the end are zeroes, not the plain text of zeroes.
        let there = self.length().saturating_sub(offset).min(buf.len() as u64) as usize;
        let mut behind = buf.split_off(there);
        behind.fill(0);
        let (mut result, mut buf) = self.below.read(self.part.start + offset, buf, hints).await;
        if result.is_ok() {
            let sector = self.number(offset);
            let len = buf.len();
            match cipher(&*self.around, &self.cipher, Direction::Decipher, sector, buf, hints).await {
                Ok(plain) => buf = plain,
                Err(error) => (result, buf) = (Err(error), IoBuf::zeroed(len)),
            }
        }
        buf.rejoin(behind);
        (result, buf)
    }

    async fn read(&self, offset: u64, mut buf: IoBuf, hints: Hints) -> (io::Result<()>, IoBuf) {
        let len = buf.len() as u64;
        let (first, end) = match self.sectors(offset, len) {
            Ok(sectors) => sectors,
            Err(error) => return (Err(error), buf),
        };
        if self.is_whole(offset, len) {
            return self.read_whole(offset, buf, hints).await;
        }
        let whole = match IoBuf::for_request((end - first) as usize) {
            Ok(whole) => whole,
            Err(error) => return (Err(error), buf),
        };
        let (result, whole) = self.read_whole(first, whole, hints).await;
        let from = (offset - first) as usize;
        let len = buf.len();
        buf.copy_from_slice(&whole[from..from + len]);
        (result, buf)
    }

    /// See [`Storage::try_read`]: for what is whole, and short enough to be decrypted here.
    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> bool {
        let len = buf.len() as u64;
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.length());
        if !inside || !self.is_whole(offset, len) || !is_done_here(buf.len(), hints) {
            return false;
        }
        let Some(moment) = self.rewrites.quiet() else { return false };
        if !self.below.try_read(self.part.start + offset, buf, hints) || !self.rewrites.quiet_since(moment) {
            return false;
        }
        self.cipher.decipher(self.number(offset), buf);
        true
    }

    /// Writes zeroes.
    async fn zero(self: &Arc<Self>, offset: u64, len: u64) -> io::Result<()> {
        self.sectors(offset, len)?;
        let zeroes = IoBytes::zeroed(len.min(ZEROES_BYTES) as usize);
        let (mut at, end) = (offset, offset + len);
        while at < end {
            // Pieces end where sectors do.
            let upto = end.min((at + ZEROES_BYTES) / ZEROES_BYTES * ZEROES_BYTES);
            self.write(at, zeroes.slice(0, (upto - at) as usize).into(), Hints::NONE).await?;
            at = upto;
        }
        Ok(())
    }

    async fn grow_to(self: &Arc<Self>, length: u64) -> io::Result<()> {
        let (old, (_, new)) = (self.length(), self.sectors(length, 0)?);
        if new <= old {
            return Ok(());
        }
        self.below.grow_to(self.part.start + new).await?;
        self.zero(old, new - old).await
    }

    async fn allocate(self: &Arc<Self>, offset: u64, len: u64, how: Allocation) -> io::Result<()> {
        let (first, end) = self.sectors(offset, len)?;
        let old = self.length();
        self.below.allocate(self.part.start + first, end - first, Allocation::Reserve).await?;
        if end > old {
            self.zero(old, end - old).await?;
        }
        match how {
            Allocation::Write if offset < old => self.zero(offset, len.min(old - offset)).await,
            Allocation::Write | Allocation::Reserve => Ok(()),
        }
    }
}

impl Storage for CipherStorage {
    fn name(&self) -> &str {
        self.shared.below.name()
    }

    fn capabilities(&self) -> Capabilities {
        let below = self.shared.below.capabilities();
        Capabilities {
            alignment: below.alignment.max(self.shared.sector_bytes() as u32),
            grows_zeroed: false,
            discards_to_zero: false,
            resizable: below.resizable && self.shared.part.len.is_none(),
            ..below
        }
    }

    fn medium(&self) -> Medium {
        self.shared.below.medium()
    }

    fn length(&self) -> u64 {
        self.shared.length()
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> bool {
        self.shared.try_read(offset, buf, hints)
    }

    fn read(&self, offset: u64, buf: IoBuf, hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        Box::pin(self.shared.read(offset, buf, hints))
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.shared.write(offset, data, hints))
    }

    fn flush(&self) -> IoFuture<'_, io::Result<()>> {
        self.shared.below.flush()
    }

    fn zero(&self, offset: u64, len: u64, how: Zeroing) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            match how {
                Zeroing::FastOnly => Err(io::ErrorKind::Unsupported.into()),
                Zeroing::Keep | Zeroing::Unmap => self.shared.zero(offset, len).await,
            }
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let (sector, _) = (self.shared.sector_bytes(), self.shared.sectors(offset, len)?);
            let first = offset.next_multiple_of(sector);
            let end = (offset + len) / sector * sector;
            if first >= end {
                return Ok(());
            }
            let _held = self.shared.ranges.acquire(first, end, RangeMode::Shared).await;
            self.shared.below.discard(self.shared.part.start + first, end - first).await
        })
    }

    fn grow_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.shared.grow_to(length))
    }

    fn extend_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let (_, length) = self.shared.sectors(length, 0)?;
            self.shared.below.grow_to(self.shared.part.start + length).await
        })
    }

    /// A length that is no whole number of sectors is refused: the rest of its last sector would read as zeroes no more.
    fn shorten_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let sector = self.shared.sector_bytes();
            if !length.is_multiple_of(sector) {
                let what = format!("a ciphered disk has whole sectors of {sector} bytes, not {length} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
            let (_, length) = self.shared.sectors(length, 0)?;
            self.shared.below.shorten_to(self.shared.part.start + length).await
        })
    }

    fn end_writing(&self) -> IoFuture<'_, io::Result<()>> {
        self.shared.below.end_writing()
    }

    fn allocate(&self, offset: u64, len: u64, how: Allocation) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.shared.allocate(offset, len, how))
    }

    fn extent(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        Box::pin(async move {
            match self.shared.length().saturating_sub(offset).min(len) {
                0 => {
                    let what = format!("{len} bytes at {offset} go beyond {}", self.shared.length());
                    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
                }
                len => Ok(Extent { len, kind: ExtentKind::Data }),
            }
        })
    }

    fn allocated_bytes(&self) -> Option<u64> {
        self.shared.below.allocated_bytes()
    }

    fn watcher(&self) -> Option<&dyn StepWatcher> {
        self.shared.below.watcher()
    }
}

/// Writes of parts of sectors. A sector is ciphered as a whole, so such a write changes the cipher text of its neighbours too: a read that meets it
/// half-way must look again.
#[derive(Debug, Default)]
struct Rewrites {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// One of them, at work.
struct Rewriting<'a>(&'a Rewrites);

/// The moment at which a read began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moment(u64);

impl Rewrites {
    /// Announces one, until it is dropped.
    fn begin(&self) -> Rewriting<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Rewriting(self)
    }

    /// Now, if none is at work.
    fn quiet(&self) -> Option<Moment> {
        let ended = self.ended.load(Ordering::SeqCst);
        (self.begun.load(Ordering::SeqCst) == ended).then_some(Moment(ended))
    }

    /// Whether none has begun since then.
    fn quiet_since(&self, moment: Moment) -> bool {
        self.begun.load(Ordering::SeqCst) == moment.0
    }
}

impl Drop for Rewriting<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}
