//! Clusters on their way from "nothing refers to it" to "may be given out again".
//!
//! 1. *open*: the entry that referred to it is gone from memory, not yet from the medium.
//! 2. *settled*: the medium has the new entry. Requests that found the old one may still run.
//! 3. When those have left: the refcount goes down (in memory; the next commit writes it), the hole
//!    is punched, and only then the allocator may hand the cluster out.
//!
//! A crash in between leaks the cluster; no other order is safe (docs/write-order.md, free).

use std::sync::Arc;

use qcow2_layout::CompressedCluster;
use sync::atomic::{AtomicU64, Ordering};
use sync::{Event, Mutex};

use crate::Error;
use crate::deliberate::{self, Bug};
use crate::image::Inner;

/// Clusters that lost one reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Free {
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// Whether the space goes back to the file system.
    pub(crate) punch: bool,
}

/// Runs of freed clusters in memory before a commit is due even without a flush: some 200 KiB.
const OPEN_RUNS_MAX: usize = 1 << 13;

/// All clusters on their way.
#[derive(Debug, Default)]
pub(crate) struct Frees {
    state: Mutex<State>,
    idle: Event,
    leaked: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    open: Vec<Free>,
    settled: Vec<Free>,
    reclaiming: bool,
}

impl Frees {
    /// Step 1. Call it after the entry changed in memory.
    pub(crate) fn add(&self, free: Free) {
        let mut state = self.state.lock();
        match state.open.last_mut() {
            Some(last) if last.start + last.len == free.start && last.punch == free.punch => {
                last.len += free.len
            }
            _ => state.open.push(free),
        }
    }

    /// Whether so much waits that a commit is due.
    pub(crate) fn wants_commit(&self) -> bool {
        self.state.lock().open.len() > OPEN_RUNS_MAX
    }

    /// Whether a commit has something to settle.
    pub(crate) fn any_open(&self) -> bool {
        !self.state.lock().open.is_empty()
    }

    /// Whether freed clusters are on their way to the allocator.
    pub(crate) fn is_reclaiming(&self) -> bool {
        self.state.lock().reclaiming
    }

    /// What the commit that starts now will settle. Call it before copying tables.
    pub(crate) fn take_open(&self) -> Vec<Free> {
        std::mem::take(&mut self.state.lock().open)
    }

    /// The commit failed: the medium may still have the old entries.
    pub(crate) fn reopen(&self, frees: Vec<Free>) {
        self.state.lock().open.extend(frees);
    }

    /// Step 2. Returns whether somebody must start reclaiming.
    fn settle(&self, frees: Vec<Free>) -> bool {
        if frees.is_empty() {
            return false;
        }
        let mut state = self.state.lock();
        state.settled.extend(frees);
        !std::mem::replace(&mut state.reclaiming, true)
    }

    /// What is settled; `None` ends reclaiming.
    fn take_settled(&self) -> Option<Vec<Free>> {
        let mut state = self.state.lock();
        if state.settled.is_empty() {
            state.reclaiming = false;
            return None;
        }
        Some(std::mem::take(&mut state.settled))
    }

    /// Clusters that could not be given back: a check finds and frees them.
    pub(crate) fn leaked(&self) -> u64 {
        self.leaked.load(Ordering::Relaxed)
    }

    /// Waits until nothing is being reclaimed.
    pub(crate) async fn idle(&self) {
        loop {
            let idle = self.idle.listen();
            if !self.state.lock().reclaiming {
                return;
            }
            idle.await;
        }
    }
}

/// Reclaiming under way. Should the host drop it half-way, what it had in hand is leaked, what is
/// settled later is taken up by another, and nobody waits for it.
struct Reclaiming {
    image: Arc<Inner>,
    /// Another may have begun by now.
    ended: bool,
}

impl Reclaiming {
    /// Nothing was left to do.
    fn end(mut self) {
        self.ended = true;
    }
}

