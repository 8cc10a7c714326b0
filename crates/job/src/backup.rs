//! A copy of a disk as it was at one moment, while guests go on writing: what they are about to overwrite is copied first.
//!
//! A target that fails costs guests nothing but the try: the copy is broken from then on, and the job fails, not the guest's write.

use std::ops::Range;
use std::sync::Arc;

use block::{Block, BlockFuture, Error as BlockError, Filter, ZeroOptions};
use buffer::IoVec;
use event_listener::Event;
use parking_lot::Mutex;
use storage::{Hints, RangeLocks, RangeMode};

use crate::content::Content;
use crate::copy::{Copy, CopyOptions};
use crate::counters::Counters;
use crate::dirty::Dirty;
use crate::error::{Action, Error, Side};
use crate::life::Life;
use crate::mirror::{What, mark_layers};
use crate::plan::Scope;

/// Bytes that the job copies at a time at most; a guest's write copies the units that it touches.
const PIECE_BYTES: u64 = 1 << 20;

/// A filter that copies what was there before it is overwritten.
#[derive(Debug)]
pub struct BeforeWrite {
    over: Arc<dyn Block>,
    target: Arc<dyn Block>,
    /// What is not copied yet.
    left: Dirty,
    /// The job and guests that copy hold what they copy; guests that write hold what they write.
    locks: RangeLocks,
    counters: Counters,
    /// Why the copy is worth nothing.
    broken: Mutex<Option<Error>>,
    broke: Event,
}

impl BeforeWrite {
    /// Over `over`, whose old content goes to `target`, in units of `unit_bytes`.
    pub fn new(over: Arc<dyn Block>, target: Arc<dyn Block>, unit_bytes: u64) -> Arc<Self> {
        let left = Dirty::new(over.size(), unit_bytes);
        let (locks, counters) = (RangeLocks::default(), Counters::default());
        Arc::new(Self { over, target, left, locks, counters, broken: Mutex::default(), broke: Event::new() })
    }

    /// Says what is to be copied. While the disk is drained: that is the moment of which the copy is.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub async fn mark(&self, what: What) -> Result<(), BlockError> {
        match what {
            What::Layers(layers) => mark_layers(&*self.over, layers, &self.left).await?,
            // With nothing to copy by itself, what guests overwrite is copied all the same.
            What::Everything | What::Nothing => self.left.mark(0..self.over.size()),
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
            content: Content::Unknown,
            options: CopyOptions { in_flight: 1, ..CopyOptions::default() },
        };
        copy.transfer(&self.counters).await?;
        self.left.clear(range);
        Ok(())
    }

    /// Copies what of `range` is not copied yet.
    async fn save(&self, range: &Range<u64>) {
        while self.left.touches(range.clone()) && self.broken.lock().is_none() {
            let whole = self.left.whole(range);
            let _alone = self.locks.acquire(whole.start, whole.end, RangeMode::Exclusive).await;
            while let Some(piece) =
                self.left.next(whole.start, PIECE_BYTES).filter(|piece| piece.start < whole.end)
            {
                let piece = piece.start..piece.end.min(whole.end);
                if let Err(error) = self.copy(piece).await {
                    tracing::warn!(%error, "a backup is broken");
                    *self.broken.lock() = Some(error);
                    self.broke.notify(usize::MAX);
                    return;
                }
            }
        }
    }

    async fn before(
        &self,
        offset: u64,
        len: u64,
        change: impl Future<Output = Result<(), BlockError>>,
    ) -> Result<(), BlockError> {
        let range = offset..offset.saturating_add(len);
        self.save(&range).await;
        let _shared = self.locks.acquire(range.start, range.end, RangeMode::Shared).await;
        change.await
    }
}

impl Filter for BeforeWrite {
    fn driver(&self) -> &'static str {
        "copy-before-write"
    }

    fn over(&self) -> &Arc<dyn Block> {
        &self.over
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
}

impl Backup {
    /// Copies to the end, and flushes the target.
    ///
    /// # Errors
    /// When a request fails and the job's terms say that it fails of it, when a guest's write could not be saved, when it is cancelled.
    pub async fn run(&self, life: &Life) -> Result<(), Error> {
        let filter = &*self.filter;
        let total = filter.left.bytes();
        let mut at = 0;
        loop {
            life.pause_point().await?;
            let broke = filter.broke.listen();
            if let Some(error) = filter.broken.lock().clone() {
                return Err(error);
            }
            life.set_progress(total - filter.left.bytes().min(total), total);
            if self.what == What::Nothing {
                life.changed_or(broke).await;
                continue;
            }
            let Some(piece) = filter.left.next(at, PIECE_BYTES) else { break };
            life.charge(piece.end - piece.start).await?;
            let copied = {
                let _alone = filter.locks.acquire(piece.start, piece.end, RangeMode::Exclusive).await;
                // A guest may have copied a part of it meanwhile, and then written there.
                match filter.left.run(piece.clone()) {
                    (true, end) => filter.copy(piece.start..end).await.map(|()| end),
                    (false, end) => Ok(end),
                }
            };
            match copied {
                Ok(end) => at = end,
                Err(error) => life.judge(error).await?,
            }
        }
        let target = &*filter.target;
        target.flush().await.map_err(Error::request(Side::Target, target, Action::Flush, 0))?;
        match filter.broken.lock().clone() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}
