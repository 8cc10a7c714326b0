//! Which clusters of the file are free: decided in memory, from refcount blocks as they are scanned.
//!
//! The refcount blocks say which clusters are free; memory holds a part of that, of bounded size. What is left out is
//! found again by a later scan. What must not be forgotten, that a cluster was written to since the image was opened, is
//! kept less exactly when there is too much of it.

mod runs;

use std::ops::Range;

use runs::Runs;

/// Runs of free clusters in memory at most: some 300 KiB. With fewer than half as many, what was left out is looked for again.
const FREE_RUNS_MAX: usize = 4096;

/// Likewise, runs of clusters that were given up, for each of the two purposes.
const GIVEN_UP_RUNS_MAX: usize = 1024;

/// Consecutive clusters of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Index of the first cluster.
    pub(crate) start: u64,
    /// Number of clusters, at least one.
    pub(crate) len: u64,
    /// The file never held anything here: on a regular file the clusters read as zeroes.
    pub(crate) fresh: bool,
    /// The file has their refcounts, and the file is long enough there.
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

    /// The same clusters, without what is known of them.
    pub(crate) fn clusters(&self) -> Range<u64> {
        self.start..self.end()
    }
}

/// Free clusters, as far as they are known.
///
/// Invariant: a cluster below `frontier` whose refcount is 0 is referenced by nothing in the file as it is on disk, nor
/// in memory, and no request still reads or writes it; so a scan may find it free at any time. What was set aside
/// ([`crate::room`]) has the refcount 0 too: scans leave it out.
///
/// Every operation takes logarithmic time in the number of runs, which is bounded.
#[derive(Debug)]
pub(crate) struct Allocator {
    /// Free clusters that are known: all below `scanned`, but for those that were left out.
    free: Runs,
    /// Clusters beyond `frontier_at_open` that were in use at some time and then given up, or more: whatever is there, it need
    /// not be zeroes.
    tainted: Runs,
    /// Clusters below `frontier_at_open` that this process gave up, or fewer: the highest.
    given_up: Runs,
    /// First cluster beyond everything that the file ever held; on a device, that the image did.
    frontier: u64,
    /// First cluster that the file can never have: the end of a device.
    end: u64,
    /// The frontier when the image was opened.
    frontier_at_open: u64,
    /// Whether what lies beyond the frontier reads as zeroes.
    grows_zeroed: bool,
    /// Refcounts of clusters below this one were looked at.
    scanned: u64,
    /// Refcounts of clusters from this one on need not be looked at: all free ones are known, or beyond the frontier.
    scan_end: u64,
    /// The lowest free cluster that was left out.
    left_out: Option<u64>,
    /// What was left out is being looked for.
    looking_again: bool,
}

impl Allocator {
    /// Nothing known to be free below `frontier`: refcounts are still to be scanned.
    pub(crate) fn new(frontier: u64, grows_zeroed: bool) -> Self {
        Self {
            free: Runs::new(FREE_RUNS_MAX),
            tainted: Runs::new(GIVEN_UP_RUNS_MAX),
            given_up: Runs::new(GIVEN_UP_RUNS_MAX),
            frontier,
            end: u64::MAX,
            frontier_at_open: frontier,
            grows_zeroed,
            scanned: 0,
            scan_end: frontier,
            left_out: None,
            looking_again: false,
        }
    }

    /// The same for a medium of so many clusters, which cannot grow.
    pub(crate) fn ending_at(self, end: u64) -> Self {
        Self { end, ..self }
    }

    /// The clusters whose refcounts are to be looked at next, if any are: first, and end of all.
    pub(crate) fn next_scan(&mut self) -> Option<(u64, u64)> {
        if self.scanned >= self.scan_end {
            self.looking_again = false;
            if self.free.len() < FREE_RUNS_MAX / 2
                && let Some(left_out) = self.left_out.take()
            {
                self.scanned = left_out;
                self.looking_again = true;
            }
        }
        (self.scanned < self.scan_end).then_some((self.scanned, self.scan_end))
    }

