//! The copy: steps of the plan, several at a time.

use std::future::ready;
use std::ops::Range;

use block::{Block, Hints, Stored};
use futures_util::TryStreamExt;
use futures_util::lock::Mutex;
use memory::{IoBytes, IoVec};

use crate::content::{self, Content, Zeroing};
use crate::counters::Counters;
use crate::error::{Action, Error, Side};
use crate::layers::{self, Scope};
use crate::plan::Step;
use crate::rate::RateLimit;
use crate::read;
use crate::runs::{Before, Need, runs};

/// Data of one step at most: larger requests are not faster, and hold more memory.
const PIECE_BYTES_MAX: u64 = 1 << 20;
/// Data of one step at least, however little memory there is.
const PIECE_BYTES_MIN: u64 = 64 << 10;
/// Parts of a piece that already read as they should are left out in such blocks, unless alignment asks for larger ones.
const COMPARED_BYTES: u64 = 64 << 10;

/// In which order the target is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As pieces come.
    Free,
    /// From the first byte to the last; reads still overlap.
    InOrder,
}

/// What becomes of zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeroes {
    /// Data is read and searched for them, in blocks of so many bytes; with those that the source's map knows they stay holes.
    Detect(u64),
    /// Those that the source's map knows stay holes. Nothing is searched, so that data can go from file to file in the kernel.
    ByMap,
    /// As [`Zeroes::ByMap`], but those that the target needs before this offset of it are written as data.
    WriteBefore(u64),
    /// All are written as data, those too that the source's map knows: the target's space is allocated everywhere. With
    /// [`Content::As`] what reads the same is left out all the same.
    Write,
}

/// How a copy is done.
#[derive(Debug)]
pub struct CopyOptions {
    /// The order of writes.
    pub order: Order,
    /// Pieces under way at a time at most.
    pub in_flight: usize,
    /// Memory for what is under way; at least one piece (64 KiB, or a unit of alignment) is taken in any case.
    pub memory_bytes: u64,
    /// Writes begin and end at multiples of this, or at the ends of the range; where the content needs it, at those of the target's clusters.
    pub align_bytes: u64,
    /// What becomes of zeroes.
    pub zeroes: Zeroes,
    /// Space of what is made zeroes may be given back.
    pub unmap: bool,
    /// What cannot be read becomes zeroes and is counted.
    pub salvage: bool,
    /// A limit on what is read.
    pub rate: Option<RateLimit>,
    /// The target is flushed each time so many bytes were written, and no piece begins meanwhile; `None`: only at the end. Without a bound
    /// a small container's memory fills with pages that cannot be dropped before they are on disk.
    pub flush_bytes: Option<u64>,
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self {
            order: Order::Free,
            in_flight: 8,
            memory_bytes: 16 << 20,
            align_bytes: 1,
            zeroes: Zeroes::ByMap,
            unmap: true,
            salvage: false,
            rate: None,
            flush_bytes: None,
        }
    }
}

/// A copy of a range of one block into another.
#[derive(Debug)]
pub struct Copy<'a> {
    /// What is copied.
    pub source: &'a dyn Block,
    /// The range of it.
    pub from: Range<u64>,
    /// Where it goes. Source and target may be one block if scope and content let nothing be read after it was written.
    pub target: &'a dyn Block,
    /// Where the range begins there.
    pub to: u64,
    /// Which parts of the range count.
    pub scope: Scope,
    /// What the target reads as before.
    pub content: Content<'a>,
    /// How it is done.
    pub options: CopyOptions,
}

/// A part of a step with what goes to the target for it.
#[derive(Debug)]
pub(crate) struct Part {
    /// Offset in the source.
    pub(crate) at: u64,
    pub(crate) len: u64,
    /// The map calls it data, even if it reads as zeroes.
    pub(crate) is_data: bool,
    pub(crate) fetched: Fetched,
}

/// What goes to the target.
#[derive(Debug)]
pub(crate) enum Fetched {
    /// What was read.
    Read(Bytes),
    /// What it takes over as it lies in the source.
    Stored(Stored),
}

/// Bytes, and what the target reads as before; `None`: zeroes.
pub(crate) type Bytes = Option<(IoBytes, Before)>;

