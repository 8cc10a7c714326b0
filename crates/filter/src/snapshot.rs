//! A disk as it was at one moment: units that were overwritten since are read from where they were copied, the others from the disk.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use block::{Blame, Block, BlockStatus, Error, ReadKind, ZeroOptions};
use job::Dirty;
use memory::{IoBuf, IoBytes};
use storage::{Hints, RangeLocks, RangeMode};
use sync::Mutex;

/// Bytes that are copied, or read under one lock, at a time at most: a guest's write waits for one piece, not for a whole request.
const PIECE_BYTES: u64 = 1 << 20;
/// Bytes of a unit at least: QEMU's.
const UNIT_BYTES_MIN: u64 = 64 << 10;

/// What becomes of a guest's write whose old content cannot be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// It fails, and the snapshot stays whole.
    BreakGuestWrite,
    /// It goes on, and the snapshot can be read no more.
    BreakSnapshot,
}

/// What a copy may cost guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What a failure does.
    pub on_error: OnError,
    /// A copy that takes longer has failed; `None`: it may take any time.
    pub timeout: Option<Duration>,
    /// Bytes that are copied together at least: a power of two.
    pub unit_bytes_min: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self { on_error: OnError::BreakGuestWrite, timeout: None, unit_bytes_min: UNIT_BYTES_MIN }
    }
}

/// A disk as it was at one moment, while it is overwritten.
///
/// A unit is read from the disk under a shared lock, and copied under an exclusive one: no client overwrites what a reader is reading. A unit
/// that was copied stays so, so changes of it need no lock. A copy that is made twice, because a request was dropped, copies the same.
#[derive(Debug)]
pub struct Snapshot {
    source: Arc<dyn Block>,
    target: Arc<dyn Block>,
    size: u64,
    /// Units that are not in the target, and that a client may read.
    left: Dirty,
    /// Units that may be read: all, those that a client chose, and not those that were given up.
    readable: Dirty,
    locks: RangeLocks,
    policy: Policy,
    /// Why it can be read no more.
    broken: Mutex<Option<Error>>,
}

impl Snapshot {
    /// Of `source`, whose old content goes to `target`: all of it, or the units that `chosen` touches. The others cannot be read.
    ///
    /// # Errors
    /// When the target is smaller than the disk, or cannot be written.
    pub(crate) fn new(
        source: Arc<dyn Block>,
        target: Arc<dyn Block>,
        policy: Policy,
        chosen: Option<&[Range<u64>]>,
    ) -> Result<Arc<Self>, Error> {
        let (size, room) = (source.size(), target.size());
        let refused = |what: String| Err(Blame::new(target.name()).invalid(what));
        if room < size {
            return refused(format!("the target has {room} bytes and the disk {size}; it must be as large"));
        }
        if target.capabilities().read_only {
            return refused("the target is read-only; what is overwritten is copied there".to_owned());
        }
        let unit = target.capabilities().cluster_bytes.unwrap_or(0).max(policy.unit_bytes_min);
        let unit = unit.max(UNIT_BYTES_MIN).next_power_of_two();
        let [left, readable] = [Dirty::new(size, unit), Dirty::new(size, unit)];
        for range in chosen.unwrap_or(std::slice::from_ref(&(0..size))) {
            left.mark(range.clone());
            readable.mark(range.clone());
        }
        let (locks, broken) = (RangeLocks::default(), Mutex::default());
        Ok(Arc::new(Self { source, target, size, left, readable, locks, policy, broken }))
    }

    /// Bytes of the disk when the snapshot was taken.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes that are copied together.
    pub fn unit_bytes(&self) -> u64 {
        self.left.unit_bytes()
    }

    pub(crate) fn source(&self) -> &Arc<dyn Block> {
        &self.source
    }

    pub(crate) fn target(&self) -> &Arc<dyn Block> {
        &self.target
    }