    /// Whether looking further for free clusters is better than making the file longer: none is known, and some were left out.
    pub(crate) fn should_look_further(&self) -> bool {
        self.free.len() == 0 && (self.left_out.is_some() || self.looking_again)
    }

    /// The refcounts of `clusters` were looked at, and these runs found free. Others may have looked there too.
    pub(crate) fn scanned(&mut self, clusters: Range<u64>, free: &[(u64, u64)]) {
        if self.scanned == clusters.start {
            self.scanned = clusters.end;
        }
        free.iter().for_each(|&(start, len)| self.find(start..start + len));
    }

    /// Takes up to `wanted` consecutive clusters: the lowest free ones, otherwise fresh ones. `None` if
    /// no more are known and the file ends.
    pub(crate) fn take(&mut self, wanted: u64) -> Option<Run> {
        self.take_before(wanted, self.end)
    }

    /// Likewise, but of fresh ones those before cluster `fresh_end` alone.
    pub(crate) fn take_before(&mut self, wanted: u64, fresh_end: u64) -> Option<Run> {
        match self.free.take_lowest(wanted) {
            Some((start, len)) => Some(Run::used(start, len)),
            None => match wanted.min(self.end.min(fresh_end).saturating_sub(self.frontier)) {
                0 => None,
                there => self.take_fresh(there),
            },
        }
    }

    /// Takes exactly `wanted` consecutive clusters, of the shortest run that has them. `None` as [`Allocator::take`].
    pub(crate) fn take_exactly(&mut self, wanted: u64) -> Option<Run> {
        match self.free.take_exactly(wanted) {
            Some((start, len)) => Some(Run::used(start, len)),
            None => self.take_fresh(wanted),
        }
    }

    /// Takes `wanted` clusters that were never used; `None` if the file ends before.
    pub(crate) fn take_fresh(&mut self, wanted: u64) -> Option<Run> {
        if wanted > self.end.saturating_sub(self.frontier) {
            return None;
        }
        let run = Run { start: self.frontier, len: wanted, fresh: self.grows_zeroed, settled: false };
        self.frontier += wanted;
        Some(run)
    }

    /// Clusters that turned out to be in use. Beyond the frontier nothing counts them if the image is right; if it is
    /// not, the file may count millions there, which must not be met one by one.
    pub(crate) fn skip(&mut self, in_use: Range<u64>) {
        if in_use.contains(&self.frontier) {
            self.frontier = in_use.end.min(self.end);
        }
    }

    /// Adds clusters that are free now and were in use before. Some may be known already: what
    /// lowered a refcount gives the cluster, and so does a scan that finds the refcount 0. When a cluster
    /// is claimed its refcount decides, so knowing it twice is harmless, and losing it would be a leak.
    pub(crate) fn give(&mut self, clusters: Range<u64>) {
        self.taint(clusters.clone());
        let below = clusters.end.min(self.frontier_at_open).saturating_sub(clusters.start);
        if below > 0 {
            self.given_up.join_keeping_highest((clusters.start, below));
        }
        self.find(clusters);
    }

    /// Adds clusters that are free; what was there is as it was.
    pub(crate) fn find(&mut self, clusters: Range<u64>) {
        let len = clusters.end.saturating_sub(clusters.start);
        if let Some((start, len)) = self.free.join((clusters.start, len)) {
            self.left_out = Some(self.left_out.map_or(start, |lowest| lowest.min(start)));
            self.scan_end = self.scan_end.max(start + len);
        }
    }

    /// Something may have been written there that nothing refers to.
    pub(crate) fn taint(&mut self, clusters: Range<u64>) {
        let start = clusters.start.max(self.frontier_at_open);
        if start < clusters.end {
            self.tainted.join_covering((start, clusters.end - start));
        }
    }

