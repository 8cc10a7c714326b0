//! Clusters whose refcounts are raised ahead of their use.
//!
//! A commit raises them and writes their refcounts along with everything else. From the next commit
//! on an L2 entry may lead to them without waiting for a refcount (docs/internals/write-order.md, "The reserve"). A
//! crash leaks what is in here; a clean close gives it back. Part of them are kept for the guest clusters
//! that are expected next (`neighbours`).

mod neighbours;

use std::collections::VecDeque;

use qcow2_layout::Geometry;
use sync::Mutex;

use crate::allocator::Run;
use neighbours::{Neighbours, Offer};

/// Clusters kept for one stream of writes at most, in bytes: streams then read back in pieces that cost
/// more to transfer than to find.
const AHEAD_BYTES_MAX: u64 = 1 << 20;

/// Of the reserve, one stream gets one of so many parts ahead at most, and all streams together half.
const STREAMS: u64 = 8;

/// Clusters of one image that are counted but not used.
#[derive(Debug)]
pub(crate) struct Reserve {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// For any allocation.
    runs: VecDeque<ReservedRun>,
    /// Clusters in `runs`.
    free: u64,
    neighbours: Neighbours,
    len_max: u64,
    /// A request asked for clusters since the reserve was filled up: an image in which nothing is
    /// allocated gets none.
    asked: bool,
}

/// Clusters in the reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReservedRun {
    run: Run,
    /// A commit has started since that writes their refcounts.
    counted: bool,
}

impl ReservedRun {
    /// Takes the first `len` clusters away, which may be all of them.
    fn split_front(&mut self, len: u64) -> Self {
        let front = Self { run: Run { len, ..self.run }, ..*self };
        self.run.start += len;
        self.run.len -= len;
        front
    }
}

/// What the reserve has for guest clusters.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reserved {
    /// These.
    Run(Run),
    /// Nothing: so many are to be allocated for them, of which those behind the wanted ones come back
    /// by [`Reserve::keep_rest`].
    Nothing {
        /// For the guest clusters asked for.
        wanted: u64,
        /// For those that follow.
        ahead: u64,
        /// What [`Reserve::keep_rest`] wants to know.
        row: u64,
    },
}

impl Reserve {
    /// A reserve of `len_max` clusters; 0 is none.
    pub(crate) fn new(len_max: u64, geometry: &Geometry) -> Self {
        let ahead_max = (AHEAD_BYTES_MAX >> geometry.cluster_bits).min(len_max / STREAMS);
        let neighbours = Neighbours::new(ahead_max, len_max / 2);
        let state = State { runs: VecDeque::new(), free: 0, neighbours, len_max, asked: false };
        Self { state: Mutex::new(state) }
    }

    /// Up to `wanted` consecutive clusters, if there are any, for whatever is no guest's.
    pub(crate) fn take(&self, wanted: u64) -> Option<Run> {
        let mut state = self.state.lock();
        state.asked = true;
        state.take(wanted, wanted).map(|held| held.run)
    }

    /// Up to `wanted` consecutive clusters for the guest clusters from `guest` on: those that were kept for them,
    /// otherwise any.
    pub(crate) fn take_for(&self, guest: u64, wanted: u64) -> Reserved {
        let mut state = self.state.lock();
        state.asked = true;
        match state.neighbours.place(guest, wanted) {
            Offer::Kept(held) => Reserved::Run(held.run),
            Offer::New { wanted, ahead, row } => match state.take(wanted, wanted + ahead) {
                Some(held) => Reserved::Run(state.keep_rest(guest, held, wanted, row)),
                None => {
                    let ahead = ahead.min(state.len_max.saturating_sub(state.len()));
                    Reserved::Nothing { wanted, ahead, row }
                }
            },
        }
    }

