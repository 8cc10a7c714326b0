//! Writing metadata in order: the one place where tables reach the medium.
//!
//! A commit takes what is dirty when it starts and writes, with a barrier (flush) where the
//! arrow is: refcounts and what waits for nothing -> L2 slices and L1 entries that wait for refcounts and
//! data -> done; where nothing waits, the first barrier is the last. Flushes that wait at the same
//! time share one commit. docs/write-order.md says what a crash between any two steps leaves.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use map_cache::Dirty;
use sync::{Event, EventListener, Mutex};

use crate::Error;
use crate::deliberate::{self, Bug};
use crate::image::Inner;
use crate::l1::DirtySector;
use crate::overlap::Section;
use crate::refcount::DirtyTable;
use crate::table_io::write_bytes;
use crate::waiting::Waited;

/// Table writes of one commit that are in flight at the same time.
const WRITES_AT_ONCE: usize = 32;

/// Largest write made of neighbouring slices.
const MERGED_BYTES_MAX: usize = 2 << 20;

/// One commit at a time; those who come meanwhile share the next one.
#[derive(Debug, Default)]
pub(crate) struct Committer {
    state: Mutex<State>,
    finished: Event,
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    started: u64,
    finished: u64,
    /// The number of the last commit that failed, and why. Whoever waits for it or for an earlier one
    /// is told, also if a later commit made good what it missed: no error goes unreported.
    failed: Option<(u64, Error)>,
}

/// What to do to be sure of a commit that starts from now on.
enum Turn {
    Start,
    Wait(EventListener),
    Done(Result<(), Error>),
}

impl Committer {
    /// Waits until no commit is under way.
    pub(crate) async fn idle(&self) {
        loop {
            let finished = self.finished.listen();
            if !self.state.lock().running {
                return;
            }
            finished.await;
        }
    }

    fn next(&self) -> u64 {
        self.state.lock().started + 1
    }

    fn turn(&self, target: u64) -> Turn {
        let mut state = self.state.lock();
        if state.finished >= target {
            let failed = state.failed.as_ref().filter(|(number, _)| *number >= target);
            return Turn::Done(failed.map_or(Ok(()), |(_, error)| Err(error.clone())));
        }
        if state.running {
            return Turn::Wait(self.finished.listen());
        }
        state.running = true;
        state.started += 1;
        Turn::Start
    }

    fn finish(&self, result: Result<(), Error>) {
        let mut state = self.state.lock();
        state.running = false;
        state.finished = state.started;
        if let Err(error) = result {
            state.failed = Some((state.started, error));
        }
        drop(state);
        self.finished.notify(usize::MAX);
    }
}

/// A commit under way; one that is dropped half-way has failed.
struct Running(Option<Arc<Inner>>);

