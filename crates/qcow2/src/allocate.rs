//! Getting clusters of the file, and giving them back when the request that wanted them failed.
//!
//! Everything here changes refcounts in memory only. A commit writes them before any table entry
//! that leads to the clusters (docs/write-order.md).

use std::io::{self, ErrorKind};

use qcow2_layout::HOST_OFFSET_LIMIT;

use crate::Error;
use crate::allocator::{Allocator, Run};
use crate::image::Inner;
use crate::overlap::Section;
use crate::refcount::{Claim, Lowered};
use crate::reserve::Reserved;

/// Clusters allocated at a time at most: bounds the metadata that one request dirties at once.
const RUN_CLUSTERS_MAX: u64 = 1 << 16;

impl Inner {
    /// Between 1 and `wanted` consecutive clusters, with refcount 1 from now on.
    pub(crate) async fn allocate(&self, wanted: u64) -> Result<Run, Error> {
        if let Some(run) = self.reserve.take(wanted) {
            return Ok(run);
        }
        let run = self.claim_free(wanted).await?;
        self.make_room(run.end()).await;
        Ok(run)
    }

    /// The same for guest clusters from number `guest` on: behind those of the guest clusters before them, where
    /// one is written after the other.
    pub(crate) async fn allocate_for(&self, guest: u64, wanted: u64) -> Result<Run, Error> {
        let run = match self.reserve.take_for(guest, wanted) {
            Reserved::Run(run) => run,
            Reserved::Nothing { wanted, ahead, row } => {
                let run = self.claim_free(wanted + ahead).await?;
                self.reserve.keep_rest(guest, run, wanted, row)
            }
        };
        // After the rest is kept: those who go on there meanwhile find their places, and wait for room too.
        self.make_room(run.end()).await;
        Ok(run)
    }

    /// Clusters that are not of the reserve; the file may be too short for them yet.
    async fn claim_free(&self, wanted: u64) -> Result<Run, Error> {
        self.scan_for_free_clusters().await?;
        loop {
            let run = self.taken(|allocator| allocator.take(wanted.min(RUN_CLUSTERS_MAX))).await?;
            if let Some(run) = self.claim(run).await? {
                return Ok(run);
            }
        }
    }

    /// What `take` takes. Where the medium ends, every refcount block is looked at before giving up.
    async fn taken(&self, take: impl Fn(&mut Allocator) -> Option<Run>) -> Result<Run, Error> {
        // The header that the medium may have leads to clusters that memory takes for free.
        self.check_not_stopped()?;
        loop {
            let run = take(&mut self.allocator.lock());
            match run {
                Some(run) => return Ok(run),
                None if self.scan_for_free_clusters().await? || self.empty_reserve(false).await => {}
                None => {
                    return Err(self.blame.io("looking for free clusters")(ErrorKind::StorageFull.into()));
                }
            }
        }
    }

    /// Exactly `wanted` consecutive clusters, with refcount 1 from now on.
    pub(crate) async fn allocate_exactly(&self, wanted: u64) -> Result<Run, Error> {
        loop {
            let run = self.taken(|allocator| allocator.take_exactly(wanted)).await?;
            match self.claim(run).await? {
                Some(claimed) if claimed.len == wanted => {
                    self.make_room(claimed.end()).await;
                    return Ok(claimed);
                }
                Some(claimed) => self.give_back(claimed).await,
                None => {}
            }
        }
    }

    /// Looks for free clusters in one more refcount block: a little work for each allocation, so
    /// that none waits for all of a large file. Says whether there was one left.
    async fn scan_for_free_clusters(&self) -> Result<bool, Error> {
        let Some(index) = self.allocator.lock().next_scan() else { return Ok(false) };
        let entries = self.geometry.refcount_block_entries();
        let first = index * entries;
        let Some(block) = self.refcounts.block(index).await? else {
            // No block: all of its clusters are free, where the file has any.
            let mut allocator = self.allocator.lock();
            let end = (first + entries).min(allocator.frontier_at_open());
            allocator.find(first, end.saturating_sub(first));
            return Ok(true);
        };
        let order = self.geometry.refcount_order;
        let mut allocator = self.allocator.lock();
        let end = allocator.frontier_at_open().saturating_sub(first).min(entries);
        block.read(|bytes| {
            let mut run_start = None;
            for at in 0..=end {
                let free = at < end && qcow2_layout::refcount_get(bytes, at, order) == Some(0);
                match (free, run_start) {
                    (true, None) => run_start = Some(at),
                    (false, Some(start)) => {
                        allocator.find(first + start, at - start);
                        run_start = None;
                    }
                    (true, Some(_)) | (false, None) => {}
                }
            }
        });
        Ok(true)
    }

