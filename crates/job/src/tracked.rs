//! A filter that knows what guests write while a job copies the disk.
//!
//! A request marks what it changed when it has ended and before it is answered: the job, which clears a mark before it reads, copies
//! what it may have missed once more. A request that is dropped may still land in the disk, so its range is kept and marked when the disk is
//! drained. In the synchronous mode it may land in the copy, too, and no task waits for that: then the job fails. Doors give up no change
//! that was admitted (`block::pace::Pace::admitted`).

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use sync::atomic::{AtomicBool, AtomicU64, Ordering};

use block::{Block, BlockFuture, Error, ZeroOptions};
use futures_util::future::join;
use memory::IoVec;
use storage::{Hints, RangeLocks, RangeMode};
use sync::Mutex;
use sync::{Event, EventListener};

use crate::content::Content;
use crate::deliberate::{self, Bug};
use crate::dirty::Dirty;
use crate::error::{Action, Side};
use crate::through::{Part, copy_unit, has_all, parts};

/// What guests wrote, and what they write in two places at once.
#[derive(Debug)]
pub struct Tracked {
    driver: &'static str,
    over: Arc<dyn Block>,
    target: Arc<dyn Block>,
    pub(crate) dirty: Dirty,
    /// The job holds what it copies; in the synchronous mode guests hold what they write.
    pub(crate) locks: RangeLocks,
    synchronous: AtomicBool,
    /// What the target does not have of the disk shows through from below it; otherwise it is read with what lies, or will lie, below it.
    is_overlay: AtomicBool,
    /// Bytes that guests wrote to the target themselves.
    written_through: AtomicU64,
    /// Nanoseconds that guests waited for that, and for what the job copied where they wrote.
    waited_ns: AtomicU64,
    /// Ranges of requests that were dropped.
    uncertain: Mutex<Vec<Range<u64>>>,
    /// A request was dropped that may still reach the target.
    may_land: AtomicBool,
    /// Flushes of guests make the target durable, too.
    flushes_both: AtomicBool,
    /// Why one of those failed there.
    not_flushed: Mutex<Option<Error>>,
    /// How often something was marked.
    marks: AtomicU64,
    marked: Event,
}

/// A change of the disk.
#[derive(Clone)]
enum Change {
    Write(IoVec, Hints),
    Zero(u64, ZeroOptions),
    Discard(u64),
}

/// A request that has not ended.
struct Pending<'a> {
    tracked: &'a Tracked,
    range: Option<Range<u64>>,
    is_synchronous: bool,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(range) = self.range.take() {
            self.tracked.mark(range.clone());
            self.tracked.uncertain.lock().push(range);
            if self.is_synchronous {
                self.tracked.may_land.store(true, Ordering::SeqCst);
            }
        }
    }
}

impl Tracked {
    /// Over `over`, which is copied to `target` of the same size or larger, in units of `unit_bytes`, or of the target's clusters if they are
    /// larger. With `synchronous` guests write to both from the beginning.
    ///
    /// A target that is no layer of `over` is taken for an overlay until [`crate::Mirror::mark`] says that it gets everything.
    pub fn new(
        driver: &'static str,
        over: Arc<dyn Block>,
        target: Arc<dyn Block>,
        unit_bytes: u64,
        synchronous: bool,
    ) -> Arc<Self> {
        let is_whole = !deliberate::has(Bug::RestFromTarget);
        let cluster_bytes = target.capabilities().cluster_bytes.filter(|_| is_whole).unwrap_or(1);
        // What lies below a layer of the disk itself is what the disk has there.
        let is_layer = block::layers(Arc::clone(&over)).any(|layer| Arc::ptr_eq(&layer, &target));
        Arc::new(Self {
            driver,
            dirty: Dirty::new(over.size(), unit_bytes.max(cluster_bytes)),
            over,
            target,
            locks: RangeLocks::default(),
            synchronous: AtomicBool::new(synchronous),
            is_overlay: AtomicBool::new(!is_layer),
            written_through: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
            uncertain: Mutex::default(),
            may_land: AtomicBool::new(false),
            flushes_both: AtomicBool::new(false),
            not_flushed: Mutex::default(),
            marks: AtomicU64::new(0),
            marked: Event::new(),
        })
    }

