//! Getting clusters of the file, and giving them back when the request that wanted them failed.
//!
//! Everything here changes refcounts in memory only. A commit writes them before any table entry
//! that leads to the clusters (docs/internals/write-order.md).

use std::io::{self, ErrorKind};
use std::ops::Range;

use qcow2_layout::{HOST_OFFSET_LIMIT, HostOffset};
use storage::Step;

use crate::Error;
use crate::allocator::{Allocator, Run};
use crate::medium::Medium;
use crate::overlap::Section;
use crate::refcount::{Claim, Lowered};
use crate::reserve::Reserved;
use crate::space::Space;

/// Clusters allocated at a time at most: bounds the metadata that one request dirties at once.
const RUN_CLUSTERS_MAX: u64 = 1 << 16;

/// Refcounts that are looked at in one go, and ...
const SCANNED_MAX: u64 = 1 << 15;

/// ... runs of free clusters that are found there at most.
const FOUND_MAX: usize = 1024;

/// Times that an allocation looks for free clusters which memory did not hold, before it takes new ones.
const SCANS_MAX: usize = 64;

/// The memory of the allocator is charged in such steps.
const CHARGED_AT_ONCE: u64 = 64 << 10;

/// For whom refcounts are raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claimant {
    /// Any other use.
    Anybody,
    /// The commit that moves the refcount table, to clusters that were set aside.
    RefcountTable,
}

impl Space {
    /// Between 1 and `wanted` consecutive clusters, with refcount 1 from now on.
    pub(crate) async fn allocate(&self, medium: &Medium, wanted: u64) -> Result<Run, Error> {
        let run = match self.reserve.take(wanted) {
            Some(run) => run,
            None => self.claim_free(medium, wanted).await?,
        };
        Ok(self.hand_out(medium, run).await)
    }

    /// The same for guest clusters from number `guest` on: behind those of the guest clusters before them, where
    /// one is written after the other.
    pub(crate) async fn allocate_for(&self, medium: &Medium, guest: u64, wanted: u64) -> Result<Run, Error> {
        let run = match self.reserve.take_for(guest, wanted) {
            Reserved::Run(run) => run,
            Reserved::Nothing { wanted, ahead, row } => {
                let run = self.claim_free(medium, wanted + ahead).await?;
                self.reserve.keep_rest(guest, run, wanted, row)
            }
        };
        // After the rest is kept: writers that continue there meanwhile find their places, and wait for room too.
        Ok(self.hand_out(medium, run).await)
    }

    /// The one way out for clusters, wherever they come from: the file is long enough for them, so that writing to them
    /// does not make it longer. What is in the reserve may lie beyond the end.
    async fn hand_out(&self, medium: &Medium, run: Run) -> Run {
        medium.about_to(Step::ClusterAlloc);
        self.make_room(medium, run.end()).await;
        run
    }

    /// Clusters that are not of the reserve; the file may be too short for them yet.
    async fn claim_free(&self, medium: &Medium, wanted: u64) -> Result<Run, Error> {
        for _ in 0..SCANS_MAX {
            if !self.scan_for_free_clusters(medium).await? || !self.allocator.lock().should_look_further() {
                break;
            }
        }
        loop {
            let run = self.taken(medium, |allocator| allocator.take(wanted.min(RUN_CLUSTERS_MAX))).await?;
            if let Some(run) = self.claim(medium, run).await? {
                return Ok(run);
            }
        }
    }

    /// What `take` takes. Where the file ends, every refcount block is looked at before giving up.
    pub(crate) async fn taken(
        &self,
        medium: &Medium,
        take: impl Fn(&mut Allocator) -> Option<Run>,
    ) -> Result<Run, Error> {
        // The header that the file may have leads to clusters that memory takes for free.
        medium.check_not_stopped()?;
        loop {
            let run = take(&mut self.allocator.lock());
            match run {
                Some(run) => return Ok(run),
                None if self.scan_for_free_clusters(medium).await?
                    || self.empty_reserve(medium, false).await => {}
                None => {
                    return Err(medium.blame.io("looking for free clusters")(ErrorKind::StorageFull.into()));
                }
            }
        }
    }

    /// Exactly `wanted` consecutive clusters, with refcount 1 from now on.
    pub(crate) async fn allocate_exactly(&self, medium: &Medium, wanted: u64) -> Result<Run, Error> {
        loop {
            let run = self.taken(medium, |allocator| allocator.take_exactly(wanted)).await?;
            match self.claim(medium, run).await? {
                Some(claimed) if claimed.len == wanted => return Ok(self.hand_out(medium, claimed).await),
                Some(claimed) => self.give_back(medium, claimed).await,
                None => {}
            }
        }
    }