    /// Keeps what `run`, just allocated for `guest`, has beyond the `wanted` clusters; gives those.
    pub(crate) fn keep_rest(&self, guest: u64, run: Run, wanted: u64, row: u64) -> Run {
        self.state.lock().keep_rest(guest, ReservedRun { run, counted: false }, wanted, row)
    }

    /// How many clusters are to be put in now.
    pub(crate) fn missing(&self) -> u64 {
        let mut state = self.state.lock();
        for held in state.neighbours.expired() {
            state.free += held.run.len;
            // The lowest places first: others fill the gaps.
            state.runs.push_front(held);
        }
        match std::mem::take(&mut state.asked) {
            true => state.len_max.saturating_sub(state.len()),
            false => 0,
        }
    }

    /// Whether there is anything in here.
    pub(crate) fn holds_any(&self) -> bool {
        self.state.lock().len() > 0
    }

    /// Puts clusters in; says whether they are still wanted.
    pub(crate) fn put(&self, run: Run) -> bool {
        let mut state = self.state.lock();
        let wanted = state.len_max > 0;
        if wanted {
            state.put(ReservedRun { run, counted: false });
        }
        wanted
    }

    /// A commit starts that writes the refcounts of everything that is in here. Call it before they are copied.
    pub(crate) fn count(&self) {
        self.state.lock().all_mut().for_each(|held| held.counted = true);
    }

    /// That commit has ended: the file counts what was in here, and the file there has `clusters` clusters.
    pub(crate) fn settle(&self, clusters: u64) {
        let mut state = self.state.lock();
        state.all_mut().for_each(|held| held.run.settled = held.counted && held.run.end() <= clusters);
    }

    /// The image switches to another file: what that has here may be anything.
    pub(crate) fn nothing_is_zeroed(&self) {
        self.state.lock().all_mut().for_each(|held| held.run.fresh = false);
    }

    /// Everything that is in here, for [`Reserve::restore`].
    pub(crate) fn save(&self) -> Vec<Run> {
        let state = self.state.lock();
        state.runs.iter().chain(state.neighbours.all()).map(|held| held.run).collect()
    }

    /// Something gave all of `before` back, and then the refcounts went back to what they were before: the
    /// clusters are counted, and a request may have written there.
    pub(crate) fn restore(&self, before: Vec<Run>) {
        let mut state = self.state.lock();
        if state.len() == 0 {
            before
                .into_iter()
                .for_each(|run| state.put(ReservedRun { run: Run { fresh: false, ..run }, counted: true }));
        }
    }

    /// Everything that is in here. With `for_good` there will never be anything again.
    pub(crate) fn take_all(&self, for_good: bool) -> Vec<Run> {
        let mut state = self.state.lock();
        if for_good {
            state.len_max = 0;
        }
        state.asked = false;
        let all = state.all_mut().map(|held| held.run).collect();
        state.runs.clear();
        state.free = 0;
        state.neighbours.clear();
        all
    }
}

impl State {
    /// Clusters in here.
    fn len(&self) -> u64 {
        self.free + self.neighbours.len()
    }

