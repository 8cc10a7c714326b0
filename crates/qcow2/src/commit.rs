//! Writing metadata in order: the one place where tables reach the file.
//!
//! A commit takes what is dirty when it starts and writes, with a barrier (flush) where the
//! arrow is: refcounts and what waits for nothing -> L2 slices and L1 entries that wait for refcounts and
//! data -> done; where nothing waits, the first barrier is the last. Flushes that wait at the same
//! time share one commit. What need not wait can go without a barrier ([`Inner::hand_to_kernel`]). docs/internals/write-order.md says what a crash between any two steps leaves.

mod reclaim;
mod refcounts;

use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use map_cache::Dirty;
use storage::Step;

use crate::Error;
use crate::committer::{Reach, Turn};
use crate::deliberate::{self, Bug};
use crate::image::Inner;
use crate::l1::DirtySector;
use crate::overlap::Section;
use crate::waiting::Waited;

/// Table writes of one commit that are in flight at the same time.
const WRITES_AT_ONCE: usize = 32;

/// Words of a table that are written together, in file blocks of 4 KiB: less would make O_DIRECT read the rest first.
const BLOCK_WORDS: usize = 512;

/// Largest write made of neighbouring slices.
const MERGED_BYTES_MAX: usize = 2 << 20;

/// A commit under way; one that is dropped half-way has failed.
struct Running(Option<Arc<Inner>>);

impl Running {
    fn finish(mut self, result: Result<(), Error>) {
        if let Some(image) = self.0.take() {
            image.turns.committer.finish(result);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(image) = self.0.take() {
            image
                .turns
                .committer
                .finish(Err(image.medium.blame.refused("the program stopped while metadata was written")));
        }
    }
}

impl Inner {
    /// Makes everything durable that completed before this call.
    pub(crate) async fn flush(self: &Arc<Self>) -> Result<(), Error> {
        if !self.options.writable {
            return Ok(());
        }
        self.check_writable()?;
        let _pass = self.enter().await?;
        self.commit().await
    }

    /// Lets the kernel have all metadata of what completed before this call.
    pub(crate) async fn hand_to_kernel(self: &Arc<Self>) -> Result<(), Error> {
        // In this order: what a commit took, and has not written yet, is not dirty any more.
        let waits = self.has_dirty_map() || self.turns.committer.is_running();
        if !self.options.writable || !waits {
            return Ok(());
        }
        self.check_writable()?;
        let _pass = self.enter().await?;
        // What waits for a barrier needs a commit that flushes can share.
        let reach = if self.map.waiting.any() { Reach::Medium } else { Reach::Kernel };
        self.commit_to(reach).await
    }

    /// Waits for a commit that starts after this call; starts it if no other request does.
    pub(crate) async fn commit(self: &Arc<Self>) -> Result<(), Error> {
        self.commit_to(Reach::Medium).await
    }

    async fn commit_to(self: &Arc<Self>, reach: Reach) -> Result<(), Error> {
        self.medium.check_not_stopped()?;
        let target = self.turns.committer.next(reach);
        loop {
            match self.turns.committer.turn(target) {
                Turn::Done(result) => return result,
                Turn::Wait(finished) => finished.await,
                Turn::Start => {
                    let running = Running(Some(Arc::clone(self)));
                    let image = Arc::clone(self);
                    self.medium.host.spawn(Box::pin(async move {
                        running.finish(image.write_as_far_as(reach).await);
                    }));
                }
            }
        }
    }

    async fn write_as_far_as(self: &Arc<Self>, reach: Reach) -> Result<(), Error> {
        if reach == Reach::Kernel && self.write_what_need_not_wait().await? {
            return Ok(());
        }
        let with_refcounts = !self.header.is_lazy() || self.space.refcounts.is_crowded();
        self.write_metadata(with_refcounts).await
    }

    /// Whether memory holds enough that should be written soon.
    pub(crate) fn wants_commit(&self) -> bool {
        self.map.cache.wants_write_back()
            || self.space.frees.wants_commit()
            || self.space.refcounts.is_crowded()
    }

    /// Whether anything in memory differs from the file.
    pub(crate) fn is_dirty(&self) -> bool {
        self.has_dirty_map()
            || self.space.frees.any_open()
            || (!self.header.is_lazy() && self.space.refcounts.is_dirty())
    }

    /// Whether entries in memory differ from those in the file.
    fn has_dirty_map(&self) -> bool {
        self.map.cache.dirty_slices() > 0 || self.map.l1.is_dirty()
    }

    /// Writes the entries that may be on disk before anything else is (docs/internals/write-order.md, "What need not wait"), without a barrier.
    /// Says whether these were all. Clusters that they gave up stay taken: the next commit with a barrier frees them.
    async fn write_what_need_not_wait(self: &Arc<Self>) -> Result<bool, Error> {
        self.medium.about_to(Step::FlushToOs);
        let sectors = self.map.l1.take_dirty();
        let slices = self.map.cache.copy_dirty();
        // Behind the copies, as in a commit; the marks stay for the commit that they are for.
        let (bound, free): (Vec<Dirty>, Vec<Dirty>) =
            slices.into_iter().partition(|slice| self.map.waiting.has(slice.key()));
        let l1_waits = self.map.waiting.has_l1() && !sectors.is_empty();
        let written = async {
            self.write_slices(&free.iter().collect::<Vec<_>>()).await?;
            if l1_waits { Ok(()) } else { self.write_l1(&sectors).await }
        };
        let result = written.await;
        if result.is_err() || l1_waits {
            self.map.l1.not_written(&sectors);
        }
        result?;
        self.map.cache.written(&free);
        Ok(bound.is_empty() && !l1_waits)
    }