impl Drop for Reclaiming {
    fn drop(&mut self) {
        let frees = &self.image.space.frees;
        if !self.ended {
            frees.state.lock().reclaiming = false;
        }
        frees.idle.notify(usize::MAX);
    }
}

impl Inner {
    /// Frees the clusters that a compressed cluster touches: one reference each.
    pub(crate) fn free_compressed(&self, cluster: CompressedCluster, punch: bool) {
        let first = cluster.host.0 >> self.medium.geometry.cluster_bits;
        let last = (cluster.host.0 + cluster.len - 1) >> self.medium.geometry.cluster_bits;
        self.space.frees.add(Free { start: first, len: last - first + 1, punch });
    }

    /// Frees one cluster at `host`.
    pub(crate) fn free_cluster(&self, host: u64, punch: bool) {
        self.space.frees.add(Free { start: host >> self.medium.geometry.cluster_bits, len: 1, punch });
    }

    /// The medium no longer refers to `frees`: reclaims them in the background, after the requests
    /// that may still use them.
    pub(crate) fn reclaim(self: &Arc<Self>, frees: Vec<Free>) {
        if self.space.frees.settle(frees) {
            let reclaiming = Reclaiming { image: Arc::clone(self), ended: false };
            self.medium.host.spawn(Box::pin(async move {
                let image = &reclaiming.image;
                while let Some(settled) = image.space.frees.take_settled() {
                    if !deliberate::has(Bug::GraceSkipped) {
                        image.turns.gate.grace().await;
                    }
                    image.decompressed.clear();
                    image.release(settled).await;
                }
                reclaiming.end();
            }));
        }
    }

    /// Takes one reference from each cluster; those that then have none are punched and given to the
    /// allocator. The last reference goes after the punch: a cluster with refcount 0 is anybody's.
    async fn release(&self, frees: Vec<Free>) {
        let mut unused: Vec<Free> = Vec::new();
        for free in frees {
            self.release_shared(free, &mut unused).await;
        }
        unused.sort_unstable_by_key(|free| free.start);
        unused.dedup_by(|next, run| {
            let joins = run.start + run.len == next.start && run.punch == next.punch;
            if joins {
                run.len += next.len;
            }
            joins
        });
        for run in unused {
            if !deliberate::has(Bug::PunchTooLate) {
                self.punch(run).await;
            }
            self.lower_and_give(run.start, run.len).await;
            if deliberate::has(Bug::PunchTooLate) {
                self.punch(run).await;
            }
        }
    }

    /// Lowers the refcounts of those clusters that others refer to as well; the others are `unused`.
    async fn release_shared(&self, free: Free, unused: &mut Vec<Free>) {
        let end = free.start + free.len;
        let mut at = free.start;
        while at < end {
            let (len, shared) = match self.space.refcounts.alike(at, end - at).await {
                Ok(alike) => alike,
                Err(error) => {
                    self.leaked(error);
                    at += 1;
                    continue;
                }
            };
            match shared {
                true => self.lower_and_give(at, len).await,
                false => unused.push(Free { start: at, len, punch: free.punch }),
            }
            at += len;
        }
    }

    /// A cluster cannot be given back. No request waits for that: it is counted and logged.
    pub(crate) fn leaked(&self, error: Error) {
        tracing::error!("cannot free a cluster; it is leaked: {error}");
        self.space.frees.leaked.fetch_add(1, Ordering::Relaxed);
        let _: Result<(), Error> = self.medium.noticing_corruption(Err(error));
    }

    pub(crate) async fn punch(&self, run: Free) {
        if !run.punch {
            return;
        }
        let bits = self.medium.geometry.cluster_bits;
        if let Err(error) = self.medium.file.discard(run.start << bits, run.len << bits).await {
            // The clusters are free all the same; only the space stays with the file.
            tracing::debug!(
                "{}: cannot give space back to the file system: {error}",
                self.medium.blame.name()
            );
        }
    }
}
