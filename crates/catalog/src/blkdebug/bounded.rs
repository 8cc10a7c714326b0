//! Requests of bounded size and alignment: what `align`, `max-transfer` and the like of blkdebug ask for.
//!
//! The file or disk below gets only requests that keep to the bounds, however long and unaligned those from above are. At the end of one whose length
//! is no multiple of the alignment a request ends with it.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use storage::{
    Capabilities, Hints, IoBuf, IoBytes, IoFuture, IoVec, RangeLocks, RangeMode, Step, Storage, Zeroing,
    about_to,
};

/// Bytes of zeroes that are written at a time where a range cannot be zeroed.
const ZEROES_BYTES: u64 = 1 << 20;

/// Bounds of requests in bytes; 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// `align`: requests are multiples of it.
    pub align: u64,
    /// `max-transfer`: bytes of one read or write.
    pub max_transfer: u64,
    /// `opt-write-zero`: whole multiples are zeroed, the rest is written.
    pub opt_write_zero: u64,
    /// `max-write-zero`: bytes of one request to zero.
    pub max_write_zero: u64,
    /// `opt-discard`: whole multiples are discarded together, what is before and behind them apart.
    pub opt_discard: u64,
    /// `max-discard`: bytes of one request to discard.
    pub max_discard: u64,
}

impl Bounds {
    /// Whether there are any.
    pub fn are_given(&self) -> bool {
        *self != Self::default()
    }

    /// The bounds by name, each with what it must be a multiple of.
    pub fn multiples(&self) -> [(&'static str, u64, u64); 5] {
        let align = self.align.max(1);
        [
            ("max-transfer", self.max_transfer, align),
            ("opt-write-zero", self.opt_write_zero, align),
            ("max-write-zero", self.max_write_zero, align.max(self.opt_write_zero)),
            ("opt-discard", self.opt_discard, align),
            ("max-discard", self.max_discard, align.max(self.opt_discard)),
        ]
    }
}

/// Whole multiples of `unit` inside `range`; all of it for 0. Empty when there is none.
fn inner(range: &Range<u64>, unit: u64) -> Range<u64> {
    let unit = unit.max(1);
    let start = range.start.next_multiple_of(unit);
    start..(range.end - range.end % unit).max(start)
}

/// `range` in pieces of at most `max` bytes; in one for 0.
fn pieces(range: Range<u64>, max: u64) -> impl Iterator<Item = Range<u64>> {
    let max = if max == 0 { u64::MAX } else { max };
    let mut at = range.start;
    std::iter::from_fn(move || {
        let start = at;
        at = start.saturating_add(max).min(range.end);
        (start < range.end).then_some(start..at)
    })
}

/// What gets the requests: a file or a disk.
pub trait Target: fmt::Debug + Send + Sync {
    /// How a range is zeroed.
    type Zeroing: Copy;
    /// What a request fails with.
    type Error;

    /// Bytes in all.
    fn length(&self) -> u64;
    /// Whether a range that is not zeroed at once is an error.
    fn is_fast_only(how: Self::Zeroing) -> bool;
    /// An error of this side.
    fn failure(&self, error: io::Error) -> Self::Error;
    /// Says what comes next.
    fn about_to(&self, step: Step);
    /// Fills `buf`.
    fn read(&self, offset: u64, buf: IoBuf, hints: Hints) -> IoFuture<'_, (Result<(), Self::Error>, IoBuf)>;
    /// Writes all of `data`.
    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> IoFuture<'_, Result<(), Self::Error>>;
    /// Makes the range read as zeroes.
    fn zero(&self, offset: u64, len: u64, how: Self::Zeroing) -> IoFuture<'_, Result<(), Self::Error>>;
    /// Gives the range back.
    fn discard(&self, offset: u64, len: u64) -> IoFuture<'_, Result<(), Self::Error>>;
}

impl Target for Arc<dyn Storage> {
    type Zeroing = Zeroing;
    type Error = io::Error;

    fn length(&self) -> u64 {
        (**self).length()
    }