    /// The image switches to another file, `end` clusters long: what that has where nothing is in use may be anything.
    pub(crate) fn nothing_is_zeroed(&mut self, end: u64) {
        let unused = self.frontier..end.min(self.end).max(self.frontier);
        self.frontier = unused.end;
        self.taint(self.frontier_at_open..unused.end);
        self.find(unused);
    }

    /// Whether `cluster` holds nothing but what its present owner has written there since the image was
    /// opened: whatever the owner never wrote reads as zeroes, also after a crash.
    pub(crate) fn is_pristine(&self, cluster: u64) -> bool {
        self.grows_zeroed && cluster >= self.frontier_at_open && !self.tainted.contains(cluster)
    }

    /// Whether `cluster`, if it is free, was used by no request but this process: it is beyond the end of
    /// what the file was, or was freed since.
    pub(crate) fn may_be_cut_off(&self, cluster: u64) -> bool {
        cluster >= self.frontier_at_open || self.given_up.contains(cluster)
    }

    /// The file was cut off at cluster `end`: nothing of it is beyond any more.
    pub(crate) fn cut(&mut self, end: u64) {
        self.frontier = self.frontier.min(end);
        self.frontier_at_open = self.frontier_at_open.min(end);
        self.scan_end = self.scan_end.min(end);
        self.scanned = self.scanned.min(end);
        self.free.cut(end);
        self.given_up.cut(end);
    }

    /// First cluster beyond everything that the file ever held.
    pub(crate) fn frontier(&self) -> u64 {
        self.frontier
    }

    /// Number of free clusters known below the frontier.
    pub(crate) fn free_clusters(&self) -> u64 {
        self.free.clusters()
    }