    pub(crate) async fn write_metadata(self: &Arc<Self>, with_refcounts: bool) -> Result<(), Error> {
        self.medium.about_to(Step::FlushToOs);
        self.space.fill_reserve(&self.medium, &self.header).await?;
        self.space.reserve.count();
        let clusters = self.medium.file.length() >> self.medium.geometry.cluster_bits;
        // Before the copies: the entries that gave up these clusters are then in them.
        let frees = self.space.frees.take_open();
        if deliberate::has(Bug::PunchTooEarly) {
            for free in &frees {
                self.space.punch(&self.medium, *free).await;
            }
        }
        // Before the refcounts: whatever an entry in a copy leads to has its refcount raised in
        // memory already, and its data written.
        let sectors = self.map.l1.take_dirty();
        let slices = self.map.cache.copy_dirty();
        let waited = self.map.waiting.take();
        match self.write_in_order(&sectors, &slices, &waited, with_refcounts).await {
            Ok(()) => {
                self.map.cache.written(&slices);
                // Now there are clean slices, which can leave for what the tables grew by.
                self.count_tables();
                self.space.reserve.settle(clusters);
                self.reclaim(frees);
                Ok(())
            }
            Err(error) => {
                self.map.l1.not_written(&sectors);
                self.map.waiting.put_back(waited);
                self.space.frees.reopen(frees);
                Err(error)
            }
        }
    }

    async fn write_in_order(
        self: &Arc<Self>,
        sectors: &[DirtySector],
        slices: &[Dirty],
        waited: &Waited,
        with_refcounts: bool,
    ) -> Result<(), Error> {
        if deliberate::has(Bug::RefcountAfterL2) {
            self.write_slices(&slices.iter().collect::<Vec<_>>()).await?;
            self.medium.barrier().await?;
        }
        let (bound, free): (Vec<&Dirty>, Vec<&Dirty>) =
            slices.iter().partition(|slice| waited.has(slice.key()));
        if with_refcounts {
            self.write_refcounts().await?;
        }
        self.write_slices(&free).await?;
        if !waited.l1 {
            self.write_l1(sectors).await?;
        }
        if bound.is_empty() && (sectors.is_empty() || !waited.l1) {
            return self.medium.barrier().await;
        }
        if !deliberate::has(Bug::MissingFlush) {
            self.medium.barrier().await?;
        }
        self.write_slices(&bound).await?;
        if waited.l1 {
            self.write_l1(sectors).await?;
        }
        self.medium.barrier().await
    }

    async fn write_l1(&self, sectors: &[DirtySector]) -> Result<(), Error> {
        let write = |sector: &DirtySector| {
            let (offset, bytes) = (sector.offset, sector.bytes.clone());
            async move { self.medium.write_table(offset, &bytes, Section::ActiveL1).await }
        };
        all_of(sectors.iter().map(write)).await
    }

    /// Writes of each slice the blocks that changed: the file has the others as they are.
    async fn write_slices(self: &Arc<Self>, slices: &[&Dirty]) -> Result<(), Error> {
        let mut pieces = Vec::with_capacity(slices.len());
        for slice in slices {
            let changed = slice.changed.start / BLOCK_WORDS * BLOCK_WORDS
                ..slice.changed.end.next_multiple_of(BLOCK_WORDS).min(slice.words.len());
            let words = slice.words.get(changed.clone()).unwrap_or_default();
            if words.is_empty() {
                continue;
            }
            pieces
                .push((self.map.slice_offset(&self.medium, slice.key())? + changed.start as u64 * 8, words));
        }
        pieces.sort_unstable_by_key(|(offset, _)| *offset);
        let together = |a: &(u64, &[u64]), b: &(u64, &[u64])| a.0 + size_of_val(a.1) as u64 == b.0;
        let per_write = (MERGED_BYTES_MAX / self.map.shape.slice_bytes()).max(1);
        let writes = pieces.chunk_by(together).flat_map(|run| run.chunks(per_write));
        let write = |run: &[(u64, &[u64])]| {
            let offset = run.first().map_or(0, |(offset, _)| *offset);
            // Word by word: an iterator over bytes takes longer than all the rest of a flush.
            let mut bytes = Vec::with_capacity(run.iter().map(|(_, words)| size_of_val(*words)).sum());
            for word in run.iter().flat_map(|(_, words)| *words) {
                bytes.extend_from_slice(&word.to_be_bytes());
            }
            async move { self.medium.write_table(offset, &bytes, Section::ActiveL2).await }
        };
        all_of(writes.map(write)).await
    }
}

/// Runs writes side by side and waits for every one of them, also after one has failed: a write that
/// is abandoned may land later, over what the next commit writes there.
async fn all_of(writes: impl Iterator<Item = impl Future<Output = Result<(), Error>>>) -> Result<(), Error> {
    let ended = stream::iter(writes).buffer_unordered(WRITES_AT_ONCE);
    ended.fold(Ok(()), |all, one| async move { all.and(one) }).await
}
