//! The length of the image file: ahead of what is allocated, cut back at the close.
//!
//! A write beyond the end of a file makes it longer, and a file system takes such writes one at a time. So
//! the file grows by a large step (a hole but for its last block, which makes it that long) before its clusters are handed out.
//! What a crash leaves of the step is a hole at the end of the file that nothing refers to.

use std::sync::Arc;

use block::Blame;
use storage::Storage;
use sync::AsyncMutex;
use sync::atomic::{AtomicBool, Ordering};

use crate::Error;
use crate::header_update::FileHeader;
use crate::medium::Medium;
use crate::space::Space;

/// Longest step: a second's worth of allocating writes, and little to carry along in a copy that
/// does not know holes.
const STEP_BYTES_MAX: u64 = 64 << 20;

/// Shortest step in clusters.
const STEP_CLUSTERS_MIN: u64 = 8;

/// Refcount blocks that a close reads in search of the last cluster in use.
const BLOCKS_READ_MAX: u64 = 64;

/// Who makes the file longer.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    one_at_a_time: AsyncMutex<()>,
    /// Making it longer failed once: from then on writes do it themselves.
    given_up: AtomicBool,
}

impl Space {
    /// The image switches to the copy `file` of its file. What was known of the file as such is not known of that: what it has where nothing
    /// is in use, where metadata has its room, whether it grows. No request is in flight.
    pub(crate) fn go_on(&self, file: &Arc<dyn Storage>, blame: &Blame, cluster_bits: u32) {
        self.refcounts.go_on(file, blame);
        self.growth.given_up.store(false, Ordering::Release);
        self.reserve.nothing_is_zeroed();
        let mut allocator = self.allocator.lock();
        allocator.nothing_is_zeroed(file.length().div_ceil(1 << cluster_bits));
        if let Some(aside) = self.room.forget_all() {
            allocator.give(aside.clusters());
        }
    }

    /// Makes the file at least `end` clusters long. Every cluster goes through here before anything is written to it,
    /// data and metadata alike: a write beyond the end happens only where the file could not be made longer. None
    /// can be cut off either way, because [`storage::Storage::grow_to`] never shortens.
    pub(crate) async fn make_room(&self, medium: &Medium, end: u64) {
        let bits = medium.geometry.cluster_bits;
        let enough = || {
            medium.file.length() >> bits >= end
                || self.growth.given_up.load(Ordering::Acquire)
                || !medium.file.capabilities().resizable
        };
        if enough() {
            return;
        }
        let _one_at_a_time = self.growth.one_at_a_time.lock().await;
        if enough() {
            return;
        }
        let needed = end << bits;
        let step =
            (needed / 4).clamp(STEP_CLUSTERS_MIN << bits, STEP_BYTES_MAX.max(STEP_CLUSTERS_MIN << bits));
        if let Err(error) = medium.file.grow_to((needed + step) >> bits << bits).await {
            tracing::debug!("{}: cannot make the file longer ahead of writes: {error}", medium.blame.name());
            self.growth.given_up.store(true, Ordering::Release);
        }
    }

    /// Cuts off what nothing refers to at the end of the file. The file must know that it is free, and
    /// no request may be in flight.
    pub(crate) async fn cut_tail(&self, medium: &Medium, header: &FileHeader) -> Result<(), Error> {
        if !medium.file.capabilities().resizable || !header.prepared_for_metadata.load(Ordering::Acquire) {
            return Ok(());
        }
        let length = self.end_of_use(medium).await? << medium.geometry.cluster_bits;
        if length >= medium.file.length() {
            return Ok(());
        }
        self.room.forget_ahead();
        medium.file.shorten_to(length).await.map_err(medium.blame.io("cutting off the end of the file"))
    }

    /// The first cluster behind all that is in use, as far as this process made it so: what was
    /// unused when the image was opened stays as it was found.
    async fn end_of_use(&self, medium: &Medium) -> Result<u64, Error> {
        let mut end = self.allocator.lock().frontier();
        let entries = medium.geometry.refcount_block_entries();
        for _ in 0..BLOCKS_READ_MAX {
            let Some(last) = end.checked_sub(1) else { return Ok(end) };
            let index = self.refcounts.block_of(last);
            let block = self.refcounts.block(index).await?;
            let first = index * entries;
            let in_use = |cluster: u64| match &block {
                None => false,
                Some(block) => block.read(|bytes| {
                    let refcount =
                        qcow2_layout::refcount_get(bytes, cluster - first, medium.geometry.refcount_order);
                    refcount != Some(0)
                }),
            };
            let allocator = self.allocator.lock();
            while end > first {
                if in_use(end - 1) || !allocator.may_be_cut_off(end - 1) {
                    return Ok(end);
                }
                end -= 1;
            }
        }
        Ok(end)
    }
}
