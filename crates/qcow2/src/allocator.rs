//! Which clusters of the file are free: decided in memory, from refcount blocks as they are scanned.

use std::collections::BTreeMap;

/// Consecutive clusters of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Index of the first cluster.
    pub(crate) start: u64,
    /// Number of clusters, at least one.
    pub(crate) len: u64,
    /// The file never held anything here: on a regular file the clusters read as zeroes.
    pub(crate) fresh: bool,
    /// The medium has their refcounts, and the file is long enough there.
    pub(crate) settled: bool,
}

impl Run {
    /// Clusters that held something before, with refcounts that only memory has.
    pub(crate) fn used(start: u64, len: u64) -> Self {
        Self { start, len, fresh: false, settled: false }
    }

    pub(crate) fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// Free clusters, as far as they are known.
///
/// Invariant: a cluster in `free` or at or beyond `frontier` whose refcount is 0 is referenced by nothing
/// in the file as it is on the medium, nor in memory, and no request still reads or writes it.
#[derive(Debug)]
pub(crate) struct Allocator {
    /// Start -> length; neighbours are joined.
    free: BTreeMap<u64, u64>,
    /// Clusters that were in use at some time since the image was opened and then given up, likewise:
    /// whatever is there, it need not be zeroes.
    tainted: BTreeMap<u64, u64>,
    /// First cluster beyond everything that the file ever held; on a device, that the image did.
    frontier: u64,
    /// First cluster that the file can never have: the end of a device.
    end: u64,
    /// The frontier when the image was opened: only clusters below it need scanning.
    frontier_at_open: u64,
    /// Whether what lies beyond the frontier reads as zeroes.
    grows_zeroed: bool,
    /// Refcount blocks below this one were looked at for free clusters.
    scanned_blocks: u64,
    /// Refcount blocks below this one may hold free clusters below the frontier.
    blocks: u64,
}

impl Allocator {
    /// Nothing known to be free below `frontier`; the clusters there belong to `blocks` refcount
    /// blocks that are still to be scanned.
    pub(crate) fn new(frontier: u64, blocks: u64, grows_zeroed: bool) -> Self {
        Self {
            free: BTreeMap::new(),
            tainted: BTreeMap::new(),
            frontier,
            end: u64::MAX,
            frontier_at_open: frontier,
            grows_zeroed,
            scanned_blocks: 0,
            blocks,
        }
    }

    /// The same for a medium of so many clusters, which cannot grow.
    pub(crate) fn ending_at(self, end: u64) -> Self {
        Self { end, ..self }
    }

    /// The next refcount block to scan, if any is left.
    pub(crate) fn next_scan(&mut self) -> Option<u64> {
        let block = self.scanned_blocks;
        (block < self.blocks).then(|| {
            self.scanned_blocks += 1;
            block
        })
    }

    /// First cluster that had never been used when the image was opened.
    pub(crate) fn frontier_at_open(&self) -> u64 {
        self.frontier_at_open
    }

    /// Takes up to `wanted` consecutive clusters: the lowest free ones, otherwise fresh ones. `None` if
    /// no more are known and the medium ends.
    pub(crate) fn take(&mut self, wanted: u64) -> Option<Run> {
        match self.free.pop_first() {
            Some((start, len)) if len > wanted => {
                self.free.insert(start + wanted, len - wanted);
                Some(Run::used(start, wanted))
            }
            Some((start, len)) => Some(Run::used(start, len)),
            None => match wanted.min(self.end.saturating_sub(self.frontier)) {
                0 => None,
                there => self.take_fresh(there),
            },
        }
    }

    /// Takes exactly `wanted` consecutive clusters. `None` as [`Allocator::take`].
    pub(crate) fn take_exactly(&mut self, wanted: u64) -> Option<Run> {
        let found = self.free.iter().find(|&(_, &len)| len >= wanted).map(|(&start, &len)| (start, len));
        let Some((start, len)) = found else { return self.take_fresh(wanted) };
        self.free.remove(&start);
        if len > wanted {
            self.free.insert(start + wanted, len - wanted);
        }
        Some(Run::used(start, wanted))
    }

    /// Takes `wanted` clusters that were never used; `None` if the medium ends before.
    pub(crate) fn take_fresh(&mut self, wanted: u64) -> Option<Run> {
        if wanted > self.end.saturating_sub(self.frontier) {
            return None;
        }
        let run = Run { start: self.frontier, len: wanted, fresh: self.grows_zeroed, settled: false };
        self.frontier += wanted;
        Some(run)
    }

    /// Clusters that turned out to be in use. Beyond the frontier nothing counts them if the image is right; if it is
    /// not, the file may count millions there, and nobody wants to meet them one by one.
    pub(crate) fn skip(&mut self, start: u64, len: u64) {
        if (start..start + len).contains(&self.frontier) {
            self.frontier = (start + len).min(self.end);
        }
    }

    /// Adds clusters that are free now and were in use before. Some may be known already: whoever
    /// lowered a refcount gives the cluster, and so does a scan that finds the refcount 0. When a cluster
    /// is claimed its refcount decides, so knowing it twice is harmless, and losing it would be a leak.
    pub(crate) fn give(&mut self, start: u64, len: u64) {
        self.taint(start, len);
        join(&mut self.free, start, len);
    }

    /// Adds clusters that are free and were not in use since the image was opened.
    pub(crate) fn find(&mut self, start: u64, len: u64) {
        join(&mut self.free, start, len);
    }

    /// Something may have been written there that nothing refers to.
    pub(crate) fn taint(&mut self, start: u64, len: u64) {
        join(&mut self.tainted, start, len);
    }