    /// Looks for free clusters in a part of one more refcount block: a little work for each allocation, so
    /// that none waits for all of a large file. Says whether there was one left. The allocator is locked for no longer than
    /// it takes to enter [`FOUND_MAX`] runs.
    async fn scan_for_free_clusters(&self, medium: &Medium) -> Result<bool, Error> {
        let Some((from, end)) = self.allocator.lock().next_scan() else { return Ok(false) };
        let entries = medium.geometry.refcount_block_entries();
        let index = from / entries;
        let first = index * entries;
        let end = end.min(first + entries);
        match self.refcounts.block(index).await? {
            // No block: all of its clusters are free, where the file has any.
            None => {
                let found: Vec<_> = self.room.without_aside((from, end - from)).collect();
                self.allocator.lock().scanned(from..end, &found);
            }
            Some(block) => {
                let order = medium.geometry.refcount_order;
                let range = from - first..(end - first).min(from - first + SCANNED_MAX);
                let (to, found) = block.read(|bytes| free_runs(bytes, range, order));
                let found = found.into_iter().map(|(start, len)| (first + start, len));
                let found: Vec<_> = found.flat_map(|run| self.room.without_aside(run)).collect();
                self.allocator.lock().scanned(from..first + to, &found);
            }
        }
        self.charge_allocator();
        Ok(true)
    }

    /// Free clusters in memory count as a part of what all caches may take.
    fn charge_allocator(&self) {
        let bytes = self.allocator.lock().memory_bytes().next_multiple_of(CHARGED_AT_ONCE);
        let mut charged = self.allocator_charge.lock();
        if charged.as_ref().map_or(0, |(bytes, _)| *bytes) != bytes {
            *charged = None;
            *charged = Some((bytes, self.budget.charge(bytes)));
        }
    }

    /// Raises the refcounts of `run` to 1, up to the first cluster that turns out to be in use. What
    /// is left of the run goes back. `None` if the first cluster is in use.
    pub(crate) async fn claim(&self, medium: &Medium, run: Run) -> Result<Option<Run>, Error> {
        self.claim_for(medium, run, Claimant::Anybody).await
    }

    /// The clusters that were set aside for a larger refcount table.
    pub(crate) async fn claim_table_aside(&self, medium: &Medium) -> Result<Option<Run>, Error> {
        let Some(run) = self.room.take_table_aside() else { return Ok(None) };
        match self.claim_for(medium, run, Claimant::RefcountTable).await? {
            Some(claimed) if claimed.len == run.len => Ok(Some(claimed)),
            Some(claimed) => {
                self.give_back(medium, claimed).await;
                Ok(None)
            }
            None => Ok(None),
        }
    }

    /// Clusters that were set aside and are not needed any more go to the allocator.
    pub(crate) fn free_aside(&self, rest: Option<Run>) {
        if let Some(rest) = rest {
            self.allocator.lock().give(rest.clusters());
        }
    }

    async fn claim_for(&self, medium: &Medium, run: Run, claimant: Claimant) -> Result<Option<Run>, Error> {
        let mut claimed = 0;
        let result = self.claim_all(medium, run, &mut claimed, claimant).await;
        let got = Run { len: claimed, ..run };
        let next = run.start + claimed;
        match result {
            Ok(0) => {}
            // What is in use is not ours to give.
            Ok(in_use) => {
                let mut allocator = self.allocator.lock();
                allocator.skip(next..next + in_use);
                allocator.find(next + in_use..run.end());
            }
            Err(error) => {
                self.give_back(medium, got).await;
                self.allocator.lock().find(next..run.end());
                return Err(error);
            }
        }
        Ok((claimed > 0).then_some(got))
    }

    /// Claims until all of `run` is, or a cluster is in use: says how many are from there on.
    async fn claim_all(
        &self,
        medium: &Medium,
        run: Run,
        claimed: &mut u64,
        claimant: Claimant,
    ) -> Result<u64, Error> {
        if run.end() > HOST_OFFSET_LIMIT >> medium.geometry.cluster_bits {
            let limit = format!("it would have more than {HOST_OFFSET_LIMIT} bytes, the limit of the format");
            let error = io::Error::new(ErrorKind::FileTooLarge, limit);
            return Err(medium.blame.io("growing the image file")(error));
        }
        while *claimed < run.len {
            self.take_room_of_block(medium, self.refcounts.block_of(run.start + *claimed)).await?;
            match self.refcounts.claim(run.start + *claimed..run.end()).await? {
                Claim::Claimed(len) => *claimed += len,
                Claim::InUse(len) => return Ok(len),
                Claim::NoBlock(index) => self.make_block(medium, index, claimant).await?,
            }
        }
        Ok(0)
    }

    /// Makes refcount block `index`. Its cluster is a fresh one, as long as there are any: in the range of the block itself, of
    /// a block that exists, or of one that is then made in it as well.
    async fn make_block(&self, medium: &Medium, index: u64, claimant: Claimant) -> Result<(), Error> {
        let _one_at_a_time = self.making_blocks.lock().await;
        while self.refcounts.table_entry(index)?.is_none() {
            let run = self.hand_out(medium, self.cluster_of_block(medium, claimant).await?).await;
            let home = self.refcounts.block_of(run.start);
            let counted = home != index && self.refcounts.table_entry(home)?.is_some();
            let made = if counted { index } else { home };
            if let Err(error) = self.take_room_of_new_block(medium, &run, made, claimant).await {
                self.allocator.lock().give(run.clusters());
                return Err(error);
            }
            if counted && let Claim::InUse(len) = self.refcounts.claim(run.start..run.start + 1).await? {
                self.allocator.lock().skip(run.start..run.start + len);
                continue;
            }
            self.refcounts.add_block(made, HostOffset(run.start << medium.geometry.cluster_bits)).await?;
            let offset = run.start << medium.geometry.cluster_bits;
            medium.overlap.add(offset, medium.geometry.cluster_size(), Section::RefcountBlock);
        }
        Ok(())
    }

