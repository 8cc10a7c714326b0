//! A set of runs of clusters in bounded memory: runs beyond the bound are left out.

use std::collections::{BTreeMap, BTreeSet};

/// Consecutive clusters: first, and how many.
pub(super) type Piece = (u64, u64);

/// Disjoint runs of clusters, found by place and by length in logarithmic time.
#[derive(Debug)]
pub(super) struct Runs {
    /// Start -> length; no two meet.
    by_start: BTreeMap<u64, u64>,
    /// Length and start of each.
    by_len: BTreeSet<(u64, u64)>,
    /// In all runs together.
    clusters: u64,
    runs_max: usize,
}

/// Memory of one run in both orders, with what the nodes of the trees leave unused.
const BYTES_PER_RUN: u64 = 72;

impl Runs {
    pub(super) fn new(runs_max: usize) -> Self {
        Self { by_start: BTreeMap::new(), by_len: BTreeSet::new(), clusters: 0, runs_max }
    }

    /// Number of runs.
    pub(super) fn len(&self) -> usize {
        self.by_start.len()
    }

    pub(super) fn clusters(&self) -> u64 {
        self.clusters
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.len() as u64 * BYTES_PER_RUN
    }

    /// Enters clusters, joined with what they meet. If there are too many runs then, the shortest leaves, the
    /// highest of several; it is given.
    pub(super) fn join(&mut self, (start, len): Piece) -> Option<Piece> {
        if len == 0 {
            return None;
        }
        let (mut start, mut end) = (start, start + len);
        while let Some((other, its_len)) = self.last_up_to(end)
            && other + its_len >= start
        {
            self.remove((other, its_len));
            start = start.min(other);
            end = end.max(other + its_len);
        }
        self.insert((start, end - start));
        if self.len() <= self.runs_max {
            return None;
        }
        let shortest = self.by_len.first().map_or(0, |&(len, _)| len);
        let &(len, start) = self.by_len.range(..=(shortest, u64::MAX)).next_back()?;
        self.remove((start, len));
        Some((start, len))
    }

    /// Takes up to `wanted` clusters from the front of the lowest run.
    pub(super) fn take_lowest(&mut self, wanted: u64) -> Option<Piece> {
        let (&start, &len) = self.by_start.first_key_value()?;
        Some(self.take_front((start, len), wanted))
    }

    /// Takes exactly `wanted` clusters from the shortest run that has so many, the lowest of several.
    pub(super) fn take_exactly(&mut self, wanted: u64) -> Option<Piece> {
        let &(len, start) = self.by_len.range((wanted, 0)..).next()?;
        Some(self.take_front((start, len), wanted))
    }

    fn take_front(&mut self, (start, len): Piece, wanted: u64) -> Piece {
        self.remove((start, len));
        if len > wanted {
            self.insert((start + wanted, len - wanted));
        }
        (start, len.min(wanted))
    }

    pub(super) fn contains(&self, cluster: u64) -> bool {
        self.last_up_to(cluster).is_some_and(|(start, len)| start + len > cluster)
    }

    /// Leaves out everything from `end` on.
    pub(super) fn cut(&mut self, end: u64) {
        while let Some((start, len)) = self.by_start.last_key_value().map(|(&start, &len)| (start, len))
            && start + len > end
        {
            self.remove((start, len));
            if start < end {
                self.insert((start, end - start));
            }
        }
    }

    /// As [`Runs::join`], but what is too much is the lowest run, which leaves.
    pub(super) fn join_keeping_highest(&mut self, (start, len): Piece) {
        let lost = self.join_freely((start, len));
        if lost && let Some((&start, &len)) = self.by_start.first_key_value() {
            self.remove((start, len));
        }
    }

    /// As [`Runs::join`], but where there are too many runs the lowest two become one, with all that lies between
    /// them: nothing is left out.
    pub(super) fn join_covering(&mut self, (start, len): Piece) {
        if self.join_freely((start, len)) {
            let mut lowest = self.by_start.iter().map(|(&start, &len)| (start, len));
            if let (Some(first), Some(second)) = (lowest.next(), lowest.next()) {
                self.remove(first);
                self.remove(second);
                self.insert((first.0, second.0 + second.1 - first.0));
            }
        }
    }

    /// Joins without a limit; says whether there are too many runs now.
    fn join_freely(&mut self, (start, len): Piece) -> bool {
        let runs_max = std::mem::replace(&mut self.runs_max, usize::MAX);
        self.join((start, len));
        self.runs_max = runs_max;
        self.len() > runs_max
    }

    fn last_up_to(&self, cluster: u64) -> Option<Piece> {
        self.by_start.range(..=cluster).next_back().map(|(&start, &len)| (start, len))
    }

    fn insert(&mut self, (start, len): Piece) {
        self.by_start.insert(start, len);
        self.by_len.insert((len, start));
        self.clusters += len;
    }

    fn remove(&mut self, (start, len): Piece) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
        self.clusters -= len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(runs_max: usize, pieces: &[Piece]) -> Runs {
        let mut runs = Runs::new(runs_max);
        for &(start, len) in pieces {
            runs.join((start, len));
        }
        runs
    }

    fn all(runs: &Runs) -> Vec<Piece> {
        assert_eq!(runs.by_start.len(), runs.by_len.len());
        assert_eq!(runs.clusters, runs.by_start.values().sum());
        runs.by_start.iter().map(|(&start, &len)| (start, len)).collect()
    }

    #[test]
    fn what_is_too_much_is_the_highest_of_the_shortest() {
        let mut full = runs(3, &[(10, 1), (20, 5), (30, 1)]);
        assert_eq!(full.join((15, 2)), Some((30, 1)));
        assert_eq!(full.join((40, 1)), Some((40, 1)));
        assert_eq!(full.join((11, 4)), None, "they join");
        assert_eq!(all(&full), [(10, 7), (20, 5)]);
    }

    #[test]
    fn an_exact_run_comes_from_the_shortest_that_will_do() {
        let mut some = runs(9, &[(10, 9), (30, 4), (40, 4), (50, 1)]);
        assert_eq!(some.take_exactly(3), Some((30, 3)));
        assert_eq!(some.take_exactly(5), Some((10, 5)));
        assert_eq!(some.take_exactly(5), None);
        assert_eq!(some.take_lowest(9), Some((15, 4)));
        assert_eq!(all(&some), [(33, 1), (40, 4), (50, 1)]);
    }

    #[test]
    fn covering_never_leaves_anything_out_and_keeping_the_highest_never_adds() {
        let (mut covering, mut highest) = (Runs::new(2), Runs::new(2));
        for start in [50, 10, 90, 30, 70] {
            covering.join_covering((start, 2));
            highest.join_keeping_highest((start, 2));
        }
        assert!([50, 51, 10, 11, 90, 30, 70, 71].iter().all(|&cluster| covering.contains(cluster)));
        assert_eq!(all(&highest), [(70, 2), (90, 2)]);
        assert!(covering.len() <= 2);
    }

    #[test]
    fn a_cut_shortens_the_run_that_it_meets() {
        let mut some = runs(9, &[(10, 9), (30, 4), (40, 4)]);
        some.cut(32);
        assert_eq!(all(&some), [(10, 9), (30, 2)]);
        some.cut(30);
        assert_eq!(all(&some), [(10, 9)]);
    }
}