    fn is_fast_only(how: Zeroing) -> bool {
        how == Zeroing::FastOnly
    }

    fn failure(&self, error: io::Error) -> io::Error {
        error
    }

    fn about_to(&self, step: Step) {
        about_to(&**self, step);
    }

    fn read(&self, offset: u64, buf: IoBuf, hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        (**self).read(offset, buf, hints)
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        (**self).write(offset, data, hints)
    }

    fn zero(&self, offset: u64, len: u64, how: Zeroing) -> IoFuture<'_, io::Result<()>> {
        (**self).zero(offset, len, how)
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<()>> {
        (**self).discard(offset, len)
    }
}

/// A file or a disk, with bounds.
#[derive(Debug)]
pub struct Bounded<T> {
    below: T,
    bounds: Bounds,
    /// Writes of parts of a block are alone in it.
    blocks: RangeLocks,
}

impl<T: Target> Bounded<T> {
    /// What is below.
    pub fn below(&self) -> &T {
        &self.below
    }

    /// Over `below`.
    pub fn new(below: T, bounds: Bounds) -> Self {
        Self { below, bounds, blocks: RangeLocks::default() }
    }

    fn count(&self, range: &Range<u64>) -> Result<usize, T::Error> {
        usize::try_from(range.end - range.start).map_err(|error| self.below.failure(io::Error::other(error)))
    }

    /// The aligned range that holds `range`, or as much of it as the file has.
    fn around(&self, range: &Range<u64>) -> Range<u64> {
        let align = self.bounds.align.max(1);
        let end = range.end.checked_next_multiple_of(align).unwrap_or(range.end);
        range.start - range.start % align..end.min(self.below.length().max(range.end))
    }

    async fn read_range(&self, range: Range<u64>, hints: Hints) -> Result<IoBuf, T::Error> {
        let mut whole: Option<IoBuf> = None;
        let mut rest = IoBuf::for_request(self.count(&range)?).map_err(|error| self.below.failure(error))?;
        for piece in pieces(range, self.bounds.max_transfer) {
            let next = rest.split_off(self.count(&piece)?);
            let (result, read) =
                self.below.read(piece.start, std::mem::replace(&mut rest, next), hints).await;
            result?;
            match &mut whole {
                None => whole = Some(read),
                Some(whole) => whole.rejoin(read),
            }
        }
        Ok(whole.unwrap_or(rest))
    }

    /// Fills `buf`.
    pub async fn read_any(&self, offset: u64, mut buf: IoBuf, hints: Hints) -> (Result<(), T::Error>, IoBuf) {
        match self.read_part(offset..offset.saturating_add(buf.len() as u64), hints).await {
            Ok(read) => {
                buf.copy_from_slice(&read);
                (Ok(()), buf)
            }
            Err(error) => (Err(error), buf),
        }
    }

    /// Reads what `wanted` needs, and gives that alone.
    async fn read_part(&self, wanted: Range<u64>, hints: Hints) -> Result<IoBytes, T::Error> {
        let around = self.around(&wanted);
        let start = around.start;
        let read = self.read_range(around, hints).await?.freeze();
        let place = |at: u64| self.count(&(start..at));
        Ok(read.slice(place(wanted.start)?, place(wanted.end)?))
    }

    async fn write_range(&self, offset: u64, data: &IoVec, hints: Hints) -> Result<(), T::Error> {
        let place = |at: u64| self.count(&(offset..at));
        for piece in pieces(offset..offset + data.len() as u64, self.bounds.max_transfer) {
            let part = data.slice(place(piece.start)?, place(piece.end)?);
            self.below.write(piece.start, part, hints).await?;
        }
        Ok(())
    }