    /// Whether `cluster` holds nothing but what its present owner has written there since the image was
    /// opened: whatever the owner never wrote reads as zeroes, also after a crash.
    pub(crate) fn is_pristine(&self, cluster: u64) -> bool {
        self.grows_zeroed && cluster >= self.frontier_at_open && !self.was_given_up(cluster)
    }

    /// Whether `cluster`, if it is free, was used by nobody but this process: it is beyond the end of
    /// what the file was, or was freed since.
    pub(crate) fn may_be_cut_off(&self, cluster: u64) -> bool {
        cluster >= self.frontier_at_open || self.was_given_up(cluster)
    }

    fn was_given_up(&self, cluster: u64) -> bool {
        self.tainted.range(..=cluster).next_back().is_some_and(|(&start, &len)| start + len > cluster)
    }

    /// The file was cut off at cluster `end`: nothing of it is beyond any more.
    pub(crate) fn cut(&mut self, end: u64) {
        self.frontier = self.frontier.min(end);
        self.frontier_at_open = self.frontier_at_open.min(end);
        self.free.split_off(&end);
        if let Some((&start, len)) = self.free.iter_mut().next_back() {
            *len = (*len).min(end - start);
        }
    }

    /// First cluster beyond everything that the file ever held.
    pub(crate) fn frontier(&self) -> u64 {
        self.frontier
    }

    /// Number of free clusters known below the frontier.
    pub(crate) fn free_clusters(&self) -> u64 {
        self.free.values().sum()
    }
}

/// Enters a run into a set of runs, start -> length, of which no two meet.
fn join(runs: &mut BTreeMap<u64, u64>, start: u64, len: u64) {
    if len == 0 {
        return;
    }
    let (mut start, mut end) = (start, start + len);
    while let Some((&other, &its_len)) = runs.range(..=end).next_back()
        && other + its_len >= start
    {
        runs.remove(&other);
        start = start.min(other);
        end = end.max(other + its_len);
    }
    runs.insert(start, end - start);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(start: u64, len: u64) -> Run {
        Run { start, len, fresh: true, settled: false }
    }

    #[test]
    fn low_free_clusters_go_before_fresh_ones() {
        let mut allocator = Allocator::new(100, 0, true);
        allocator.give(10, 3);
        allocator.give(50, 1);
        assert_eq!(allocator.take(2), Some(Run::used(10, 2)));
        assert_eq!(allocator.take(2), Some(Run::used(12, 1)));
        assert_eq!(allocator.take(9), Some(Run::used(50, 1)));
        assert_eq!(allocator.take(9), Some(fresh(100, 9)));
        assert_eq!(allocator.take_fresh(1).unwrap().start, 109);
    }

    #[test]
    fn clusters_that_are_given_twice_are_free_once() {
        let mut allocator = Allocator::new(100, 0, true);
        for (start, len) in [(10, 2), (20, 3), (9, 12), (22, 1), (21, 9)] {
            allocator.give(start, len);
        }
        assert_eq!(allocator.take(100), Some(Run::used(9, 21)));
        assert_eq!(allocator.free_clusters(), 0);
    }

    #[test]
    fn clusters_in_use_beyond_the_frontier_are_skipped_at_once() {
        let mut allocator = Allocator::new(100, 0, true);
        assert_eq!(allocator.take(1), Some(fresh(100, 1)));
        allocator.skip(100, 1_000_000);
        assert_eq!(allocator.take(1), Some(fresh(1_000_100, 1)));
        // These are not what comes next.
        allocator.skip(50, 10);
        allocator.skip(2_000_000, 10);
        assert_eq!(allocator.take(1), Some(fresh(1_000_101, 1)));
    }

    #[test]
    fn a_medium_that_cannot_grow_has_an_end() {
        let mut allocator = Allocator::new(100, 0, false).ending_at(103);
        assert_eq!(allocator.take_exactly(4), None);
        assert_eq!(allocator.take(9), Some(Run::used(100, 3)));
        assert_eq!((allocator.take(1), allocator.take_fresh(1)), (None, None));
        allocator.give(101, 1);
        assert_eq!(allocator.take(1), Some(Run::used(101, 1)));
    }

    #[test]
    fn a_file_that_was_cut_off_grows_again_with_fresh_clusters() {
        let mut allocator = Allocator::new(100, 0, true);
        allocator.give(10, 3);
        allocator.give(60, 30);
        allocator.cut(70);
        assert_eq!((allocator.frontier(), allocator.free_clusters()), (70, 13));
        assert_eq!(allocator.take_exactly(10), Some(Run::used(60, 10)));
        assert_eq!(allocator.take_fresh(1), Some(fresh(70, 1)));
    }

    #[test]
    fn neighbours_join_and_an_exact_run_is_found_behind_shorter_ones() {
        let mut allocator = Allocator::new(100, 0, true);
        allocator.give(1, 1);
        allocator.give(11, 2);
        allocator.give(10, 1);
        allocator.give(13, 1);
        assert_eq!(allocator.take_exactly(4), Some(Run::used(10, 4)));
        assert_eq!(allocator.free_clusters(), 1);
        assert_eq!(allocator.take_exactly(2), Some(fresh(100, 2)));
    }

    #[test]
    fn only_what_lies_beyond_the_file_as_it_was_and_was_never_given_up_is_pristine() {
        let mut allocator = Allocator::new(100, 0, true);
        assert_eq!(allocator.take_fresh(4), Some(fresh(100, 4)));
        allocator.give(101, 1);
        allocator.taint(103, 1);
        allocator.find(50, 1);
        let pristine: Vec<u64> = (48..106).filter(|&cluster| allocator.is_pristine(cluster)).collect();
        assert_eq!(pristine, [100, 102, 104, 105]);
        assert!(!allocator.may_be_cut_off(50));
        assert!(!Allocator::new(100, 0, false).is_pristine(100), "a device holds anything");
    }
}
