//! Giving clusters up, and taking them back once no request can be using them any more.

use qcow2_layout::{CompressedCluster, HostOffset, L2Entry};
use storage::Step;

use crate::Error;
use crate::deliberate::{self, Bug};
use crate::free::Free;
use crate::health::Contradiction;
use crate::medium::Medium;
use crate::space::Space;

impl Space {
    /// Frees what an entry that was replaced referred to.
    pub(crate) fn free_entry(&self, medium: &Medium, entry: &L2Entry, punch: bool) {
        match entry {
            L2Entry::Compressed(cluster) => self.free_compressed(medium, *cluster, punch),
            L2Entry::Standard(cluster) if !medium.geometry.external_data => {
                cluster.host.into_iter().for_each(|host| self.free_cluster(medium, host, punch));
            }
            L2Entry::Standard(_) => {}
        }
    }

    /// Frees the clusters that a compressed cluster touches: one reference each.
    fn free_compressed(&self, medium: &Medium, cluster: CompressedCluster, punch: bool) {
        let first = cluster.host.0 >> medium.geometry.cluster_bits;
        let last = (cluster.host.0 + cluster.len - 1) >> medium.geometry.cluster_bits;
        self.frees.add(Free { start: first, len: last - first + 1, punch });
    }

    /// Frees one cluster at `host`.
    pub(crate) fn free_cluster(&self, medium: &Medium, host: HostOffset, punch: bool) {
        self.frees.add(Free { start: host.0 >> medium.geometry.cluster_bits, len: 1, punch });
    }

    /// Takes one reference from each cluster; those that then have none are punched and given to the
    /// allocator. The last reference goes after the punch: a cluster with refcount 0 may be allocated.
    pub(crate) async fn release(&self, medium: &Medium, frees: Vec<Free>) {
        medium.about_to(Step::ClusterFree);
        let mut unused: Vec<Free> = Vec::new();
        for free in frees {
            self.release_shared(medium, free, &mut unused).await;
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
                self.punch(medium, run).await;
            }
            self.lower_and_give(medium, run.start..run.start + run.len).await;
            if deliberate::has(Bug::PunchTooLate) {
                self.punch(medium, run).await;
            }
        }
    }

    /// Lowers the refcounts of those clusters that others refer to as well; the others are `unused`.
    async fn release_shared(&self, medium: &Medium, free: Free, unused: &mut Vec<Free>) {
        let end = free.start + free.len;
        let mut at = free.start;
        while at < end {
            let (len, shared) = match self.refcounts.alike(at..end).await {
                Ok(alike) => alike,
                Err(error) => {
                    self.leaked(medium, error);
                    at += 1;
                    continue;
                }
            };
            match shared && !deliberate::has(Bug::PackedNeighboursPunched) {
                true => self.lower_and_give(medium, at..at + len).await,
                false => unused.push(Free { start: at, len, punch: free.punch }),
            }
            at += len;
        }
    }

    /// A cluster cannot be given back. No request waits for that: it is counted and logged.
    pub(crate) fn leaked(&self, medium: &Medium, error: Error) {
        tracing::error!("cannot free a cluster; it is leaked: {error}");
        self.frees.count_leaked();
        let _: Result<(), Error> = medium.noticing_corruption(Contradiction::Refcount, Err(error));
    }

    pub(crate) async fn punch(&self, medium: &Medium, run: Free) {
        if !run.punch {
            return;
        }
        let bits = medium.geometry.cluster_bits;
        if let Err(error) = medium.file.discard(run.start << bits, run.len << bits).await {
            // The clusters are free all the same; only the space stays with the file.
            tracing::debug!("{}: cannot give space back to the file system: {error}", medium.blame.name());
        }
    }
}
