//! An image at work takes over what lies below it.
//!
//! The job owns what it copies: a guest's write there waits until it is in its place, so that nothing old is written over it. Guests'
//! requests elsewhere, and all that read, are not held back.

use std::sync::Arc;

use block::{Block, BlockFuture, Error as BlockError, MovingBlock, ZeroOptions};
use memory::IoVec;
use storage::{Hints, RangeLocks, RangeMode};

use crate::base::Base;

use crate::content::Content;
use crate::copy::{Copy, CopyOptions, Zeroes};
use crate::counters::Counters;
use crate::error::{Action, Error, Side};
use crate::host::{Exchange, Host, take_filter_off};
use crate::layers::{Says, Scope};
use crate::life::Life;
use crate::rate::piece_bytes as piece_bytes_at;

/// Bytes that are copied at a time at most: users read from a job's progress how far it came before a piece failed, and know it in QEMU's pieces.
const PIECE_BYTES: u64 = 512 << 10;
/// Zeroes that are written at a time at most.
const ZERO_BYTES: u64 = 64 << 20;

/// A filter that holds back writes where the job is at work.
#[derive(Debug)]
pub struct Guarded {
    over: Arc<dyn Block>,
    locks: RangeLocks,
}

impl Guarded {
    /// Over the image that takes over.
    pub fn new(over: Arc<dyn Block>) -> Arc<Self> {
        Arc::new(Self { over, locks: RangeLocks::default() })
    }
}

impl Block for Guarded {
    fn driver(&self) -> &'static str {
        "copy-on-read"
    }

    fn over(&self) -> Option<&Arc<dyn Block>> {
        Some(&self.over)
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), BlockError>> {
        Box::pin(async move {
            let end = offset.saturating_add(data.len() as u64);
            let _shared = self.locks.acquire(offset, end, RangeMode::Shared).await;
            self.over.write(offset, data, hints).await
        })
    }

    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), BlockError>> {
        Box::pin(async move {
            let end = offset.saturating_add(len);
            let _shared = self.locks.acquire(offset, end, RangeMode::Shared).await;
            self.over.zero(offset, len, options).await
        })
    }

    fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), BlockError>> {
        Box::pin(async move {
            let end = offset.saturating_add(len);
            let _shared = self.locks.acquire(offset, end, RangeMode::Shared).await;
            self.over.discard(offset, len).await
        })
    }
}

/// What an image takes over.
#[derive(Debug)]
pub struct Stream {
    guarded: Arc<Guarded>,
    /// What will lie below the image, if anything: what only that layer or ones below it have stays there.
    base: Option<MovingBlock<Base>>,
}

impl Stream {
    /// Of all that is below the image that `guarded` is over.
    pub fn of_everything(guarded: Arc<Guarded>) -> Self {
        Self { guarded, base: None }
    }

    /// Of what `layers` layers have, `image`, which `guarded` is over, included. What is below these stays there.
    pub fn of_layers(guarded: Arc<Guarded>, image: &Arc<dyn Block>, layers: u32) -> Self {
        let base = Base::new(Arc::clone(image), layers);
        let first = base.layer();
        Self { guarded, base: Some(MovingBlock::new(base, first.as_deref())) }
    }

    /// Copies to the end, and flushes the image. It reads the same at each moment.
    ///
    /// # Errors
    /// When a request fails and the job's terms say that it fails of it; when it is cancelled. What was copied stays, and is right. Where failures are
    /// ignored, all else is copied before the first of them is the result: the image needs what is below it as before.
    pub async fn run(&self, life: &Life) -> Result<(), Error> {
        let image = &*self.guarded.over;
        let unit = image.capabilities().cluster_bytes.unwrap_or(PIECE_BYTES);
        let (mut at, size, counters) = (0, image.size(), Counters::default());
        let mut ignored = None;
        while at < size {
            life.pause_point().await?;
            life.set_progress(at, size);
            let status = match image.block_status(at, size - at).await {
                Ok(status) => status,
                Err(error) => {
                    life.judge(Error::request(Side::Source, image, Action::Status, at)(error)).await?;
                    continue;
                }
            };
            let end = at + status.len.min(size - at);
            // Without a base, what no layer has reads as zeroes afterwards, too.
            let says = self.scope().says(&status);
            if says == Says::Nothing || (says == Says::Zero && self.base.is_none()) {
                at = end;
                continue;
            }
            // Whole clusters, so that none is filled from below twice, and none is skipped for what the base has in a part of it.
            let from = at / unit * unit;
            let piece_bytes =
                if status.zero { ZERO_BYTES } else { piece_bytes_at(life.speed(), PIECE_BYTES) };
            let to = end.min(from + piece_bytes).next_multiple_of(unit).min(size);
            life.charge(if status.zero { 0 } else { to - from }).await?;
            let copied = {
                let _alone = self.guarded.locks.acquire(from, to, RangeMode::Exclusive).await;
                self.copy(from, to, &counters).await
            };
            match copied {
                Ok(()) => at = to,
                Err(error) if life.ignores(&error) => {
                    ignored.get_or_insert(error);
                    at = to;
                }
                Err(error) => life.judge(error).await?,
            }
        }
        life.set_progress(size, size);
        if let Some(error) = ignored {
            return Err(error);
        }
        image.flush().await.map_err(Error::request(Side::Target, image, Action::Flush, 0))
    }

    fn scope(&self) -> Scope {
        match &self.base {
            Some(base) => Scope::BelowTopWithin(base.find().layers()),
            None => Scope::BelowTop,
        }
    }

    async fn copy(&self, from: u64, to: u64, counters: &Counters) -> Result<(), Error> {
        let image = &*self.guarded.over;
        let scope = self.scope();
        let content = self.base.as_ref().map_or(Content::Zeroes, |base| Content::As(base));
        let options = CopyOptions { in_flight: 1, zeroes: Zeroes::ByMap, ..CopyOptions::default() };
        let copy = Copy { source: image, from: from..to, target: image, to: from, scope, content, options };
        copy.transfer(counters).await
    }
}

/// The job.
#[derive(Debug)]
pub struct StreamJob {
    /// The copying.
    pub stream: Stream,
    /// The image, as the disk has it.
    pub image: Arc<dyn Block>,
    /// Guests write to the image, through a filter.
    pub is_uppermost: bool,
    /// What the header of the image is to call the base, if a user said that.
    pub backing: Option<String>,
}

impl StreamJob {
    /// The image has all that it is to hold, durably: its header names the base, and then the base is below it.
    pub(crate) async fn finish<H: Host>(&self, host: &H) -> Result<(), H::Error> {
        let change = host.change().await;
        let base = self.stream.base.as_ref().and_then(|base| base.find().layer());
        host.name_backing(&self.image, base.as_ref(), self.backing.as_deref()).await?;
        let below = Exchange::Below(&self.image, base.as_ref());
        let removed = host.exchange(&change, below, async || Ok(())).await?;
        self.put_back(host, &change).await;
        host.close(removed).await;
        Ok(())
    }

    pub(crate) async fn put_back<H: Host>(&self, host: &H, change: &H::Change) {
        match self.is_uppermost {
            true => take_filter_off(host, change, async || ()).await,
            false => host.make_readable(change, &self.image).await,
        }
    }
}