    /// Raises the refcounts of `run` to 1, up to the first cluster that turns out to be in use. What
    /// is left of the run goes back. `None` if the first cluster is in use.
    pub(crate) async fn claim(&self, run: Run) -> Result<Option<Run>, Error> {
        let mut claimed = 0;
        let result = self.claim_all(run, &mut claimed).await;
        let got = Run { len: claimed, ..run };
        let next = run.start + claimed;
        match result {
            Ok(0) => {}
            // What is in use is not ours to give.
            Ok(in_use) => {
                let mut allocator = self.allocator.lock();
                allocator.skip(next, in_use);
                allocator.find(next + in_use, run.end().saturating_sub(next + in_use));
            }
            Err(error) => {
                self.give_back(got).await;
                self.allocator.lock().find(next, run.len - claimed);
                return Err(error);
            }
        }
        Ok((claimed > 0).then_some(got))
    }

    /// Claims until all of `run` is, or a cluster is in use: says how many are from there on.
    async fn claim_all(&self, run: Run, claimed: &mut u64) -> Result<u64, Error> {
        if run.end() > HOST_OFFSET_LIMIT >> self.geometry.cluster_bits {
            let limit = format!("it would have more than {HOST_OFFSET_LIMIT} bytes, the limit of the format");
            let error = io::Error::new(ErrorKind::FileTooLarge, limit);
            return Err(self.blame.io("growing the image file")(error));
        }
        while *claimed < run.len {
            match self.refcounts.claim(run.start + *claimed, run.len - *claimed).await? {
                Claim::Claimed(len) => *claimed += len,
                Claim::InUse(len) => return Ok(len),
                Claim::NoBlock(index) => self.make_block(index).await?,
            }
        }
        Ok(0)
    }

    /// Makes refcount block `index`. Its cluster is a fresh one, as long as there are any: in the range of the block itself, of
    /// a block that exists, or of one that is then made in it as well.
    async fn make_block(&self, index: u64) -> Result<(), Error> {
        let _one_at_a_time = self.making_blocks.lock().await;
        while self.refcounts.table_entry(index)?.is_none() {
            let fresh_first =
                |allocator: &mut Allocator| allocator.take_fresh(1).or_else(|| allocator.take(1));
            let cluster = self.taken(fresh_first).await?.start;
            self.make_room(cluster + 1).await;
            let home = self.refcounts.block_of(cluster);
            let made = if home == index {
                index
            } else {
                match self.refcounts.claim(cluster, 1).await? {
                    Claim::InUse(len) => {
                        self.allocator.lock().skip(cluster, len);
                        continue;
                    }
                    Claim::Claimed(_) => index,
                    Claim::NoBlock(home) => home,
                }
            };
            self.refcounts.add_block(made, cluster).await?;
            let offset = cluster << self.geometry.cluster_bits;
            self.overlap.add(offset, self.geometry.cluster_size(), Section::RefcountBlock);
        }
        Ok(())
    }

    /// Undoes an allocation whose clusters nothing refers to and no request uses any more. What
    /// cannot be undone is leaked.
    pub(crate) async fn give_back(&self, run: Run) {
        // Not fresh any more: the failed request may have written there.
        self.lower_and_give(run.start, run.len).await;
    }

    /// Takes one reference from each cluster, and gives those that have none left to the allocator.
    pub(crate) async fn lower_and_give(&self, start: u64, len: u64) {
        let mut at = start;
        while at < start + len {
            match self.refcounts.lower_run(at, start + len - at).await {
                Ok(Lowered { len, left: 0 }) => {
                    self.allocator.lock().give(at, len);
                    at += len;
                }
                Ok(Lowered { len, .. }) => at += len,
                Err(error) => {
                    self.leaked(error);
                    at += 1;
                }
            }
        }
    }
}