impl Copy<'_> {
    /// Copies, and flushes the target. Runs on any loop; `counters` may be read and cancelled by others meanwhile.
    ///
    /// Afterwards each byte in scope of the target reads as the source did, or as zeroes where the source could not be read and
    /// [`CopyOptions::salvage`] is set (counted in [`crate::Progress::unreadable`]). Neither block may be changed by others meanwhile.
    ///
    /// # Errors
    /// When a block is too small for the range, at the first request that fails, or when it is cancelled. The target then holds a
    /// part of what it should.
    pub async fn run(&self, counters: &Counters) -> Result<(), Error> {
        self.transfer(counters).await?;
        self.flush().await
    }

    async fn flush(&self) -> Result<(), Error> {
        self.target.flush().await.map_err(Error::request(Side::Target, self.target, Action::Flush, 0))
    }

    /// As [`Copy::run`], without the flush at the end: for one who copies part by part.
    pub(crate) async fn transfer(&self, counters: &Counters) -> Result<(), Error> {
        self.check_sizes()?;
        let pieces = self.pieces();
        let steps = self.steps(pieces.bytes, counters);
        let flushes = Flushes {
            each_bytes: self.options.flush_bytes,
            written: Mutex::new(counters.progress().written),
        };
        match self.options.order {
            Order::Free => {
                let copied = steps.map_ok(|step| self.copy(step, &flushes, counters));
                copied.try_buffer_unordered(pieces.in_flight).try_for_each(|()| ready(Ok(()))).await?;
            }
            Order::InOrder => {
                let fetched = steps.map_ok(|step| self.fetch(step, counters));
                let fetched = fetched.try_buffered(pieces.in_flight);
                fetched.try_for_each(|parts| self.store_in_turn(parts, &flushes, counters)).await?;
            }
        }
        Ok(())
    }

    pub(crate) fn check_sizes(&self) -> Result<(), Error> {
        let len = self.from.end.saturating_sub(self.from.start);
        let sides = [
            (Side::Source, self.source, self.from.end),
            (Side::Target, self.target, self.to.saturating_add(len)),
        ];
        for (side, block, end) in sides {
            let size = block.size();
            if end > size {
                return Err(Error::TooSmall { side, name: block.name().to_owned(), size, end });
            }
        }
        Ok(())
    }

    pub(crate) fn pieces(&self) -> Pieces {
        let buffers_each = match self.content {
            Content::As(_) => 2,
            Content::Unknown | Content::Zeroes | Content::Overlay => 1,
        };
        let options = &self.options;
        Pieces::of(options.memory_bytes / buffers_each, options.in_flight, self.unit_bytes())
    }

    async fn copy(&self, step: Step, flushes: &Flushes, counters: &Counters) -> Result<(), Error> {
        flushes.make_room(self, counters).await?;
        let parts = self.fetch(step, counters).await?;
        self.store(parts, counters).await
    }

    async fn store_in_turn(
        &self,
        parts: Vec<Part>,
        flushes: &Flushes,
        counters: &Counters,
    ) -> Result<(), Error> {
        flushes.make_room(self, counters).await?;
        self.store(parts, counters).await
    }

    async fn fetch(&self, step: Step, counters: &Counters) -> Result<Vec<Part>, Error> {
        if counters.is_cancelled() {
            return Err(Error::Cancelled);
        }
        if step.zero {
            return Ok(vec![Part {
                at: step.at,
                len: step.len,
                is_data: false,
                fetched: Fetched::Read(None),
            }]);
        }
        if let Some(rate) = &self.options.rate {
            rate.take(step.len).await;
        }
        match self.wanted() {
            Some(wanted) => self.fetch_parts(&step, wanted, counters).await,
            None => {
                let bytes = self.read(step.at, step.len, counters).await?;
                Ok(vec![Part { at: step.at, len: step.len, is_data: true, fetched: Fetched::Read(bytes) }])
            }
        }
    }

    pub(crate) async fn read(&self, at: u64, len: u64, counters: &Counters) -> Result<Bytes, Error> {
        // A step of data is at most a piece.
        let count = len as usize;
        let bytes =
            match read::read(self.source, at, count, self.options.salvage, self.hints(), counters).await? {
                None if self.options.zeroes == Zeroes::Write => Some(IoBytes::zeroed(count)),
                bytes => bytes,
            };
        let Some(bytes) = bytes else { return Ok(None) };
        let before = self.content.before(self.target_offset(at), count, self.hints(), counters).await?;
        Ok(Some((bytes, before)))
    }

    async fn store(&self, parts: Vec<Part>, counters: &Counters) -> Result<(), Error> {
        for Part { at, len, is_data, fetched } in parts {
            match fetched {
                Fetched::Read(bytes) => self.store_read(at, len, bytes, counters).await?,
                Fetched::Stored(stored) => self.store_stored(at, stored, counters).await?,
            }
            counters.add_done(len);
            if is_data {
                counters.add_data(len);
            }
        }
        Ok(())
    }

    pub(crate) async fn store_read(
        &self,
        at: u64,
        len: u64,
        bytes: Bytes,
        counters: &Counters,
    ) -> Result<(), Error> {
        let offset = self.target_offset(at);
        match bytes {
            None => self.zero(offset, len, counters).await,
            Some((bytes, before)) => self.store_data(offset, bytes, &before, counters).await,
        }
    }

    async fn store_data(
        &self,
        offset: u64,
        bytes: IoBytes,
        before: &Before,
        counters: &Counters,
    ) -> Result<(), Error> {
        let granularity = match (self.options.zeroes, self.content) {
            (Zeroes::Detect(granularity), _) => granularity,
            (Zeroes::ByMap | Zeroes::WriteBefore(_) | Zeroes::Write, Content::As(_)) => COMPARED_BYTES,
            (Zeroes::ByMap | Zeroes::WriteBefore(_) | Zeroes::Write, _) => {
                return self.write(offset, bytes, counters).await;
            }
        };
        let granularity = granularity.max(1).next_multiple_of(self.unit_bytes());
        for run in runs(&bytes, before, offset, granularity) {
            let at = offset + run.start as u64;
            match run.need {
                Need::Nothing => {}
                Need::Zero if self.options.zeroes != Zeroes::Write => {
                    self.zero(at, (run.end - run.start) as u64, counters).await?
                }
                Need::Zero | Need::Data => self.write(at, bytes.slice(run.start, run.end), counters).await?,
            }
        }
        Ok(())
    }

    async fn write(&self, offset: u64, bytes: IoBytes, counters: &Counters) -> Result<(), Error> {
        let len = bytes.len() as u64;
        let written = self.target.write(offset, IoVec::from(bytes), self.hints()).await;
        written.map_err(Error::request(Side::Target, self.target, Action::Write, offset))?;
        counters.add_written(len);
        Ok(())
    }

    async fn zero(&self, offset: u64, len: u64, counters: &Counters) -> Result<(), Error> {
        let written_before = match self.options.zeroes {
            Zeroes::WriteBefore(end) => end,
            Zeroes::Detect(_) | Zeroes::ByMap | Zeroes::Write => 0,
        };
        let how = Zeroing { unmap: self.options.unmap, unit_bytes: self.unit_bytes(), written_before };
        content::zero(self.target, &self.content, offset..offset + len, how, counters).await
    }

    /// Bytes of the target that are written together.
    pub(crate) fn unit_bytes(&self) -> u64 {
        layers::unit(&self.content, self.target, self.options.align_bytes)
    }

    /// Of every request: other pieces are under way with it, if there may be several.
    fn hints(&self) -> Hints {
        Hints { more_waiting: self.options.in_flight > 1 }
    }

    pub(crate) fn target_offset(&self, at: u64) -> u64 {
        self.to + (at - self.from.start)
    }
}