    /// Writes `data`, with what is around it where it is no whole blocks.
    pub async fn write_any(&self, offset: u64, data: IoVec, hints: Hints) -> Result<(), T::Error> {
        let range = offset..offset.saturating_add(data.len() as u64);
        let around = self.around(&range);
        if around == range {
            let _held = self.blocks.acquire(range.start, range.end, RangeMode::Shared).await;
            return self.write_range(offset, &data, hints).await;
        }
        let _held = self.blocks.acquire(around.start, around.end, RangeMode::Exclusive).await;
        let mut whole = IoVec::new();
        if around.start < range.start {
            self.below.about_to(Step::PwritevRmwHead);
            whole.push(self.read_part(around.start..range.start, hints).await?);
            self.below.about_to(Step::PwritevRmwAfterHead);
        }
        whole.append(data);
        if range.end < around.end {
            self.below.about_to(Step::PwritevRmwTail);
            whole.push(self.read_part(range.end..around.end, hints).await?);
            self.below.about_to(Step::PwritevRmwAfterTail);
        }
        self.write_range(around.start, &whole, hints).await
    }

    async fn write_zeroes(&self, range: Range<u64>) -> Result<(), T::Error> {
        for piece in pieces(range, ZEROES_BYTES) {
            let len = self.count(&piece)?;
            self.write_any(piece.start, IoBytes::zeroed(len).into(), Hints::NONE).await?;
        }
        Ok(())
    }

    /// Zeroes whole units, writes the rest.
    pub async fn zero_any(&self, range: Range<u64>, how: T::Zeroing) -> Result<(), T::Error> {
        let whole = inner(&range, self.bounds.opt_write_zero.max(self.bounds.align));
        if T::is_fast_only(how) && whole != range {
            return Err(self.below.failure(io::ErrorKind::Unsupported.into()));
        }
        if whole.is_empty() {
            return self.write_zeroes(range).await;
        }
        self.write_zeroes(range.start..whole.start).await?;
        let held = self.blocks.acquire(whole.start, whole.end, RangeMode::Shared).await;
        for piece in pieces(whole.clone(), self.bounds.max_write_zero) {
            self.below.zero(piece.start, piece.end - piece.start, how).await?;
        }
        drop(held);
        self.write_zeroes(whole.end..range.end).await
    }

    /// Gives whole blocks back, keeps the rest. No request crosses a multiple of the best size unless it is of whole ones.
    pub async fn discard_any(&self, range: Range<u64>) -> Result<(), T::Error> {
        let blocks = inner(&range, self.bounds.align);
        let _held = self.blocks.acquire(blocks.start, blocks.end, RangeMode::Shared).await;
        let whole = inner(&blocks, self.bounds.opt_discard);
        // Without a whole one there may be a multiple inside nonetheless.
        let middle = whole.start.min(blocks.end)..whole.end.min(blocks.end);
        for part in [blocks.start..middle.start, middle.clone(), middle.end..blocks.end] {
            for piece in pieces(part, self.bounds.max_discard) {
                self.below.discard(piece.start, piece.end - piece.start).await?;
            }
        }
        Ok(())
    }
}

impl Storage for Bounded<Arc<dyn Storage>> {
    fn over(&self) -> Option<&dyn Storage> {
        Some(&*self.below)
    }

    fn capabilities(&self) -> Capabilities {
        let below = self.below.capabilities();
        // Parts of what is discarded stay.
        let discards_to_zero = below.discards_to_zero && self.bounds.align <= 1;
        Capabilities { cached: false, discards_to_zero, ..below }
    }

    fn read(&self, offset: u64, buf: IoBuf, hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        Box::pin(self.read_any(offset, buf, hints))
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.write_any(offset, data, hints))
    }

