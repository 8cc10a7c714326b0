//! A copy of a disk as it was at one moment, while guests go on writing: what they are about to overwrite is copied first.
//!
//! A target that fails costs guests nothing but the try: the copy is broken from then on, and the job fails, not the guest's write.

use std::ops::Range;
use std::sync::Arc;

use block::{Block, BlockFuture, Error as BlockError, ZeroOptions};
use futures_util::stream::{FuturesUnordered, StreamExt};
use memory::IoVec;
use storage::{Hints, RangeLocks, RangeMode};
use sync::Event;
use sync::Mutex;
use sync::atomic::{AtomicBool, Ordering};

use crate::content::Content;
use crate::copy::{Copy, CopyOptions};
use crate::counters::Counters;
use crate::dirty::Dirty;
use crate::error::{Action, Error, Side};
use crate::host::{Exchange, Host, take_filter_off};
use crate::layers::Scope;
use crate::life::Life;
use crate::mirror::{What, finish, mark_layers};

/// Bytes that are copied at a time at most, of one piece.
const PIECE_BYTES: u64 = 1 << 20;
/// Pieces that the job copies at a time, by default.
const WORKERS: usize = 8;

/// A filter that copies what was there before it is overwritten.
#[derive(Debug)]
pub struct BeforeWrite {
    over: Arc<dyn Block>,
    target: Arc<dyn Block>,
    /// What is not copied yet.
    left: Dirty,
    /// What was written since the moment of which the copy is, where a caller asks for it.
    since: Option<Dirty>,
    /// The target gets all of the disk: otherwise it is read with what lies, or will lie, below it.
    holds_everything: AtomicBool,
    /// What was copied is discarded in the disk.
    discards: bool,
    /// A write of a guest fails whose old content cannot be copied; otherwise the copy does.
    breaks_writes: AtomicBool,
    /// The job and guests that copy hold what they copy; guests that write hold what they write.
    locks: RangeLocks,
    counters: Counters,
    /// Why the copy is worth nothing.
    broken: Mutex<Option<Error>>,
    broke: Event,
}

impl BeforeWrite {
    /// Over `over`, whose old content goes to `target`, in units of `unit_bytes`, or of its clusters if they are larger. What is written from then on is kept in units of
    /// `since_bytes`, if they are given. Both are powers of two. With
    /// `discards` a unit is discarded in `over` once it is copied.
    pub fn new(
        over: Arc<dyn Block>,
        target: Arc<dyn Block>,
        unit_bytes: u64,
        since_bytes: Option<u64>,
        discards: bool,
    ) -> Arc<Self> {
        let cluster_bytes = target.capabilities().cluster_bytes.unwrap_or(1);
        let left = Dirty::new(over.size(), unit_bytes.max(cluster_bytes));
        let holds_everything = AtomicBool::new(false);
        let since = since_bytes.map(|unit| Dirty::new(over.size(), unit));
        let (locks, counters) = (RangeLocks::default(), Counters::default());
        let (broken, broke) = (Mutex::default(), Event::new());
        Arc::new(Self {
            over,
            target,
            left,
            since,
            holds_everything,
            discards,
            breaks_writes: AtomicBool::new(false),
            locks,
            counters,
            broken,
            broke,
        })
    }

    /// From now on a write of a guest fails whose old content cannot be copied, and the copy stays whole.
    pub fn break_writes(&self) {
        self.breaks_writes.store(true, Ordering::Relaxed);
    }

    /// What is not copied yet. A caller that knows what is to be copied marks it here, with [`What::Marked`], while the disk is drained.
    pub fn left(&self) -> &Dirty {
        &self.left
    }

    /// What was written since the moment of which the copy is, also by requests that have not ended; nothing if it is not kept.
    pub fn since(&self) -> Option<&Dirty> {
        self.since.as_ref()
    }

