//! A disk at work is copied until the copy is in step with it: mirror, and commit of the uppermost image.
//!
//! Copying gains on guests or it does not: a round in which guests undo more than half of what is copied gains nothing. A round is an eighth of
//! the disk, or what is left where that is less. After some that gain nothing ([`ROUNDS_MAX`], by default) guests write to
//! both sides themselves, and then what is left only shrinks. So the copy is ready after a bounded time, whatever the guests do. Where that
//! is off, a copy of a disk that is written faster than it is copied never becomes ready.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use block::Block;
use futures_util::stream::{FuturesUnordered, StreamExt};
use storage::RangeMode;

use crate::copy::{Copy, CopyOptions};
use crate::counters::Counters;
use crate::error::{Action, Error, Side};
use crate::layers::{Says, Scope};
use crate::life::Life;
use crate::state::Status;
use crate::terms::End;
use crate::tracked::Tracked;

/// Bytes that are copied at a time at most, of one piece.
const PIECE_BYTES: u64 = 1 << 20;
/// Pieces under way at a time at most.
const IN_FLIGHT_MAX: usize = 8;
/// Rounds that gain nothing, until guests write to both sides, by default.
const ROUNDS_MAX: u32 = 1;
/// A round is this part of the disk,
const ROUND_PART: u64 = 8;
/// but not less than this: a guest that writes much for a moment is not slowed for it.
const ROUND_BYTES_MIN: u64 = 64 << 20;
/// What may be left for the last step, in which guests wait, where they are not made to write to both sides.
const LAST_STEP_BYTES: u64 = 16 << 20;
/// How often the copy is made durable ahead of the last step, until nothing had to be copied meanwhile.
const FLUSHES_MAX: usize = 3;

/// What of the source is copied first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// All of it.
    Everything,
    /// What its uppermost layers have, so many of them.
    Layers(u32),
    /// Only what is written from now on.
    Nothing,
    /// What its maker marks: what a bitmap has as dirty.
    Marked,
}

/// How a mirror came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The disk is to use the copy.
    Complete,
    /// The copy is whole and is left alone.
    Left,
}

/// What there was at the beginning of a round.
struct Round {
    left: u64,
    copied: u64,
}

/// What headers of images over the disk are to call the target.
#[derive(Debug)]
pub(crate) struct NameInImages {
    /// The name that a user gave.
    pub(crate) name: Option<String>,
    /// They may call it so by now.
    pub(crate) is_begun: Cell<bool>,
}

/// A copy that is kept in step.
#[derive(Debug)]
pub struct Mirror {
    pub(crate) tracked: Arc<Tracked>,
    counters: Counters,
    in_flight: Cell<u64>,
    copied: Cell<u64>,
    /// Bytes of a piece at most.
    piece_bytes: u64,
    /// 0 is never.
    rounds_max: u32,
    /// Images of other disks are over the disk, and are to name the target.
    below_images: Option<NameInImages>,
    /// The marks when all that guests had flushed was durable in the copy, as it has been since: unless there were more marks.
    durable_at: Cell<Option<u64>>,
}

impl Mirror {
    /// Of the disk that `tracked` is put over.
    pub fn new(tracked: Arc<Tracked>) -> Self {
        let (in_flight, copied) = (Cell::new(0), Cell::new(0));
        let (counters, durable_at) = (Counters::default(), Cell::new(None));
        Self {
            tracked,
            counters,
            in_flight,
            copied,
            piece_bytes: PIECE_BYTES,
            rounds_max: ROUNDS_MAX,
            below_images: None,
            durable_at,
        }
    }

    /// What guests write meanwhile.
    pub(crate) fn tracked(&self) -> &Arc<Tracked> {
        &self.tracked
    }

    /// Guests are made to write to both sides after so many rounds that gained nothing; 0 is never, also not when it is
    /// completed.
    pub fn converging_after(self, rounds: u32) -> Self {
        Self { rounds_max: rounds, ..self }
    }

    /// Of a disk that images of other disks are over, whose headers call the target `name` in the end, or by its file. It is completed as soon as it
    /// is in step.
    pub fn below_images(self, name: Option<String>) -> Self {
        Self { below_images: Some(NameInImages { name, is_begun: Cell::new(false) }), ..self }
    }

    /// What the headers of images over the disk are to call the target; `None` where they are left alone.
    pub(crate) fn name_in_images(&self) -> Option<&NameInImages> {
        self.below_images.as_ref()
    }