    /// Copies what of `range` is not copied yet: it is about to be overwritten.
    ///
    /// # Errors
    /// When it cannot be copied in time and the guest's write has to fail of that.
    pub(crate) async fn save(&self, range: Range<u64>) -> Result<(), Error> {
        if self.broken.lock().is_some() || !self.left.touches(range.clone()) {
            return Ok(());
        }
        let copied = match self.policy.timeout {
            None => self.copy_all(range).await,
            // A copy that is done when its time is over has been done in time.
            Some(timeout) => {
                let copied = reactor::within(timeout, self.copy_all(range)).await;
                copied.unwrap_or_else(|| Err(self.timed_out(timeout)))
            }
        };
        match (copied, self.policy.on_error) {
            (Err(error), OnError::BreakSnapshot) => {
                tracing::warn!(%error, "a snapshot can be read no more: what is overwritten could not be copied");
                self.broken.lock().get_or_insert(error);
                Ok(())
            }
            (copied, _) => copied,
        }
    }

    fn timed_out(&self, timeout: Duration) -> Error {
        let why = format!("it took more than {} seconds, which a copy may take", timeout.as_secs());
        let error = io::Error::new(io::ErrorKind::TimedOut, why);
        Blame::new(self.target.name()).io("copying what is about to be overwritten")(error)
    }

    async fn copy_all(&self, range: Range<u64>) -> Result<(), Error> {
        let whole = self.left.whole(&range);
        let mut at = whole.start;
        while let Some(piece) = self.left.next(at, PIECE_BYTES).filter(|piece| piece.start < whole.end) {
            let piece = piece.start..piece.end.min(whole.end);
            let _alone = self.locks.acquire(piece.start, piece.end, RangeMode::Exclusive).await;
            // Another request may have copied a part of it meanwhile.
            let (is_left, end) = self.left.run(piece.clone());
            if is_left {
                self.copy(piece.start..end).await?;
            }
            at = end;
        }
        Ok(())
    }

    async fn copy(&self, range: Range<u64>) -> Result<(), Error> {
        let len = range.end - range.start;
        // At most a piece, or a unit, which a target's cluster limits to some MiB.
        let buf = IoBuf::try_uninit(len as usize).ok_or_else(|| block::no_memory(self.source.name()))?;
        let (result, buf) = self.source.read(range.start, buf, Hints::NONE).await;
        match result? {
            ReadKind::Data => self.target.write(range.start, buf.freeze().into(), Hints::NONE).await?,
            ReadKind::Zeroes => {
                let options = ZeroOptions { unmap: true, fast_only: false };
                self.target.zero(range.start, len, options).await?;
            }
        }
        self.left.clear(range);
        Ok(())
    }

    /// Fills `buf` with what was at `offset`, zeroes included, and gives it back.
    pub(crate) async fn read(
        &self,
        offset: u64,
        mut buf: IoBuf,
        hints: Hints,
    ) -> (Result<ReadKind, Error>, IoBuf) {
        let len = buf.len() as u64;
        if let Err(error) = self.check(offset, len) {
            return (Err(error), buf);
        }
        let (mut done, mut kind) = (0, ReadKind::Zeroes);
        while done < len {
            let at = offset + done;
            let end = (at + PIECE_BYTES).min(offset + len);
            let _shared = self.locks.acquire(at, end, RangeMode::Shared).await;
            let (from, end) = match self.place(at..end) {
                Ok(place) => place,
                Err(error) => return (Err(error), buf),
            };
            // Both fit a length in memory, `len`.
            let mut part = buf.split_off(done as usize);
            let rest = part.split_off((end - at) as usize);
            let (result, part) = from.read(at, part, hints).await;
            buf.rejoin(part);
            buf.rejoin(rest);
            // A snapshot that broke meanwhile no longer keeps guests from what was read.
            match result.and_then(|kind| self.check_whole().map(|()| kind)) {
                Ok(ReadKind::Data) => kind = ReadKind::Data,
                Ok(ReadKind::Zeroes) => {}
                Err(error) => return (Err(error), buf),
            }
            done += end - at;
        }
        (Ok(kind), buf)
    }