    async fn cluster_of_block(&self, medium: &Medium, claimant: Claimant) -> Result<Run, Error> {
        if claimant == Claimant::RefcountTable
            && let Some(run) = self.room.take_block_aside()
        {
            return Ok(run);
        }
        self.taken(medium, |allocator| allocator.take_fresh(1).or_else(|| allocator.take(1))).await
    }

    /// Room for a block, for the refcount of its cluster, and for what leads to it.
    async fn take_room_of_new_block(
        &self,
        medium: &Medium,
        run: &Run,
        made: u64,
        claimant: Claimant,
    ) -> Result<(), Error> {
        self.take_room_of_new(medium, run).await?;
        self.take_room_of_block(medium, self.refcounts.block_of(run.start)).await?;
        match claimant {
            Claimant::Anybody => self.take_room_in_refcount_table(medium, made).await,
            // It is about to move.
            Claimant::RefcountTable => Ok(()),
        }
    }

    /// Undoes an allocation whose clusters nothing refers to and no request uses any more. What
    /// cannot be undone is leaked.
    pub(crate) async fn give_back(&self, medium: &Medium, run: Run) {
        // Not fresh any more: the failed request may have written there.
        self.lower_and_give(medium, run.clusters()).await;
    }

    /// Takes one reference from each cluster, and gives those that have none left to the allocator.
    pub(crate) async fn lower_and_give(&self, medium: &Medium, clusters: Range<u64>) {
        let Range { start: mut at, end } = clusters;
        while at < end {
            match self.refcounts.lower_run(at..end).await {
                Ok(Lowered { len, left: 0 }) => {
                    self.allocator.lock().give(at..at + len);
                    at += len;
                }
                Ok(Lowered { len, .. }) => at += len,
                Err(error) => {
                    self.leaked(medium, error);
                    at += 1;
                }
            }
        }
        self.charge_allocator();
    }
}

/// Runs of refcounts in `range` of a block that are 0, each with its length; and where looking ended, because there were
/// [`FOUND_MAX`].
fn free_runs(block: &[u8], range: Range<u64>, order: u32) -> (u64, Vec<(u64, u64)>) {
    let mut found: Vec<(u64, u64)> = Vec::new();
    let mut from = range.start;
    while let Some(at) = qcow2_layout::refcount_find_zero(block, from..range.end, order) {
        if found.len() == FOUND_MAX {
            return (at, found);
        }
        let is_free = |index: &u64| qcow2_layout::refcount_get(block, *index, order) == Some(0);
        let len = (at..range.end).take_while(is_free).count() as u64;
        found.push((at, len));
        from = at + len;
    }
    (range.end, found)
}

#[cfg(all(test, not(feature = "shuttle")))]
#[expect(clippy::unwrap_used, reason = "a test that cannot continue fails")]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;
    use storage::MemoryStorage;

    use super::*;
    use crate::{CreateOptions, Files, Host, Options, Qcow2, Work};

    #[derive(Debug)]
    struct Nobody;

    impl Host for Nobody {
        fn spawn(&self, _: Work) {}
    }

    fn image() -> Qcow2 {
        let file = Arc::new(MemoryStorage::new(0));
        let options = CreateOptions { size: 1 << 30, ..CreateOptions::default() };
        crate::create(&*file, None, &options).now_or_never().unwrap().unwrap();
        let files = Files { file, data: None, backing: None };
        let options = Options { writable: true, ..Options::default() };
        Qcow2::open(files, options, Arc::new(Nobody)).now_or_never().unwrap().unwrap()
    }

    /// What was kept for a stream of writes may lie beyond the end of the file: only what that stream asked for had its
    /// room. A table that was given such a cluster was written beyond the end, where another's lengthening of the file,
    /// asked for before and done after it, cut it off.
    #[test]
    fn every_cluster_that_is_handed_out_lies_inside_the_file() {
        let image = image();
        let inner = &image.inner;
        let beyond = (inner.medium.file.length() >> inner.medium.geometry.cluster_bits) + 100;
        let run = |start| Run { start, len: 2, fresh: true, settled: false };
        inner.space.reserve.keep_rest(0, run(beyond), 1, 1);
        // The same place for another: its rest is free for all.
        inner.space.reserve.keep_rest(0, run(beyond + 2), 1, 1);
        let table = inner.space.allocate(&inner.medium, 1).now_or_never().unwrap().unwrap();
        assert_eq!(table.start, beyond + 3, "the rest is what is handed out");
        assert!(
            inner.medium.file.length() >> inner.medium.geometry.cluster_bits >= table.end(),
            "{table:?} is beyond the end"
        );
    }
}