    /// What is copied.
    pub fn source(&self) -> &Arc<dyn Block> {
        &self.over
    }

    /// Where it goes.
    pub fn target(&self) -> &Arc<dyn Block> {
        &self.target
    }

    /// The target gets all of the disk: what it does not have is zeroes.
    pub(crate) fn holds_everything(&self) {
        self.is_overlay.store(false, Ordering::SeqCst);
    }

    /// What is known of the target's content.
    pub(crate) fn content(&self) -> Content<'static> {
        match self.is_overlay.load(Ordering::SeqCst) {
            true => Content::Overlay,
            false => Content::Unknown,
        }
    }

    /// What is to be copied.
    pub fn dirty(&self) -> &Dirty {
        &self.dirty
    }

    /// Guests write to both from now on: what was copied stays copied.
    pub fn be_synchronous(&self) {
        self.synchronous.store(true, Ordering::SeqCst);
    }

    /// Whether guests write to both.
    pub fn is_synchronous(&self) -> bool {
        self.synchronous.load(Ordering::SeqCst)
    }

    /// Bytes that guests wrote to the target themselves.
    pub fn written_through(&self) -> u64 {
        self.written_through.load(Ordering::Relaxed)
    }

    /// Nanoseconds that guests' requests took longer, all together, because they went to both sides.
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns.load(Ordering::Relaxed)
    }

    /// Counts the time since `begun`.
    fn waited_since(&self, begun: Instant) {
        let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.waited_ns.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Hears of the next mark.
    pub(crate) fn marked(&self) -> EventListener {
        self.marked.listen()
    }

    pub(crate) fn mark(&self, range: Range<u64>) {
        self.dirty.mark(range);
        self.marks.fetch_add(1, Ordering::SeqCst);
        self.marked.notify(usize::MAX);
    }

    /// How often something was marked so far.
    pub(crate) fn marks(&self) -> u64 {
        self.marks.load(Ordering::SeqCst)
    }

    /// Flushes of guests make the target durable from now on, too.
    pub(crate) fn flush_both(&self) {
        self.flushes_both.store(true, Ordering::SeqCst);
    }

    /// Whether the target can be what is copied.
    ///
    /// # Errors
    /// When a request was dropped that may still reach the target, whatever is written there since; when the target could not be flushed
    /// for a guest: what it has lost is unknown.
    pub(crate) fn check(&self) -> Result<(), crate::Error> {
        if let Some(error) = self.not_flushed.lock().clone() {
            return Err(crate::Error::request(Side::Target, &*self.target, Action::Flush, 0)(error));
        }
        match self.may_land.load(Ordering::SeqCst) {
            true => Err(crate::Error::Dropped { name: self.target.name().to_owned() }),
            false => Ok(()),
        }
    }

    async fn flush_each(&self) -> Result<(), Error> {
        let (flushed, copy) = join(self.over.flush(), self.target.flush()).await;
        if let Err(error) = copy {
            tracing::debug!(%error, "the copy could not be flushed; the job fails of it");
            *self.not_flushed.lock() = Some(error);
        }
        flushed
    }

    /// Marks what requests left behind that were dropped. The disk is drained: all have landed.
    pub(crate) fn mark_uncertain(&self) {
        self.uncertain.lock().drain(..).for_each(|range| self.dirty.mark(range));
    }

    async fn change(&self, offset: u64, change: Change) -> Result<(), Error> {
        let range = offset..offset.saturating_add(change.len());
        let is_synchronous = self.is_synchronous();
        let mut pending = Pending { tracked: self, range: Some(range.clone()), is_synchronous };
        let changed = if is_synchronous {
            let whole = self.dirty.whole(&range);
            // Two writes of one place reach both sides in one order, and the job is not between them.
            let begun = Instant::now();
            let _alone = self.locks.acquire(whole.start, whole.end, RangeMode::Exclusive).await;
            self.waited_since(begun);
            match change.on(&*self.over, offset).await {
                Ok(()) => {
                    let begun = Instant::now();
                    self.write_through(&range, &change).await;
                    self.waited_since(begun);
                    pending.range = None;
                    Ok(())
                }
                Err(error) => Err(error),
            }
        } else {
            change.on(&*self.over, offset).await
        };
        if let Some(range) = pending.range.take() {
            self.mark(range);
        }
        changed
    }

    /// The same in the target, where the job has nothing to copy any more. What fails there is the job's to copy.
    async fn write_through(&self, range: &Range<u64>, change: &Change) {
        let mut at = range.start;
        while at < range.end {
            let (is_dirty, end) = self.dirty.run(at..range.end);
            if !is_dirty {
                self.write_clean(range, at..end, change).await;
            }
            at = end;
        }
    }

    /// A part of the change where the job has nothing to copy.
    async fn write_clean(&self, range: &Range<u64>, clean: Range<u64>, change: &Change) {
        let is_widened = self.is_overlay.load(Ordering::SeqCst) && !deliberate::has(Bug::PartWrittenThrough);
        let pieces = match is_widened {
            true => parts(clean, self.dirty.unit_bytes(), self.over.size()),
            false => vec![Part::Whole(clean)],
        };
        for piece in pieces {
            let (part, unit) = match piece {
                Part::Whole(part) => (part, None),
                Part::Of { unit, part } => (part, Some(unit)),
            };
            let written = match unit {
                Some(unit) if !has_all(&*self.target, unit.clone()).await => {
                    copy_unit(&*self.over, &*self.target, self.content(), unit).await
                }
                Some(_) | None => {
                    let change = change.part(part.start - range.start, part.end - part.start);
                    let written = change.on_copy(&*self.target, part.start).await;
                    written.map_err(crate::Error::request(
                        Side::Target,
                        &*self.target,
                        Action::Write,
                        part.start,
                    ))
                }
            };
            match written {
                Ok(()) => drop(self.written_through.fetch_add(part.end - part.start, Ordering::Relaxed)),
                Err(error) => {
                    tracing::debug!(%error, "a write did not reach the target; the job repeats it");
                    self.mark(part);
                }
            }
        }
    }
}

