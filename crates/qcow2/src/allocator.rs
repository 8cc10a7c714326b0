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
}

impl Run {
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
                Some(Run { start, len: wanted, fresh: false })
            }
            Some((start, len)) => Some(Run { start, len, fresh: false }),
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
        Some(Run { start, len: wanted, fresh: false })
    }

    /// Takes `wanted` clusters that were never used; `None` if the medium ends before.
    pub(crate) fn take_fresh(&mut self, wanted: u64) -> Option<Run> {
        if wanted > self.end.saturating_sub(self.frontier) {
            return None;
        }
        let run = Run { start: self.frontier, len: wanted, fresh: self.grows_zeroed };
        self.frontier += wanted;
        Some(run)
    }

    /// Adds clusters that are free now. Some may be known already: whoever lowered a refcount gives
    /// the cluster, and so does a scan that finds the refcount 0. When a cluster is claimed its
    /// refcount decides, so knowing it twice is harmless, and losing it would be a leak.
    pub(crate) fn give(&mut self, start: u64, len: u64) {
        if len == 0 {
            return;
        }
        let (mut start, mut end) = (start, start + len);
        while let Some((&other, &its_len)) = self.free.range(..=end).next_back()
            && other + its_len >= start
        {
            self.free.remove(&other);
            start = start.min(other);
            end = end.max(other + its_len);
        }
        self.free.insert(start, end - start);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_free_clusters_go_before_fresh_ones() {
        let mut allocator = Allocator::new(100, 0, true);
        allocator.give(10, 3);
        allocator.give(50, 1);
        assert_eq!(allocator.take(2), Some(Run { start: 10, len: 2, fresh: false }));
        assert_eq!(allocator.take(2), Some(Run { start: 12, len: 1, fresh: false }));
        assert_eq!(allocator.take(9), Some(Run { start: 50, len: 1, fresh: false }));
        assert_eq!(allocator.take(9), Some(Run { start: 100, len: 9, fresh: true }));
        assert_eq!(allocator.take_fresh(1).unwrap().start, 109);
    }

    #[test]
    fn clusters_that_are_given_twice_are_free_once() {
        let mut allocator = Allocator::new(100, 0, true);
        for (start, len) in [(10, 2), (20, 3), (9, 12), (22, 1), (21, 9)] {
            allocator.give(start, len);
        }
        assert_eq!(allocator.take(100), Some(Run { start: 9, len: 21, fresh: false }));
        assert_eq!(allocator.free_clusters(), 0);
    }

    #[test]
    fn a_medium_that_cannot_grow_has_an_end() {
        let mut allocator = Allocator::new(100, 0, false).ending_at(103);
        assert_eq!(allocator.take_exactly(4), None);
        assert_eq!(allocator.take(9), Some(Run { start: 100, len: 3, fresh: false }));
        assert_eq!((allocator.take(1), allocator.take_fresh(1)), (None, None));
        allocator.give(101, 1);
        assert_eq!(allocator.take(1), Some(Run { start: 101, len: 1, fresh: false }));
    }

    #[test]
    fn a_file_that_was_cut_off_grows_again_with_fresh_clusters() {
        let mut allocator = Allocator::new(100, 0, true);
        allocator.give(10, 3);
        allocator.give(60, 30);
        allocator.cut(70);
        assert_eq!((allocator.frontier(), allocator.free_clusters()), (70, 13));
        assert_eq!(allocator.take_exactly(10), Some(Run { start: 60, len: 10, fresh: false }));
        assert_eq!(allocator.take_fresh(1), Some(Run { start: 70, len: 1, fresh: true }));
    }

    #[test]
    fn neighbours_join_and_an_exact_run_is_found_behind_shorter_ones() {
        let mut allocator = Allocator::new(100, 0, true);
        allocator.give(1, 1);
        allocator.give(11, 2);
        allocator.give(10, 1);
        allocator.give(13, 1);
        assert_eq!(allocator.take_exactly(4), Some(Run { start: 10, len: 4, fresh: false }));
        assert_eq!(allocator.free_clusters(), 1);
        assert_eq!(allocator.take_exactly(2), Some(Run { start: 100, len: 2, fresh: true }));
    }
}