    /// Copies pieces of `bytes` at most, or of a unit if that is larger; 0 says nothing.
    pub fn in_pieces_of(self, bytes: u64) -> Self {
        let piece_bytes = if bytes == 0 { PIECE_BYTES } else { bytes.min(PIECE_BYTES) };
        Self { piece_bytes, ..self }
    }

    /// Marks what is to be copied first. While the disk is drained, before the first request of the filter.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub async fn mark(&self, what: What) -> Result<(), block::Error> {
        let source = self.tracked.source();
        let size = source.size();
        if what == What::Everything {
            self.tracked.holds_everything();
        }
        match what {
            What::Nothing | What::Marked => {}
            What::Everything => self.tracked.dirty.mark(0..size),
            What::Layers(layers) => mark_layers(&**source, layers, &self.tracked.dirty).await?,
        }
        Ok(())
    }

    /// Copies until a user completes or cancels it; it becomes ready on the way.
    ///
    /// # Errors
    /// When a request fails and the job's terms say that it fails of it; when it is cancelled before it is ready; when a write to both sides
    /// was dropped.
    pub async fn run(&self, life: &Life) -> Result<Ended, Error> {
        let mut under_way = FuturesUnordered::new();
        let round_bytes = (self.tracked.source().size() / ROUND_PART).max(ROUND_BYTES_MIN);
        let (mut at, mut rounds, mut round) = (0, 0, self.round());
        loop {
            if life.is_paused() {
                // What is under way holds ranges that guests may wait for.
                finish(&mut under_way).await?;
                self.tell_progress(life);
            }
            life.pause_point().await?;
            self.tracked.check()?;
            let is_in_step = under_way.is_empty() && self.tracked.dirty.is_empty();
            if life.status() == Status::Ready {
                match life.asked_to_end() {
                    Some(End::Complete) if is_in_step => return Ok(Ended::Complete),
                    Some(End::Complete) if self.rounds_max == 0 && self.left() <= LAST_STEP_BYTES => {
                        finish(&mut under_way).await?;
                        return Ok(Ended::Complete);
                    }
                    // What is left shrinks from now on: the last step is short.
                    Some(End::Complete) if self.rounds_max > 0 => self.tracked.be_synchronous(),
                    Some(end @ (End::Cancel | End::Force)) => {
                        finish(&mut under_way).await?;
                        while end == End::Cancel
                            && let Err(error) = self.flush().await
                        {
                            life.judge(error).await?;
                        }
                        return Ok(Ended::Left);
                    }
                    Some(End::Complete) | None => {}
                }
            }
            let marked = self.tracked.marked();
            let mut is_round_over = self.copied.get() - round.copied >= round_bytes;
            while under_way.len() < IN_FLIGHT_MAX {
                let Some(piece) = self.tracked.dirty.next(at, self.piece_bytes) else {
                    if at == 0 {
                        break;
                    }
                    at = 0;
                    is_round_over = true;
                    continue;
                };
                at = piece.end;
                // Taken: the next round does not find it. Who writes there marks it again.
                self.tracked.dirty.clear(piece.clone());
                self.in_flight.set(self.in_flight.get() + (piece.end - piece.start));
                under_way.push(self.copy(piece, life));
            }
            self.tell_progress(life);
            if is_round_over {
                rounds += u32::from(life.status() == Status::Running && !self.has_gained(&round));
                round = self.round();
            }
            if self.rounds_max > 0 && rounds >= self.rounds_max && !self.tracked.is_synchronous() {
                tracing::info!(
                    job = life.terms().id,
                    "copying does not gain on writes: they go to both sides"
                );
                self.tracked.be_synchronous();
            }
            if under_way.is_empty() && self.tracked.dirty.is_empty() {
                if self.below_images.is_some() {
                    return Ok(Ended::Complete);
                }
                life.become_ready();
                life.changed_or(marked).await;
                continue;
            }
            if let Some(copied) = under_way.next().await {
                copied?;
            }
        }
    }

    fn round(&self) -> Round {
        Round { left: self.left(), copied: self.copied.get() }
    }

    /// Whether less is left of at least half of what was copied since `round` began.
    fn has_gained(&self, round: &Round) -> bool {
        self.left() <= round.left.saturating_sub((self.copied.get() - round.copied) / 2)
    }

    fn tell_progress(&self, life: &Life) {
        let whole = match self.below_images {
            // Counted as the commit of a lower image is.
            Some(_) => self.tracked.source().size(),
            None => self.copied.get() + self.left(),
        };
        life.set_progress(whole.saturating_sub(self.left()), whole);
    }

    /// Bytes that are still to be copied.
    fn left(&self) -> u64 {
        self.tracked.dirty.bytes() + self.in_flight.get()
    }

    /// Copies one piece, again until it succeeds or the job fails of it. One that waits for the limit when the job is to rest is left for later.
    async fn copy(&self, piece: Range<u64>, life: &Life) -> Result<(), Error> {
        let len = piece.end - piece.start;
        if !life.charge_unless_paused(len).await? {
            self.tracked.mark(piece);
            self.in_flight.set(self.in_flight.get() - len);
            return Ok(());
        }
        loop {
            match self.copy_once(piece.clone()).await {
                Ok(()) => {
                    self.in_flight.set(self.in_flight.get() - len);
                    self.copied.set(self.copied.get() + len);
                    return Ok(());
                }
                Err(error) => life.judge(error).await?,
            }
        }
    }

    /// Copies one piece while no request writes there to both sides. What fails is marked again.
    async fn copy_once(&self, piece: Range<u64>) -> Result<(), Error> {
        let _alone = self.tracked.locks.acquire(piece.start, piece.end, RangeMode::Exclusive).await;
        self.tracked.dirty.clear(piece.clone());
        let copied = self.transfer(piece.clone()).await;
        if copied.is_err() {
            self.tracked.mark(piece);
        }
        copied
    }

    async fn transfer(&self, piece: Range<u64>) -> Result<(), Error> {
        let copy = Copy {
            source: &**self.tracked.source(),
            from: piece.clone(),
            target: &**self.tracked.target(),
            to: piece.start,
            scope: Scope::Everything,
            content: self.tracked.content(),
            options: CopyOptions { in_flight: 1, ..CopyOptions::default() },
        };
        copy.transfer(&self.counters).await
    }

    /// Before the disk is drained to use the copy: makes what guests flushed durable in the copy while they go on, and has their flushes
    /// do so from now on, so that [`Mirror::catch_up`] need not flush. Where guests discard without end it has to all the same.
    ///
    /// # Errors
    /// At the first request that fails; when the copy cannot be trusted.
    pub async fn keep_durable(&self) -> Result<(), Error> {
        self.tracked.flush_both();
        for _ in 0..FLUSHES_MAX {
            let marks = self.tracked.marks();
            self.copy_left().await?;
            self.flush().await?;
            if self.tracked.marks() == marks {
                self.durable_at.set(Some(marks));
                break;
            }
        }
        Ok(())
    }

    /// Copies what is left. The disk is drained: nothing is written meanwhile, and afterwards the copy is the disk. All that guests had flushed
    /// is durable in it; if [`Mirror::keep_durable`] did not see to that, everything is.
    ///
    /// # Errors
    /// At the first request that fails; when the copy cannot be trusted.
    pub async fn catch_up(&self) -> Result<(), Error> {
        self.tracked.mark_uncertain();
        self.copy_left().await?;
        let is_durable = self.durable_at.get() == Some(self.tracked.marks());
        if is_durable { self.tracked.check() } else { self.flush().await }
    }

    async fn copy_left(&self) -> Result<(), Error> {
        while let Some(piece) = self.tracked.dirty.next(0, self.piece_bytes) {
            self.copy_once(piece).await?;
        }
        Ok(())
    }

    /// Makes what was copied so far durable.
    ///
    /// # Errors
    /// When the target cannot be flushed.
    pub async fn flush(&self) -> Result<(), Error> {
        self.tracked.check()?;
        let target = &**self.tracked.target();
        target.flush().await.map_err(Error::request(Side::Target, target, Action::Flush, 0))
    }
}

/// Waits until nothing is under way any more.
pub(crate) async fn finish(
    under_way: &mut FuturesUnordered<impl Future<Output = Result<(), Error>>>,
) -> Result<(), Error> {
    while let Some(copied) = under_way.next().await {
        copied?;
    }
    Ok(())
}

/// Marks what the uppermost layers of `source` say.
pub(crate) async fn mark_layers(
    source: &dyn Block,
    layers: u32,
    dirty: &crate::dirty::Dirty,
) -> Result<(), block::Error> {
    let (mut at, size) = (0, source.size());
    while at < size {
        let status = source.block_status(at, size - at).await?;
        let end = at + status.len.min(size - at);
        if Scope::Layers(layers).says(&status) != Says::Nothing {
            dirty.mark(at..end);
        }
        at = end;
    }
    Ok(())
}
