//! Where the file could end, and what is free before that. Pure, once the pass is made.

use std::collections::VecDeque;
use std::ops::Range;

use crate::check::pass::Pass;

/// Clusters that move in one round at most: with their entries in the plan some 16 MiB of memory.
pub(super) const MOVES_MAX: usize = 1 << 17;

/// How an image lies in its file, and how it could.
pub(super) struct Layout {
    /// The file's end if nothing before it were free: as many clusters as are in use.
    pub(super) end: u64,
    /// Free clusters before the end, the lowest first, as runs.
    free: VecDeque<Range<u64>>,
}

impl Layout {
    /// As the pass found it. Only clusters that a refcount block counts are free: a place elsewhere would take a block of its own.
    pub(super) fn of(pass: &Pass<'_>) -> Self {
        let (mut end, mut from) = (0, 0);
        while let Some(cluster) = pass.claims.next(from) {
            end += 1;
            from = cluster + 1;
        }
        let entries = pass.geometry.refcount_block_entries();
        let mut free: VecDeque<Range<u64>> = VecDeque::new();
        let mut clusters = 0;
        for run in free_runs(pass, end) {
            let mut at = run.start;
            while at < run.end && clusters < MOVES_MAX as u64 {
                let part = at..run.end.min((at / entries + 1) * entries);
                at = part.end;
                if !pass.comparison.has_block(part.start / entries) {
                    continue;
                }
                clusters += part.end - part.start;
                match free.back_mut() {
                    Some(last) if last.end == part.start => last.end = part.end,
                    _ => free.push_back(part),
                }
            }
        }
        Self { end, free }
    }

    /// Clusters in use that are to move.
    pub(super) fn clusters_behind_end(&self, pass: &Pass<'_>) -> u64 {
        let (mut clusters, mut from) = (0, self.end);
        while let Some(cluster) = pass.claims.next(from) {
            clusters += 1;
            from = cluster + 1;
        }
        clusters
    }

    /// The free clusters, to be taken.
    pub(super) fn room(&self) -> Room {
        Room { free: self.free.clone() }
    }

    /// The same without those in `window`.
    pub(super) fn room_outside(&self, window: &Range<u64>) -> Room {
        let before = |run: &Range<u64>| run.start..run.end.min(window.start);
        let behind = |run: &Range<u64>| run.start.max(window.end)..run.end;
        let parts = self.free.iter().flat_map(|run| [before(run), behind(run)]);
        Room { free: parts.filter(|run| run.start < run.end).collect() }
    }

    /// Behind the last free cluster that is known.
    pub(super) fn listed_end(&self) -> u64 {
        self.free.back().map_or(0, |run| run.end)
    }
}

/// Runs of clusters before `end` that nothing refers to.
pub(super) fn free_runs(pass: &Pass<'_>, end: u64) -> impl Iterator<Item = Range<u64>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < end {
            let start = at;
            let next = pass.claims.next(at).unwrap_or(end).min(end);
            at = next + 1;
            if start < next {
                return Some(start..next);
            }
        }
        None
    })
}

/// Free clusters, taken from the front.
#[derive(Default)]
pub(super) struct Room {
    free: VecDeque<Range<u64>>,
}

impl Room {
    /// The lowest run of `clusters` free ones.
    pub(super) fn take(&mut self, clusters: u64) -> Option<u64> {
        let at = self.free.iter().position(|run| run.end - run.start >= clusters)?;
        let run = self.free.get_mut(at)?;
        let start = run.start;
        run.start += clusters;
        if run.start == run.end {
            self.free.remove(at);
        }
        Some(start)
    }

    /// Takes `cluster`, if it is free.
    pub(super) fn take_at(&mut self, cluster: u64) -> bool {
        let Some(at) = self.free.iter().position(|run| run.start == cluster) else { return false };
        if let Some(run) = self.free.get_mut(at) {
            run.start += 1;
            if run.start == run.end {
                self.free.remove(at);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_taken_from_the_front_and_once() {
        let mut room = Room { free: VecDeque::from([3..4, 6..9, 20..22]) };
        assert_eq!(room.take(2), Some(6));
        assert_eq!(room.take(1), Some(3));
        assert!(room.take_at(8) && !room.take_at(8) && !room.take_at(21));
        assert_eq!((room.take(2), room.take(1)), (Some(20), None));
    }
}