    fn put(&mut self, held: ReservedRun) {
        self.free += held.run.len;
        self.runs.push_back(held);
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut ReservedRun> {
        self.runs.iter_mut().chain(self.neighbours.all_mut())
    }

    /// Up to `best` clusters of the first run that has so many, otherwise of the first one that has all of
    /// `wanted`, otherwise of the first.
    fn take(&mut self, wanted: u64, best: u64) -> Option<ReservedRun> {
        let with = |least: u64| (0..self.runs.len()).find(|&at| self.goes_on(at, least));
        let at = with(best).or_else(|| with(wanted)).unwrap_or(0);
        let first = self.runs.get_mut(at)?;
        let taken = first.split_front(first.run.len.min(best));
        if first.run.len == 0 {
            self.runs.remove(at);
        }
        self.free -= taken.run.len;
        Some(taken)
    }

    /// Whether a run is as long as that, or the next one begins where it ends: then the allocation that takes it continues there.
    fn goes_on(&self, at: usize, least: u64) -> bool {
        let Some(held) = self.runs.get(at) else { return false };
        held.run.len >= least || self.runs.get(at + 1).is_some_and(|next| next.run.start == held.run.end())
    }

    fn keep_rest(&mut self, guest: u64, mut held: ReservedRun, wanted: u64, row: u64) -> Run {
        let taken = held.split_front(held.run.len.min(wanted));
        let next = guest + taken.run.len;
        match held.run.len {
            0 => self.neighbours.ended(next, row),
            _ => self.neighbours.keep(next, held, row).into_iter().for_each(|held| self.put(held)),
        }
        taken.run
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qcow2_layout::Version;

    fn reserve(len_max: u64) -> Reserve {
        Reserve::new(len_max, &Geometry::new(Version::V3, 16, 4).unwrap())
    }

    #[test]
    fn it_is_filled_only_after_somebody_asked_and_never_beyond_its_size() {
        let reserve = reserve(4);
        assert_eq!((reserve.missing(), reserve.take(1), reserve.missing()), (0, None, 4));
        assert!(reserve.put(Run::used(10, 4)));
        assert_eq!(reserve.take(3), Some(Run::used(10, 3)));
        reserve.count();
        reserve.settle(14);
        assert_eq!(reserve.missing(), 3);
        assert_eq!(reserve.take(3), Some(Run { settled: true, ..Run::used(13, 1) }));
    }

    #[test]
    fn what_came_after_a_commit_copied_the_refcounts_is_not_settled_by_it() {
        let reserve = reserve(64);
        assert!(reserve.put(Run::used(10, 1)));
        reserve.count();
        assert!(reserve.put(Run::used(20, 1)));
        reserve.settle(100);
        assert_eq!(reserve.take(1), Some(Run { settled: true, ..Run::used(10, 1) }));
        assert_eq!(reserve.take(1), Some(Run::used(20, 1)));
    }

    #[test]
    fn who_goes_on_gets_the_clusters_that_follow_and_others_the_lowest() {
        let reserve = reserve(64);
        assert!(reserve.put(Run::used(10, 2)));
        assert!(reserve.put(Run::used(20, 40)));
        let take = |guest, wanted| match reserve.take_for(guest, wanted) {
            Reserved::Run(run) => (run.start, run.len),
            nothing => panic!("{nothing:?}"),
        };
        assert_eq!((take(0, 1), take(500, 1)), ((10, 1), (11, 1)));
        assert_eq!((take(1, 1), take(700, 1), take(2, 1)), ((20, 1), (22, 1), (21, 1)));
        assert_eq!((take(3, 5), take(900, 1), take(6, 1)), ((23, 5), (31, 1), (32, 1)));
        assert_eq!((take(8, 2), take(10, 9)), ((28, 2), (30, 1)));
    }

    #[test]
    fn what_is_kept_counts_and_what_is_restored_is_not_fresh() {
        let reserve = reserve(64);
        assert!(reserve.put(Run { fresh: true, ..Run::used(20, 10) }));
        reserve.take_for(0, 2);
        reserve.take_for(2, 1);
        let saved = reserve.save();
        assert_eq!(saved.iter().map(|run| run.len).sum::<u64>(), 7);
        assert_eq!(reserve.missing(), 57);
        assert_eq!(reserve.take_all(false).len(), saved.len());
        reserve.restore(saved);
        assert_eq!(reserve.take(9), Some(Run::used(25, 5)));
    }

    #[test]
    fn what_is_put_in_after_the_end_is_refused() {
        let reserve = reserve(4);
        assert!(reserve.put(Run::used(10, 1)));
        assert_eq!(reserve.take_all(true), [Run::used(10, 1)]);
        assert!(!reserve.put(Run::used(11, 1)));
        assert_eq!(reserve.take(1), None);
    }
}