    /// Says what is to be copied. While the disk is drained: that is the moment of which the copy is.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub async fn mark(&self, what: What) -> Result<(), BlockError> {
        self.holds_everything.store(what == What::Everything, Ordering::Relaxed);
        match what {
            What::Layers(layers) => mark_layers(&*self.over, layers, &self.left).await?,
            // With nothing to copy by itself, what guests overwrite is copied all the same.
            What::Everything | What::Nothing => self.left.mark(0..self.over.size()),
            What::Marked => {}
        }
        Ok(())
    }

    async fn copy(&self, range: Range<u64>) -> Result<(), Error> {
        let copy = Copy {
            source: &*self.over,
            from: range.clone(),
            target: &*self.target,
            to: range.start,
            scope: Scope::Everything,
            content: match self.holds_everything.load(Ordering::Relaxed) {
                true => Content::Unknown,
                false => Content::Overlay,
            },
            options: CopyOptions { in_flight: 1, ..CopyOptions::default() },
        };
        copy.transfer(&self.counters).await?;
        self.left.clear(range.clone());
        if self.discards
            && let Err(error) = self.over.discard(range.start, range.end - range.start).await
        {
            // It costs space, and nothing else.
            tracing::debug!(%error, "what was copied stays in the source");
        }
        Ok(())
    }

    /// Copies what of `range` is not copied yet.
    ///
    /// # Errors
    /// When it cannot be copied, and that is for the guest to know.
    async fn save(&self, range: &Range<u64>) -> Result<(), BlockError> {
        while self.left.touches(range.clone()) && self.broken.lock().is_none() {
            let whole = self.left.whole(range);
            let _alone = self.locks.acquire(whole.start, whole.end, RangeMode::Exclusive).await;
            while let Some(piece) =
                self.left.next(whole.start, PIECE_BYTES).filter(|piece| piece.start < whole.end)
            {
                let piece = piece.start..piece.end.min(whole.end);
                if let Err(error) = self.copy(piece).await {
                    if let (true, Error::Request { source, .. }) =
                        (self.breaks_writes.load(Ordering::Relaxed), &error)
                    {
                        return Err(source.clone());
                    }
                    tracing::warn!(%error, "a backup is broken");
                    *self.broken.lock() = Some(error);
                    self.broke.notify(usize::MAX);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    async fn before(
        &self,
        offset: u64,
        len: u64,
        change: impl Future<Output = Result<(), BlockError>>,
    ) -> Result<(), BlockError> {
        let range = offset..offset.saturating_add(len);
        // Before it happens: one that is dropped may still land.
        self.since.iter().for_each(|since| since.mark(range.clone()));
        self.save(&range).await?;
        let _shared = self.locks.acquire(range.start, range.end, RangeMode::Shared).await;
        change.await
    }
}

impl Block for BeforeWrite {
    fn driver(&self) -> &'static str {
        "copy-before-write"
    }

    fn over(&self) -> Option<&Arc<dyn Block>> {
        Some(&self.over)
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), BlockError>> {
        Box::pin(async move {
            let len = data.len() as u64;
            self.before(offset, len, async { self.over.write(offset, data, hints).await }).await
        })
    }

    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), BlockError>> {
        Box::pin(self.before(offset, len, async move { self.over.zero(offset, len, options).await }))
    }

    fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), BlockError>> {
        Box::pin(self.before(offset, len, async move { self.over.discard(offset, len).await }))
    }
}

/// The job's own copying.
#[derive(Debug)]
pub struct Backup {
    /// Over the disk.
    pub filter: Arc<BeforeWrite>,
    /// What it copies by itself: with nothing it runs until it is cancelled.
    pub what: What,
    /// How it does that.
    pub pace: BackupPace,
}

/// How a backup copies what guests leave to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupPace {
    /// Pieces under way at a time at most; at least one.
    pub workers: usize,
    /// Bytes of a piece at most; one unit is taken in any case. Memory is at most this for each worker.
    pub piece_bytes: u64,
}

impl Default for BackupPace {
    fn default() -> Self {
        Self { workers: WORKERS, piece_bytes: PIECE_BYTES }
    }
}

impl Backup {
    /// Copies to the end, and flushes the target.
    ///
    /// # Errors
    /// When a request fails and the job's terms say that it fails of it, when a guest's write could not be saved, when it is cancelled.
    pub async fn run(&self, life: &Life) -> Result<(), Error> {
        let filter = &*self.filter;
        let total = filter.left.bytes();
        let (mut at, mut under_way) = (0, FuturesUnordered::new());
        loop {
            if life.is_paused() {
                // What is under way holds ranges that guests may wait for.
                finish(&mut under_way).await?;
            }
            life.set_progress(total - filter.left.bytes().min(total), total);
            life.pause_point().await?;
            let broke = filter.broke.listen();
            if let Some(error) = filter.broken.lock().clone() {
                return Err(error);
            }
            if self.what == What::Nothing {
                life.changed_or(broke).await;
                continue;
            }
            while under_way.len() < self.pace.workers.max(1) {
                let Some(piece) = filter.left.next(at, self.pace.piece_bytes) else { break };
                at = piece.end;
                under_way.push(self.copy(piece, life));
            }
            match under_way.next().await {
                Some(copied) => copied?,
                // Pieces that gave way to a pause are left.
                None if !filter.left.is_empty() => at = 0,
                None => break,
            }
        }
        let target = &*filter.target;
        target.flush().await.map_err(Error::request(Side::Target, target, Action::Flush, 0))?;
        match filter.broken.lock().clone() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Copies what of one piece is left, again until it succeeds or the job fails of it.
    async fn copy(&self, piece: Range<u64>, life: &Life) -> Result<(), Error> {
        if !life.charge_unless_paused(piece.end - piece.start).await? {
            return Ok(());
        }
        loop {
            match self.copy_left(piece.clone()).await {
                Ok(()) => return Ok(()),
                Err(error) => life.judge(error).await?,
            }
        }
    }

    /// The copy is whole and durable: the filter is taken off.
    pub(crate) async fn finish<H: Host>(&self, host: &H) -> Result<(), H::Error> {
        let change = host.change().await;
        let last_look = async || host.bitmap_succeeds(self.filter.since()).await.map_err(Error::Bitmap);
        let removed = host.exchange(&change, Exchange::WithoutFilter, last_look).await?;
        host.close(removed).await;
        Ok(())
    }

    pub(crate) async fn put_back<H: Host>(&self, host: &H, change: &H::Change) {
        let settle = async || host.bitmap_fails(self.filter.left(), self.filter.since()).await;
        take_filter_off(host, change, settle).await;
    }

    /// A guest may have copied a part of it meanwhile, and then written there.
    async fn copy_left(&self, piece: Range<u64>) -> Result<(), Error> {
        let filter = &*self.filter;
        let _alone = filter.locks.acquire(piece.start, piece.end, RangeMode::Exclusive).await;
        let mut at = piece.start;
        while at < piece.end {
            let (is_left, end) = filter.left.run(at..piece.end);
            if is_left {
                filter.copy(at..end).await?;
            }
            at = end;
        }
        Ok(())
    }
}
