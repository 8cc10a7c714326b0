//! Which clusters are kept for which guest clusters: several streams that write one guest cluster after the other must not scatter
//! each other's places in the file.
//!
//! A write that goes on where an allocation ended belongs to a stream. It gets as many clusters more as it took in a row, up
//! to a limit, and they are kept for the guest clusters that follow. What no write asks for goes back.

use std::collections::{BTreeMap, VecDeque};

use super::ReservedRun;

/// Ends of allocations that are remembered: streams among so many other writers are noticed.
const ENDS_MAX: usize = 32;

/// Allocations of others after which no request is expected to come for what is kept.
const PATIENCE: u64 = 1024;

/// Clusters kept for guest clusters.
#[derive(Debug)]
pub(super) struct Neighbours {
    /// First guest cluster -> what is kept for it and those that follow. No two overlap.
    kept: BTreeMap<u64, Retained>,
    /// The latest allocations that nothing was kept behind.
    ends: VecDeque<End>,
    /// Clusters in `kept`.
    len: u64,
    /// Clusters kept for one stream ...
    ahead_max: u64,
    /// ... and for all at most.
    len_max: u64,
    /// Counts allocations.
    now: u64,
}

#[derive(Debug)]
struct Retained {
    held: ReservedRun,
    /// Clusters that the stream took in a row before.
    row: u64,
    /// When a request took of it last.
    used: u64,
}

/// The guest cluster behind an allocation, and how many clusters in a row led there.
#[derive(Debug)]
struct End {
    guest: u64,
    row: u64,
}

/// What a guest cluster is to get.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Offer {
    /// The place that was kept.
    Kept(ReservedRun),
    /// So many new ones, and so many more to keep.
    New { wanted: u64, ahead: u64, row: u64 },
}

impl Neighbours {
    /// Keeps at most `ahead_max` clusters for one stream, `len_max` in all.
    pub(super) fn new(ahead_max: u64, len_max: u64) -> Self {
        Self { kept: BTreeMap::new(), ends: VecDeque::new(), len: 0, ahead_max, len_max, now: 0 }
    }

    /// What is to be had for up to `wanted` clusters from `guest` on.
    pub(super) fn place(&mut self, guest: u64, wanted: u64) -> Offer {
        self.now += 1;
        let before = self.kept.range(..=guest).next_back();
        let around = before.filter(|(start, kept)| guest - **start < kept.held.run.len);
        if let Some(start) = around.map(|(&start, _)| start)
            && let Some(kept) = self.kept.remove(&start)
        {
            return Offer::Kept(self.take(kept, start, guest, wanted));
        }
        let next = self.kept.range(guest..).next().map_or(u64::MAX, |(&start, _)| start - guest);
        let wanted = wanted.min(next);
        let Some(at) = self.ends.iter().position(|end| end.guest == guest) else {
            return Offer::New { wanted, ahead: 0, row: wanted };
        };
        let row = self.ends.remove(at).map_or(0, |end| end.row);
        let most = self.ahead_max.min(self.len_max.saturating_sub(self.len)).min(next - wanted);
        Offer::New { wanted, ahead: row.min(most), row: row + wanted }
    }

    /// Takes for `guest` of what was kept from `start` on; what lies before and behind it is kept further.
    fn take(&mut self, mut kept: Retained, start: u64, guest: u64, wanted: u64) -> ReservedRun {
        let skipped = guest - start;
        if skipped > 0 {
            let held = kept.held.split_front(skipped);
            self.kept.insert(start, Retained { held, row: kept.row, used: kept.used });
        }
        let len = kept.held.run.len.min(wanted);
        let taken = kept.held.split_front(len);
        let row = kept.row + len;
        match kept.held.run.len {
            0 => self.ended(guest + len, row),
            _ => drop(self.kept.insert(guest + len, Retained { row, used: self.now, ..kept })),
        }
        self.len -= len;
        taken
    }

    /// Clusters up to `guest` went to a stream that has taken `row` in a row.
    pub(super) fn ended(&mut self, guest: u64, row: u64) {
        if self.ends.len() == ENDS_MAX {
            self.ends.pop_front();
        }
        self.ends.push_back(End { guest, row });
    }

    /// Keeps `held` for `guest` and what follows; gives it back where that is not to be.
    pub(super) fn keep(&mut self, guest: u64, held: ReservedRun, row: u64) -> Option<ReservedRun> {
        let len = held.run.len;
        let before = self.kept.range(..guest + len).next_back();
        if before.is_some_and(|(&start, kept)| start + kept.held.run.len > guest)
            || self.len + len > self.len_max
        {
            return Some(held);
        }
        self.len += len;
        self.kept.insert(guest, Retained { held, row, used: self.now });
        None
    }

    /// What was not asked for, to be called once in a while.
    pub(super) fn expired(&mut self) -> Vec<ReservedRun> {
        let (now, mut gone) = (self.now, Vec::new());
        self.kept.retain(|_, kept| {
            let stays = now - kept.used < PATIENCE;
            if !stays {
                gone.push(kept.held);
            }
            stays
        });
        self.len -= gone.iter().map(|held| held.run.len).sum::<u64>();
        gone
    }