    fn zero(&self, offset: u64, len: u64, how: Zeroing) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.zero_any(offset..offset.saturating_add(len), how))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.discard_any(offset..offset.saturating_add(len)))
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use storage::MemoryStorage;

    use super::*;

    /// Storage that notes its requests.
    #[derive(Debug)]
    struct Noting {
        below: MemoryStorage,
        seen: Mutex<Vec<(&'static str, u64, u64)>>,
    }

    impl Noting {
        fn note(&self, what: &'static str, offset: u64, len: u64) {
            self.seen.lock().push((what, offset, len));
        }
    }

    impl Storage for Noting {
        fn over(&self) -> Option<&dyn Storage> {
            Some(&self.below)
        }

        fn name(&self) -> &str {
            "noting"
        }

        fn read(&self, offset: u64, buf: IoBuf, hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
            self.note("read", offset, buf.len() as u64);
            self.below.read(offset, buf, hints)
        }

        fn write(&self, offset: u64, data: IoVec, hints: Hints) -> IoFuture<'_, io::Result<()>> {
            self.note("write", offset, data.len() as u64);
            self.below.write(offset, data, hints)
        }

        fn zero(&self, offset: u64, len: u64, how: Zeroing) -> IoFuture<'_, io::Result<()>> {
            self.note("zero", offset, len);
            self.below.zero(offset, len, how)
        }

        fn discard(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<()>> {
            self.note("discard", offset, len);
            self.below.discard(offset, len)
        }
    }

    const SIZE: usize = 64 << 10;

    fn first_bytes() -> Vec<u8> {
        (0..SIZE).map(|at| (at % 251) as u8).collect()
    }

    async fn bounded(bounds: Bounds) -> (Arc<Noting>, Bounded<Arc<dyn Storage>>) {
        let below = MemoryStorage::new(SIZE as u64);
        below.write(0, IoBytes::copy_from(&first_bytes()).into(), Hints::NONE).await.unwrap();
        let below = Arc::new(Noting { below, seen: Mutex::default() });
        (Arc::clone(&below), Bounded::new(below, bounds))
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        reactor::Reactor::new(reactor::Backend::Ring).unwrap().run(future)
    }

    async fn read(storage: &dyn Storage, offset: u64, len: usize) -> Vec<u8> {
        let (result, buf) = storage.read(offset, IoBuf::uninit(len), Hints::NONE).await;
        result.unwrap();
        buf.to_vec()
    }

    #[test]
    fn what_reaches_the_file_keeps_to_the_bounds_and_the_bytes_are_the_same() {
        let bounds = Bounds {
            align: 512,
            max_transfer: 1024,
            opt_write_zero: 2048,
            max_write_zero: 4096,
            opt_discard: 2048,
            max_discard: 2048,
        };
        run(async {
            let (noting, storage) = bounded(bounds).await;
            let mut expected = first_bytes();
            for (offset, len) in [(0, 512), (1, 1), (511, 2), (700, 3000), (5000, 9000), (SIZE - 3, 3)] {
                let data = vec![len as u8 ^ 0x5a; len];
                storage.write(offset as u64, IoBytes::copy_from(&data).into(), Hints::NONE).await.unwrap();
                expected[offset..offset + len].copy_from_slice(&data);
                assert_eq!(read(&storage, offset as u64, len).await, data);
                storage.zero(offset as u64, len as u64, Zeroing::Unmap).await.unwrap();
                expected[offset..offset + len].fill(0);
                storage.discard(offset as u64, len as u64).await.unwrap();
            }
            assert!(read(&storage, 0, SIZE).await == expected);
            for (what, offset, len) in noting.seen.lock().iter() {
                let (unit, max) = match *what {
                    "zero" => (2048, 4096),
                    "discard" => (512, 2048),
                    _ => (512, 1024),
                };
                assert!(offset % unit == 0 && len % unit == 0 && *len <= max, "{what} {offset} {len}");
                let crosses = offset / 2048 != (offset + len - 1) / 2048;
                assert!(*what != "discard" || !crosses, "{what} {offset} {len}");
            }
        });
    }

    #[test]
    fn without_bounds_a_request_stays_one() {
        run(async {
            let (noting, storage) = bounded(Bounds { max_transfer: 1 << 20, ..Bounds::default() }).await;
            assert_eq!(read(&storage, 3, 5000).await.len(), 5000);
            storage.zero(1, 2, Zeroing::FastOnly).await.unwrap();
            storage.discard(1, 2).await.unwrap();
            assert_eq!(*noting.seen.lock(), [("read", 3, 5000), ("zero", 1, 2), ("discard", 1, 2)]);
        });
    }
}