impl Change {
    fn len(&self) -> u64 {
        match self {
            Self::Write(data, _) => data.len() as u64,
            Self::Zero(len, _) | Self::Discard(len) => *len,
        }
    }

    fn part(&self, from: u64, len: u64) -> Self {
        match self {
            // Both lie inside the data's length in memory.
            Self::Write(data, hints) => Self::Write(data.slice(from as usize, (from + len) as usize), *hints),
            Self::Zero(_, options) => Self::Zero(len, *options),
            Self::Discard(_) => Self::Discard(len),
        }
    }

    async fn on(&self, block: &dyn Block, offset: u64) -> Result<(), Error> {
        match self {
            Self::Write(data, hints) => block.write(offset, data.clone(), *hints).await,
            Self::Zero(len, options) => block.zero(offset, *len, *options).await,
            Self::Discard(len) => block.discard(offset, *len).await,
        }
    }

    /// As [`Change::on`] for the copy: it must take every change, and what is discarded reads as the source has it.
    async fn on_copy(&self, block: &dyn Block, offset: u64) -> Result<(), Error> {
        match self {
            Self::Write(..) => self.on(block, offset).await,
            Self::Zero(len, options) => {
                let options = ZeroOptions { fast_only: false, ..*options };
                block.zero(offset, *len, options).await
            }
            // What it reads as is each block's choice: the job copies what the source made of it.
            Self::Discard(_) => Err(block::Blame::new(block.name()).unsupported("a discard is copied")),
        }
    }
}

impl Block for Tracked {
    fn driver(&self) -> &'static str {
        self.driver
    }

    fn over(&self) -> Option<&Arc<dyn Block>> {
        Some(&self.over)
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(self.change(offset, Change::Write(data, hints)))
    }

    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(self.change(offset, Change::Zero(len, options)))
    }

    fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(self.change(offset, Change::Discard(len)))
    }

    fn flush(&self) -> BlockFuture<'_, Result<(), Error>> {
        match self.flushes_both.load(Ordering::SeqCst) {
            true => Box::pin(self.flush_each()),
            false => self.over.flush(),
        }
    }
}
