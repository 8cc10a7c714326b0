//! What layers have that are not written goes into the one below them: commit of an image that is not the uppermost one.

use std::sync::Arc;

use block::Block;

use crate::content::{self, Content, Zeroing};
use crate::copy::{Copy, CopyOptions};
use crate::counters::Counters;
use crate::deliberate::{self, Bug};
use crate::error::{Action, Error, Side};
use crate::host::{Exchange, Host, NewBacking};
use crate::layers::Scope;
use crate::life::Life;
use crate::rate::piece_bytes as piece_bytes_at;

/// Bytes that are copied between two pause points at most.
const PIECE_BYTES: u64 = 8 << 20;

/// Layers and the one that takes what they have.
#[derive(Debug)]
pub struct Merge {
    /// The upper one of those that are merged.
    pub top: Arc<dyn Block>,
    /// How many they are, without the base.
    pub layers: u32,
    /// Where it goes: as long as `top` at least.
    pub base: Arc<dyn Block>,
    /// The image above the layers, whose backing layer the base becomes.
    pub over: Arc<dyn Block>,
    /// Guests write to that image.
    pub is_uppermost: bool,
    /// What its header names afterwards.
    pub backing: NewBacking,
}

impl Merge {
    /// Copies to the end, and flushes the base. What images above the layers read is the same at each moment.
    ///
    /// # Errors
    /// When a request fails and the job's terms say that it fails of it; when it is cancelled. What was copied is hidden by the layers.
    pub async fn run(&self, life: &Life) -> Result<(), Error> {
        let (mut at, size, counters) = (0, self.top.size(), Counters::default());
        while at < size {
            life.pause_point().await?;
            life.set_progress(at, size);
            let end = size.min(at + piece_bytes_at(life.speed(), PIECE_BYTES));
            let before = counters.progress().written;
            match self.copy(at, end, &counters).await {
                Ok(()) => at = end,
                Err(error) => {
                    life.judge(error).await?;
                    continue;
                }
            }
            life.set_progress(at, size);
            life.charge(counters.progress().written - before).await?;
        }
        while let Err(error) = self.zero_behind_end(&counters).await {
            life.judge(error).await?;
        }
        life.set_progress(size, size);
        let base = &*self.base;
        base.flush().await.map_err(Error::request(Side::Target, base, Action::Flush, 0))
    }

    /// The image above reads zeroes where the layers have ended. What a longer base has there must not show when it is below that image.
    async fn zero_behind_end(&self, counters: &Counters) -> Result<(), Error> {
        let behind = self.top.size()..self.over.size().min(self.base.size());
        if behind.is_empty() || deliberate::has(Bug::ShortLayerSaysNothing) {
            return Ok(());
        }
        let how = Zeroing { unmap: true, unit_bytes: 1, written_before: 0 };
        content::zero(&*self.base, &Content::Unknown, behind, how, counters).await
    }

    async fn copy(&self, from: u64, to: u64, counters: &Counters) -> Result<(), Error> {
        let copy = Copy {
            source: &*self.top,
            from: from..to,
            target: &*self.base,
            to: from,
            scope: Scope::Layers(self.layers),
            content: Content::Unknown,
            options: CopyOptions::default(),
        };
        copy.transfer(counters).await
    }

    /// The base has all that the layers hold, durably: the header of the image above names it, and then it is below that image.
    pub(crate) async fn finish<H: Host>(&self, host: &H) -> Result<(), H::Error> {
        let change = host.change().await;
        host.name_backing(&self.over, &self.backing).await?;
        let below = Exchange::Below(&self.over, Some(&self.base));
        let removed = host.exchange(&change, below, async || Ok(())).await?;
        self.put_back(host, &change).await;
        host.close(removed).await;
        Ok(())
    }

    pub(crate) async fn put_back<H: Host>(&self, host: &H, change: &H::Change) {
        host.make_readable(change, &self.base).await;
        if !self.is_uppermost {
            host.make_readable(change, &self.over).await;
        }
    }
}
