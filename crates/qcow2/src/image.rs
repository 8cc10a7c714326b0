//! An open image: what all requests share.

use std::sync::Arc;

use map_cache::Charge;
use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::{ArcSwapOption, RwLock};

use crate::Error;
use crate::below::Lower;
use crate::compressed::Decompressed;
use crate::gate::Pass;
use crate::guest_range::GuestRange;
use crate::header_update::FileHeader;
use crate::map::Map;
use crate::medium::Medium;
use crate::options::{DiscardOptions, Options};
use crate::space::Space;
use crate::tracking::Tracking;
use crate::turns::Turns;

/// An open qcow2 image. Clones are handles of the same image; every method may be called from any
/// thread, many at a time. Futures are bound to the thread that made them.
///
/// Requests may be of any alignment and must lie inside [`Qcow2::size`]. A request that is dropped
/// before its end may or may not have happened.
#[derive(Clone, Debug)]
pub struct Qcow2 {
    pub(crate) inner: Arc<Inner>,
}

/// The state of an open image: parts, each with a law of its own. A part takes those that it needs as arguments; the
/// arrows between them point from the later ones here to the earlier ones. Shared parts are those that are still true when the image
/// switches to other files ([`crate::OnOtherFiles`]): then there is another one of these, over the same parts.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) medium: Medium,
    pub(crate) header: Arc<FileHeader>,
    pub(crate) tracking: Tracking,
    pub(crate) map: Arc<Map>,
    pub(crate) space: Arc<Space>,
    pub(crate) turns: Turns,
    pub(crate) decompressed: Decompressed,
    /// All that lies below; another list is put there only by [`crate::HeldStill`].
    pub(crate) below: ArcSwapOption<Lower>,
    /// Something may be put below later.
    pub(crate) awaits_backing: AtomicBool,
    pub(crate) options: Options,
    /// Those of the options that can change.
    pub(crate) discards: RwLock<DiscardOptions>,
    /// Of the disk, in bytes.
    pub(crate) size: AtomicU64,
    /// What is in memory as a whole as long as the image is open: [`Inner::count_tables`] keeps it true.
    pub(crate) tables_charge: Charge,
}

impl Inner {
    /// Tells the budget what L1, the refcount table and the places of all metadata take. After opening and with each commit:
    /// in between they grow by what one commit brings.
    pub(crate) fn count_tables(&self) {
        let bytes = self.map.l1.footprint()
            + self.space.refcounts.table.read().footprint()
            + self.medium.overlap.footprint();
        if bytes != self.tables_charge.bytes() {
            self.tables_charge.set(bytes);
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    pub(crate) fn discards(&self) -> DiscardOptions {
        *self.discards.read()
    }

    /// The range, which must lie inside the disk. Asked before a request costs anything, and again once it has entered: the
    /// disk may have become smaller while the gate was closed, and keeps its size as long as a request is inside.
    pub(crate) fn check_range(&self, offset: u64, len: u64) -> Result<GuestRange, Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size() => Ok(GuestRange { start: offset, end }),
            _ => Err(self.medium.blame.past_end(offset, len, self.size())),
        }
    }

    /// For a change that has entered, what it asked before: while it waited at the gate the disk may have become smaller, and a
    /// snapshot may have left the file with another header than memory. Neither happens while a request is inside.
    pub(crate) fn check_inside(&self, range: GuestRange) -> Result<(), Error> {
        self.medium.check_not_stopped()?;
        self.check_range(range.start, range.len()).map(drop)
    }

    /// Whether the image takes changes now.
    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        if !self.options.writable {
            return Err(self.medium.blame.refused("the image is opened read-only"));
        }
        self.medium.check_not_stopped()?;
        if self.medium.health.is_corrupt() {
            return Err(self.medium.blame.refused(
                "the image is marked corrupt: no more writes; repair it with `cowhand check -r all`",
            ));
        }
        Ok(())
    }

    /// Waits for the right to use the map and the clusters it names.
    pub(crate) async fn enter(&self) -> Result<Pass<'_>, Error> {
        self.turns.gate.enter().await.ok_or_else(|| self.medium.blame.refused("the image is closed"))
    }

    /// Passes `result` on; if it tells of corruption, the header tells of it too from now on.
    pub(crate) async fn reporting<T>(self: &Arc<Self>, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(Error::Corrupt { .. }) = &result
            && self.medium.health.is_corrupt()
        {
            self.mark_corrupt().await;
        }
        result
    }

    /// Whether anything was changed since the image was opened, so that the file says what a reader must know of that.
    #[inline]
    pub(crate) fn was_changed(&self) -> bool {
        self.header.prepared_for_data.load(Ordering::Acquire)
    }

    /// Sets the corrupt bit, once: the next program that opens the image must know.
    pub(crate) async fn mark_corrupt(self: &Arc<Self>) {
        // The image that switches to other files marks those when it meets the same.
        if !self.options.writable
            || self.turns.went_on.load(Ordering::Acquire)
            || self.header.corrupt_marked.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let image = Arc::clone(self);
        let marked =
            self.medium.to_the_end(async move { image.header.mark_corrupt_now(&image.medium).await });
        if let Err(error) = marked.await {
            tracing::error!("cannot set the corrupt bit: {error}");
        }
    }
}