    /// Everything that is kept.
    pub(super) fn all(&self) -> impl Iterator<Item = &ReservedRun> {
        self.kept.values().map(|kept| &kept.held)
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut ReservedRun> {
        self.kept.values_mut().map(|kept| &mut kept.held)
    }

    /// Forgets everything, streams too.
    pub(super) fn clear(&mut self) {
        self.kept.clear();
        self.ends.clear();
        self.len = 0;
    }

    /// Clusters that are kept.
    pub(super) fn len(&self) -> u64 {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Run;

    fn held(start: u64, len: u64) -> ReservedRun {
        ReservedRun { run: Run::used(start, len), counted: false }
    }

    /// Allocates from an endless file, as the reserve does; gives the first cluster.
    fn allocate(neighbours: &mut Neighbours, end: &mut u64, guest: u64, wanted: u64) -> Run {
        match neighbours.place(guest, wanted) {
            Offer::Kept(held) => held.run,
            Offer::New { wanted, ahead, row } => {
                let run = Run::used(*end, wanted);
                *end += wanted + ahead;
                match ahead {
                    0 => neighbours.ended(guest + wanted, row),
                    _ => assert_eq!(neighbours.keep(guest + wanted, held(run.end(), ahead), row), None),
                }
                run
            }
        }
    }

    #[test]
    fn streams_that_take_turns_get_longer_and_longer_runs() {
        let (mut neighbours, mut end) = (Neighbours::new(16, 64), 0);
        let mut places = vec![Vec::new(); 3];
        for step in 0..64 {
            for (stream, places) in places.iter_mut().enumerate() {
                places.push(allocate(&mut neighbours, &mut end, stream as u64 * 1000 + step, 1).start);
            }
        }
        for places in &places {
            let runs = 1 + places.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count();
            assert!(runs <= 8, "{runs} runs: {places:?}");
        }
        assert!(end <= 3 * (64 + 16), "{end} clusters for 192");
    }

    #[test]
    fn random_writes_keep_nothing_and_do_not_end_a_stream() {
        let (mut neighbours, mut end) = (Neighbours::new(16, 64), 0);
        let mut places = Vec::new();
        for step in 0..40u64 {
            places.push(allocate(&mut neighbours, &mut end, step, 1).start);
            for other in 0..5 {
                let guest = 10_000 + (step * 5 + other) * 7919 % 5000 * 2;
                allocate(&mut neighbours, &mut end, guest, 1);
            }
        }
        let runs = 1 + places.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count();
        assert!(runs <= 7, "{runs} runs: {places:?}");
        assert!(neighbours.len() <= 16);
    }

    #[test]
    fn who_comes_out_of_turn_finds_the_place_that_goes_with_its_address() {
        let (mut neighbours, mut end) = (Neighbours::new(16, 64), 0);
        for guest in 0..4 {
            allocate(&mut neighbours, &mut end, guest, 1);
        }
        assert_eq!(allocate(&mut neighbours, &mut end, 4, 1), Run::used(4, 1));
        assert_eq!(allocate(&mut neighbours, &mut end, 6, 1), Run::used(6, 1));
        assert_eq!(allocate(&mut neighbours, &mut end, 5, 2), Run::used(5, 1), "up to where another goes on");
        assert_eq!(allocate(&mut neighbours, &mut end, 7, 9), Run::used(7, 9));
    }

    #[test]
    fn what_nobody_comes_for_goes_back_and_no_more_is_kept_than_there_may_be() {
        let (mut neighbours, mut end) = (Neighbours::new(4, 6), 0);
        for guest in 0..4 {
            allocate(&mut neighbours, &mut end, guest, 1);
            allocate(&mut neighbours, &mut end, 100 + guest, 1);
            allocate(&mut neighbours, &mut end, 200 + guest, 1);
            assert!(neighbours.len() <= 6);
        }
        let kept = neighbours.len();
        assert!(kept > 0 && neighbours.expired().is_empty());
        for guest in 0..PATIENCE {
            allocate(&mut neighbours, &mut end, 1000 + 3 * guest, 1);
        }
        let back: u64 = neighbours.expired().iter().map(|held| held.run.len).sum();
        assert_eq!((back, neighbours.len()), (kept, 0));
    }

    #[test]
    fn what_is_kept_never_overlaps() {
        let mut neighbours = Neighbours::new(16, 64);
        assert_eq!(neighbours.keep(10, held(0, 4), 1), None);
        assert_eq!(neighbours.keep(8, held(10, 3), 1), Some(held(10, 3)));
        assert_eq!(neighbours.keep(13, held(10, 3), 1), Some(held(10, 3)));
        assert_eq!(neighbours.keep(8, held(10, 2), 1), None);
        assert_eq!(neighbours.place(6, 9), Offer::New { wanted: 2, ahead: 0, row: 2 });
    }
}