/// The flushes of a copy that is under way: [`CopyOptions::flush_bytes`].
#[derive(Debug)]
struct Flushes {
    each_bytes: Option<u64>,
    /// What was written before the last flush began. Held while one runs.
    written: Mutex<u64>,
}

impl Flushes {
    /// Called by a piece before it begins: flushes if enough was written, or waits for the one that does. Pieces that are at work go on
    /// meanwhile: a flush may wait for them.
    async fn make_room(&self, copy: &Copy<'_>, counters: &Counters) -> Result<(), Error> {
        let Some(each_bytes) = self.each_bytes else { return Ok(()) };
        let mut flushed = self.written.lock().await;
        let written = counters.progress().written;
        if written - *flushed >= each_bytes {
            copy.flush().await?;
            *flushed = written;
        }
        Ok(())
    }
}

/// How much is under way at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pieces {
    pub(crate) bytes: u64,
    in_flight: usize,
}

impl Pieces {
    /// Pieces are whole units of alignment; all together take `memory` bytes, unless a single one takes more.
    fn of(memory: u64, in_flight: usize, align: u64) -> Self {
        let each = memory / in_flight.max(1) as u64;
        let bytes = each.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX);
        let bytes = (bytes / align.max(1)).max(1) * align.max(1);
        let fitting = usize::try_from(memory / bytes).unwrap_or(usize::MAX);
        Self { bytes, in_flight: in_flight.min(fitting).max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pieces_together_fit_the_memory() {
        let of = |memory, in_flight, align| {
            let pieces = Pieces::of(memory, in_flight, align);
            (pieces.bytes, pieces.in_flight)
        };
        assert_eq!(of(16 << 20, 8, 1), (1 << 20, 8));
        assert_eq!(of(1 << 20, 8, 1), (128 << 10, 8));
        assert_eq!(of(1, 8, 1), (64 << 10, 1));
        assert_eq!(of(16 << 20, 8, 2 << 20), (2 << 20, 8));
        assert_eq!(of(1 << 20, 8, 2 << 20), (2 << 20, 1));
        assert_eq!(of(512 << 10, 2, 4096), (256 << 10, 2));
    }
}
