//! The job of a mirror: its last step and its undo.

use crate::error::Error;
use crate::host::{Exchange, Host, Pivot, take_filter_off};
use crate::mirror::{Ended, Mirror};

/// The job: mirror, and commit of the uppermost image.
#[derive(Debug)]
pub struct MirrorJob {
    /// The copying.
    pub mirror: Mirror,
    /// What the disk switches to when it is completed.
    pub pivot: Pivot,
}

impl MirrorJob {
    /// The copy is made equal and durable as far as that goes while guests write, then equal while they do not, and the disk switches to it or
    /// leaves it.
    pub(crate) async fn finish<H: Host>(&self, host: &H, ended: Ended) -> Result<(), H::Error> {
        // What a flush writes is written while requests and other changes of layers go on.
        match ended {
            Ended::Complete => self.mirror.keep_durable().await?,
            // The last look makes durable what guests have not flushed, too: nothing flushes the copy after it.
            Ended::Left => self.mirror.flush().await?,
        }
        let change = host.change().await;
        if ended == Ended::Complete
            && let (Pivot::Layer(base), Some(named)) = (&self.pivot, self.mirror.name_in_images())
        {
            // The base has all that is flushed from here on.
            named.is_begun.set(true);
            host.name_in_images_over(&change, base, named.name.as_deref()).await?;
        }
        let exchange = match ended {
            Ended::Complete => Exchange::Root(&self.pivot),
            Ended::Left => Exchange::WithoutFilter,
        };
        let removed = host.exchange(&change, exchange, async || self.catch_up(host).await).await?;
        if ended == Ended::Left {
            self.give_base_back(host, &change).await;
        }
        host.close(removed).await;
        Ok(())
    }

    async fn catch_up(&self, host: &impl Host) -> Result<(), Error> {
        self.mirror.catch_up().await?;
        // The copy has all that was written.
        host.bitmap_succeeds(None).await.map_err(Error::Bitmap)
    }

    pub(crate) async fn put_back<H: Host>(&self, host: &H, change: &H::Change) {
        // What guests wrote since is among what is left.
        let settle = async || host.bitmap_fails(self.mirror.tracked.dirty(), None).await;
        take_filter_off(host, change, settle).await;
        if self.mirror.name_in_images().is_some_and(|named| named.is_begun.get())
            && let Err(error) = host.name_in_images_over(change, self.mirror.tracked.source(), None).await
        {
            host.filter_stays(error);
        }
        self.give_base_back(host, change).await;
    }

    /// The base of a commit that the disk does not switch to is not written any more.
    async fn give_base_back<H: Host>(&self, host: &H, change: &H::Change) {
        if let Pivot::Layer(base) = &self.pivot {
            host.make_readable(change, base).await;
        }
    }
}