    /// Memory that all this takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.free.memory_bytes() + self.tainted.memory_bytes() + self.given_up.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(start: u64, len: u64) -> Run {
        Run { start, len, fresh: true, settled: false }
    }

    #[test]
    fn low_free_clusters_go_before_fresh_ones() {
        let mut allocator = Allocator::new(100, true);
        allocator.give(10..13);
        allocator.give(50..51);
        assert_eq!(allocator.take(2), Some(Run::used(10, 2)));
        assert_eq!(allocator.take(2), Some(Run::used(12, 1)));
        assert_eq!(allocator.take(9), Some(Run::used(50, 1)));
        assert_eq!(allocator.take(9), Some(fresh(100, 9)));
        assert_eq!(allocator.take_fresh(1).unwrap().start, 109);
    }

    #[test]
    fn clusters_that_are_given_twice_are_free_once() {
        let mut allocator = Allocator::new(100, true);
        for (start, len) in [(10, 2), (20, 3), (9, 12), (22, 1), (21, 9)] {
            allocator.give(start..start + len);
        }
        assert_eq!(allocator.take(100), Some(Run::used(9, 21)));
        assert_eq!(allocator.free_clusters(), 0);
    }

    #[test]
    fn clusters_in_use_beyond_the_frontier_are_skipped_at_once() {
        let mut allocator = Allocator::new(100, true);
        assert_eq!(allocator.take(1), Some(fresh(100, 1)));
        allocator.skip(100..100 + 1_000_000);
        assert_eq!(allocator.take(1), Some(fresh(1_000_100, 1)));
        // These are not what comes next.
        allocator.skip(50..60);
        allocator.skip(2_000_000..2000010);
        assert_eq!(allocator.take(1), Some(fresh(1_000_101, 1)));
    }

    #[test]
    fn a_medium_that_cannot_grow_has_an_end() {
        let mut allocator = Allocator::new(100, false).ending_at(103);
        assert_eq!(allocator.take_exactly(4), None);
        assert_eq!(allocator.take(9), Some(Run::used(100, 3)));
        assert_eq!((allocator.take(1), allocator.take_fresh(1)), (None, None));
        allocator.give(101..102);
        assert_eq!(allocator.take(1), Some(Run::used(101, 1)));
    }

    #[test]
    fn a_file_that_was_cut_off_grows_again_with_fresh_clusters() {
        let mut allocator = Allocator::new(100, true);
        allocator.give(10..13);
        allocator.give(60..90);
        allocator.cut(70);
        assert_eq!((allocator.frontier(), allocator.free_clusters()), (70, 13));
        assert_eq!(allocator.take_exactly(10), Some(Run::used(60, 10)));
        assert_eq!(allocator.take_fresh(1), Some(fresh(70, 1)));
    }

    #[test]
    fn neighbours_join_and_an_exact_run_is_found_behind_shorter_ones() {
        let mut allocator = Allocator::new(100, true);
        allocator.give(1..2);
        allocator.give(11..13);
        allocator.give(10..11);
        allocator.give(13..14);
        assert_eq!(allocator.take_exactly(4), Some(Run::used(10, 4)));
        assert_eq!(allocator.free_clusters(), 1);
        assert_eq!(allocator.take_exactly(2), Some(fresh(100, 2)));
    }

    #[test]
    fn only_what_lies_beyond_the_file_as_it_was_and_was_never_given_up_is_pristine() {
        let mut allocator = Allocator::new(100, true);
        assert_eq!(allocator.take_fresh(4), Some(fresh(100, 4)));
        allocator.give(101..102);
        allocator.taint(103..104);
        allocator.find(50..51);
        let pristine: Vec<u64> = (48..106).filter(|&cluster| allocator.is_pristine(cluster)).collect();
        assert_eq!(pristine, [100, 102, 104, 105]);
        assert!(!allocator.may_be_cut_off(50));
        assert!(!Allocator::new(100, false).is_pristine(100), "a device holds anything");
    }

    #[test]
    fn free_runs_without_number_take_bounded_memory_and_every_one_is_found_in_the_end() {
        let is_free = |cluster: u64| cluster % 2 == 1;
        let clusters = 20 * FREE_RUNS_MAX as u64;
        let mut allocator = Allocator::new(clusters, true);
        let mut taken = std::collections::BTreeSet::new();
        loop {
            while let Some((from, end)) = allocator.next_scan() {
                let to = end.min(from + 512);
                let free = |at: &u64| is_free(*at) && !taken.contains(at);
                let found: Vec<_> = (from..to).filter(free).map(|at| (at, 1)).collect();
                allocator.scanned(from..to, &found);
                assert!(allocator.memory_bytes() < 512 << 10, "{} bytes", allocator.memory_bytes());
            }
            let run = allocator.take(1).unwrap();
            if run.fresh {
                break;
            }
            assert!(is_free(run.start) && taken.insert(run.start), "{run:?}");
        }
        assert_eq!(taken.len() as u64, clusters / 2, "free clusters were lost");
    }

    #[test]
    fn however_many_clusters_were_given_up_none_beyond_the_old_end_is_called_pristine() {
        let mut allocator = Allocator::new(100, true);
        let beyond = 100 + 8 * GIVEN_UP_RUNS_MAX as u64;
        assert!(allocator.take_fresh(beyond).is_some());
        (101..beyond).step_by(3).for_each(|cluster| allocator.give(cluster..cluster + 1));
        assert!((101..beyond).step_by(3).all(|cluster| !allocator.is_pristine(cluster)));
        assert!(allocator.is_pristine(beyond) && allocator.is_pristine(100));
    }

    #[test]
    fn a_long_run_is_found_behind_any_number_of_short_ones_on_a_medium_that_ends() {
        let clusters = 20 * FREE_RUNS_MAX as u64;
        let mut allocator = Allocator::new(clusters, false).ending_at(clusters);
        while let Some((from, end)) = allocator.next_scan() {
            let to = end.min(from + 512);
            let found: Vec<_> = (from..to).step_by(2).map(|at| (at, 1)).collect();
            allocator.scanned(from..to, &found);
            if to == end {
                allocator.find(clusters - 9..clusters);
            }
        }
        assert_eq!(allocator.take_exactly(7), Some(Run::used(clusters - 9, 7)));
        assert_eq!(allocator.take_exactly(7), None);
    }
}