impl Running {
    fn finish(mut self, result: Result<(), Error>) {
        if let Some(image) = self.0.take() {
            image.committer.finish(result);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(image) = self.0.take() {
            image
                .committer
                .finish(Err(image.blame.refused("the program stopped while metadata was written")));
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

    /// Waits for a commit that starts after this call; starts it if nobody else does.
    pub(crate) async fn commit(self: &Arc<Self>) -> Result<(), Error> {
        self.check_not_stopped()?;
        let target = self.committer.next();
        loop {
            match self.committer.turn(target) {
                Turn::Done(result) => return result,
                Turn::Wait(finished) => finished.await,
                Turn::Start => {
                    let running = Running(Some(Arc::clone(self)));
                    let image = Arc::clone(self);
                    self.host.spawn(Box::pin(async move {
                        let result = image.write_metadata(!image.is_lazy()).await;
                        running.finish(result);
                    }));
                }
            }
        }
    }

    /// Whether memory holds enough that should be written soon.
    pub(crate) fn wants_commit(&self) -> bool {
        self.cache.wants_write_back() || self.frees.wants_commit()
    }

    /// Whether anything in memory differs from the file.
    pub(crate) fn is_dirty(&self) -> bool {
        self.cache.dirty_slices() > 0
            || self.l1.is_dirty()
            || self.frees.any_open()
            || (!self.is_lazy() && self.refcounts.is_dirty())
    }

    pub(crate) async fn write_metadata(self: &Arc<Self>, with_refcounts: bool) -> Result<(), Error> {
        self.fill_reserve().await?;
        self.reserve.count();
        let clusters = self.file.length() >> self.geometry.cluster_bits;
        // Before the copies: the entries that gave up these clusters are then in them.
        let frees = self.frees.take_open();
        if deliberate::has(Bug::PunchTooEarly) {
            for free in &frees {
                self.punch(*free).await;
            }
        }
        // Before the refcounts: whatever an entry in a copy leads to has its refcount raised in
        // memory already, and its data written.
        let sectors = self.l1.take_dirty();
        let slices = self.cache.copy_dirty();
        let waited = self.waiting.take();
        match self.write_in_order(&sectors, &slices, &waited, with_refcounts).await {
            Ok(()) => {
                self.cache.written(&slices);
                self.reserve.settle(clusters);
                self.reclaim(frees);
                Ok(())
            }
            Err(error) => {
                self.l1.not_written(&sectors);
                self.waiting.put_back(waited);
                self.frees.reopen(frees);
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
            self.barrier().await?;
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
            return self.barrier().await;
        }
        if !deliberate::has(Bug::MissingFlush) {
            self.barrier().await?;
        }
        self.write_slices(&bound).await?;
        if waited.l1 {
            self.write_l1(sectors).await?;
        }
        self.barrier().await
    }

    async fn write_l1(&self, sectors: &[DirtySector]) -> Result<(), Error> {
        let write = |sector: &DirtySector| {
            let (offset, bytes) = (sector.offset, sector.bytes.clone());
            async move { self.write_table(offset, &bytes, Section::ActiveL1).await }
        };
        all_of(sectors.iter().map(write)).await
    }

    /// Everything that completed before is on the medium when this returns.
    pub(crate) async fn barrier(&self) -> Result<(), Error> {
        if self.geometry.external_data {
            self.data.flush().await.map_err(self.blame.io("flushing the data file"))?;
        }
        self.file.flush().await.map_err(self.blame.io("flushing"))
    }

    /// Refcount blocks first, behind a barrier the table that leads to new ones.
    pub(crate) async fn write_refcounts(self: &Arc<Self>) -> Result<(), Error> {
        // Table before blocks: what the copied sectors lead to is then in the copies or in the file. A
        // block that is made later belongs to the next commit, table entry and all.
        let sectors = self.dirty_table_sectors().await?;
        let blocks = self.refcounts.copy_dirty()?;
        let writes = blocks
            .iter()
            .map(|(offset, block)| self.write_table(offset.0, &block.bytes, Section::RefcountBlock));
        all_of(writes).await?;
        blocks.iter().for_each(|(_, block)| block.written());
        if sectors.is_empty() {
            return Ok(());
        }
        self.barrier().await?;
        for (offset, bytes) in &sectors {
            self.write_table(*offset, bytes, Section::RefcountTable).await?;
        }
        self.refcounts.table.write().written(&sectors);
        Ok(())
    }

    /// The sectors of the refcount table to be written in place, after making room if it has outgrown
    /// its clusters.
    async fn dirty_table_sectors(self: &Arc<Self>) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        loop {
            self.make_room_for_table().await?;
            let dirty = self.refcounts.table.read().dirty();
            match dirty {
                DirtyTable::Clean => return Ok(Vec::new()),
                DirtyTable::Sectors(sectors) => return Ok(sectors),
                DirtyTable::Outgrown(_) => {}
            }
        }
    }

    /// Moves the refcount table if it has outgrown its clusters: the new one is complete on the
    /// medium before the header leads to it, the old one is freed after that.
    async fn make_room_for_table(self: &Arc<Self>) -> Result<(), Error> {
        loop {
            let dirty = self.refcounts.table.read().dirty();
            let DirtyTable::Outgrown(clusters) = dirty else { return Ok(()) };
            let run = self.allocate_exactly(clusters).await?;
            // The allocation may have made blocks that need a still larger table.
            let dirty = self.refcounts.table.read().dirty();
            if matches!(dirty, DirtyTable::Outgrown(needed) if needed > clusters) {
                self.give_back(run).await;
                continue;
            }
            let offset = run.start << self.geometry.cluster_bits;
            match self.write_new_table(offset, clusters).await {
                Ok(bytes) => return self.move_table(offset, clusters, &bytes).await,
                Err(error) => {
                    self.give_back(run).await;
                    return Err(error);
                }
            }
        }
    }

    /// A copy of the whole table at `offset`, and all blocks that it leads to: complete on the medium
    /// when this returns.
    async fn write_new_table(self: &Arc<Self>, offset: u64, clusters: u64) -> Result<Vec<u8>, Error> {
        // Table before blocks, as in write_refcounts.
        let bytes = self.refcounts.table.read().encode_all(clusters);
        let bytes = bytes.map_err(|_| self.blame.no_memory("the refcount table"))?;
        let blocks = self.refcounts.copy_dirty()?;
        for (at, block) in &blocks {
            self.write_table(at.0, &block.bytes, Section::RefcountBlock).await?;
        }
        self.write_table(offset, &bytes, Section::RefcountTable).await?;
        self.barrier().await?;
        blocks.iter().for_each(|(_, block)| block.written());
        Ok(bytes)
    }

    /// Lets the header lead to the copy of the table at `offset`. If that fails the medium may have
    /// the old header or the new one: neither table is given back, one of them is leaked.
    async fn move_table(self: &Arc<Self>, offset: u64, clusters: u64, bytes: &[u8]) -> Result<(), Error> {
        self.point_header_at_refcount_table(offset, clusters).await?;
        let (old_offset, old_clusters) = {
            let mut table = self.refcounts.table.write();
            let old = (table.offset(), table.clusters());
            table.moved(offset, clusters, bytes);
            old
        };
        self.overlap.remove(old_offset);
        self.overlap.add(offset, clusters << self.geometry.cluster_bits, Section::RefcountTable);
        let start = old_offset >> self.geometry.cluster_bits;
        self.reclaim(vec![crate::free::Free {
            start,
            len: old_clusters,
            punch: self.discards().pass_discard_other,
        }]);
        Ok(())
    }

    async fn write_slices(self: &Arc<Self>, slices: &[&Dirty]) -> Result<(), Error> {
        let mut placed = Vec::with_capacity(slices.len());
        for slice in slices {
            placed.push((self.slice_offset(slice.key())?, *slice));
        }
        placed.sort_unstable_by_key(|(offset, _)| *offset);
        let slice_bytes = self.shape.slice_bytes();
        let together = |a: &(u64, &Dirty), b: &(u64, &Dirty)| a.0 + slice_bytes as u64 == b.0;
        let per_write = (MERGED_BYTES_MAX / slice_bytes).max(1);
        let writes = placed.chunk_by(together).flat_map(|run| run.chunks(per_write));
        let write = |run: &[(u64, &Dirty)]| {
            let offset = run.first().map_or(0, |(offset, _)| *offset);
            let words = run.iter().flat_map(|(_, slice)| slice.words.iter());
            let mut bytes = Vec::with_capacity(run.len() * slice_bytes);
            words.for_each(|word| bytes.extend_from_slice(&word.to_be_bytes()));
            async move { self.write_table(offset, &bytes, Section::ActiveL2).await }
        };
        all_of(writes.map(write)).await
    }

    /// Writes metadata of one kind, unless metadata of another kind is in the way.
    pub(crate) async fn write_table(&self, offset: u64, bytes: &[u8], section: Section) -> Result<(), Error> {
        if let Some((at, other)) = self.overlap.touched(offset, bytes.len() as u64, Some(section)) {
            return self.noticing_corruption(Err(self
                .blame
                .corrupt(format!("writing {section} at {offset:#x} would overwrite {other} at {at:#x}"))));
        }
        write_bytes(&*self.file, offset, bytes).await.map_err(self.blame.io("writing metadata"))
    }
}

/// Runs writes side by side and waits for every one of them, also after one has failed: a write that
/// is abandoned may land later, over what the next commit writes there.
async fn all_of(writes: impl Iterator<Item = impl Future<Output = Result<(), Error>>>) -> Result<(), Error> {
    let ended = stream::iter(writes).buffer_unordered(WRITES_AT_ONCE);
    ended.fold(Ok(()), |all, one| async move { all.and(one) }).await
}
