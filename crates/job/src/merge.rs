//! What layers have that are not written goes into the one below them: commit of an image that is not the uppermost one.

use std::sync::Arc;

use block::Block;

use crate::content::{self, Content, Zeroing};
use crate::copy::{Copy, CopyOptions};
use crate::counters::Counters;
use crate::deliberate::{self, Bug};
use crate::error::{Action, Error, Side};
use crate::host::{Exchange, Host};
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
    /// The image above the layers, open for writing: the base becomes its backing layer. A stream of one further up may take it out meanwhile, and
    /// then that one's.
    pub over: Arc<dyn Block>,
    /// Bytes of the longest image above the layers.
    pub size_above: u64,
    /// What the header of the image above is to call the base, if a user said that.
    pub backing: Option<String>,
}

impl Merge {
    /// Copies to the end, and flushes the base. What images above the layers read is the same at each moment.
    ///
    /// # Errors
    /// When a request fails and the job's terms say that it fails of it; when it is cancelled. What was copied is hidden by the layers.
    pub async fn run(&self, life: &Life) -> Result<(), Error> {
        let counters = Counters::default();
        copy_layers(&*self.top, self.layers, &*self.base, (life, &counters)).await?;
        while let Err(error) = self.zero_behind_end(&counters).await {
            life.judge(error).await?;
        }
        flush(&*self.base).await
    }

    /// Images above read zeroes where the layers have ended. What a longer base has there must not show when it is below them.
    async fn zero_behind_end(&self, counters: &Counters) -> Result<(), Error> {
        let behind = self.top.size()..self.size_above.min(self.base.size());
        if behind.is_empty() || deliberate::has(Bug::ShortLayerSaysNothing) {
            return Ok(());
        }
        let how = Zeroing { unmap: true, unit_bytes: 1, written_before: 0 };
        content::zero(&*self.base, &Content::Unknown, behind, how, counters).await
    }

    /// The base has all that the layers hold, durably: the header of the image above names it, and then it is below that image.
    pub(crate) async fn finish<H: Host>(&self, host: &H) -> Result<(), H::Error> {
        let change = host.change().await;
        let over = match host.image_over(&self.top) {
            Some(over) if !Arc::ptr_eq(&over, &self.over) => Some(host.make_writable(&change, &over).await?),
            Some(_) | None => None,
        };
        let finished = self.put_base_below(host, &change, over.as_ref().unwrap_or(&self.over)).await;
        if let Some(over) = &over {
            host.make_readable(&change, over).await;
        }
        let removed = finished?;
        self.put_back(host, &change).await;
        host.close(removed).await;
        Ok(())
    }

    async fn put_base_below<H: Host>(
        &self,
        host: &H,
        change: &H::Change,
        over: &Arc<dyn Block>,
    ) -> Result<H::Removed, H::Error> {
        host.name_backing(over, Some(&self.base), self.backing.as_deref()).await?;
        let below = Exchange::Below(over, Some(&self.base));
        host.exchange(change, below, async || Ok(())).await
    }

    pub(crate) async fn put_back<H: Host>(&self, host: &H, change: &H::Change) {
        host.make_readable(change, &self.base).await;
        host.make_readable(change, &self.over).await;
    }
}

/// Copies what `layers` images have, of which `top` is the uppermost, to a new image with their backing file, and flushes it.
///
/// # Errors
/// As [`Merge::run`].
pub async fn merge_into(top: &dyn Block, layers: u32, base: &dyn Block, life: &Life) -> Result<(), Error> {
    copy_layers(top, layers, base, (life, &Counters::default())).await?;
    flush(base).await
}

async fn flush(base: &dyn Block) -> Result<(), Error> {
    base.flush().await.map_err(Error::request(Side::Target, base, Action::Flush, 0))
}

async fn copy_layers(
    top: &dyn Block,
    layers: u32,
    base: &dyn Block,
    (life, counters): (&Life, &Counters),
) -> Result<(), Error> {
    let (mut at, size) = (0, top.size());
    while at < size {
        life.pause_point().await?;
        life.set_progress(at, size);
        let end = size.min(at + piece_bytes_at(life.speed(), PIECE_BYTES));
        let before = counters.progress().written;
        let copy = Copy {
            source: top,
            from: at..end,
            target: base,
            to: at,
            scope: Scope::Layers(layers),
            content: Content::Unknown,
            options: CopyOptions::default(),
        };
        match copy.transfer(counters).await {
            Ok(()) => at = end,
            Err(error) => {
                life.judge(error).await?;
                continue;
            }
        }
        life.set_progress(at, size);
        life.charge_copied(counters.progress().written - before).await?;
    }
    life.set_progress(size, size);
    Ok(())
}