    /// The state of what was at `offset`.
    pub(crate) async fn status(&self, offset: u64, len: u64) -> Result<BlockStatus, Error> {
        self.check(offset, len)?;
        // A part of a piece: whole runs would keep guests waiting while a long one is asked for.
        let end = (offset + PIECE_BYTES).min(offset + len);
        let _shared = self.locks.acquire(offset, end, RangeMode::Shared).await;
        let (from, end) = self.place(offset..end)?;
        let status = from.block_status(offset, end - offset).await?;
        self.check_whole()?;
        // Where it lies does not matter: it may be overwritten there at once.
        Ok(BlockStatus { depth: 0, present: true, offset: None, ..status })
    }

    /// Gives up the whole units of `range`: they cannot be read any more, are not copied, and what of them is in the target is discarded.
    ///
    /// # Errors
    /// When the target fails to discard them; they are given up all the same.
    pub(crate) async fn give_up(&self, range: Range<u64>) -> Result<(), Error> {
        self.check(range.start, range.end - range.start)?;
        let unit = self.unit_bytes();
        let start = range.start.next_multiple_of(unit);
        let end = if range.end == self.size { range.end } else { range.end / unit * unit };
        if start >= end {
            return Ok(());
        }
        let _alone = self.locks.acquire(start, end, RangeMode::Exclusive).await;
        self.readable.clear(start..end);
        self.left.clear(start..end);
        self.target.discard(start, end - start).await
    }

    /// Reads whole units, and gives them up: the reader has them, and what overwrites them waits for no copy. `None` if they were copied before, by a
    /// request that was about to overwrite them.
    ///
    /// # Errors
    /// When they cannot be read; then nothing has changed. When the snapshot is broken.
    pub async fn take(&self, range: Range<u64>) -> Result<Option<IoBytes>, Error> {
        debug_assert_eq!(self.left.whole(&range), range, "whole units");
        let len = range.end.saturating_sub(range.start);
        self.check(range.start, len)?;
        let _alone = self.locks.acquire(range.start, range.end, RangeMode::Exclusive).await;
        if !self.left.touches(range.clone()) {
            return Ok(None);
        }
        let buf = usize::try_from(len).ok().and_then(IoBuf::try_uninit);
        let buf = buf.ok_or_else(|| block::no_memory(self.source.name()))?;
        let (result, buf) = self.source.read(range.start, buf, Hints::MORE_WAITING).await;
        result?;
        // A copy that failed meanwhile kept no request from overwriting what was read.
        self.check_whole()?;
        self.readable.clear(range.clone());
        self.left.clear(range);
        Ok(Some(buf.freeze()))
    }

    /// Where the first bytes of `range` lie, and where that changes. Under a lock of the range.
    fn place(&self, range: Range<u64>) -> Result<(&Arc<dyn Block>, u64), Error> {
        let (is_readable, readable_end) = self.readable.run(range.clone());
        if !is_readable {
            let what = format!(
                "bytes {} to {readable_end} are not in the snapshot: its bitmap leaves them out, or they were discarded",
                range.start
            );
            return Err(Blame::new(self.source.name()).refused(what));
        }
        let (is_left, end) = self.left.run(range.start..readable_end);
        Ok((if is_left { &self.source } else { &self.target }, end))
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size => self.check_whole(),
            _ => Err(Blame::new(self.source.name()).past_end(offset, len, self.size)),
        }
    }

    fn check_whole(&self) -> Result<(), Error> {
        match &*self.broken.lock() {
            None => Ok(()),
            Some(error) => {
                let what =
                    format!("the snapshot is broken: what was overwritten could not be copied ({error})");
                Err(Blame::new(self.source.name()).refused(what))
            }
        }
    }
}
