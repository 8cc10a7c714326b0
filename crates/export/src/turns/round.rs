//! Whose step is next: deficit round robin by bytes, first among disks, then among the connections of one disk.
//!
//! Each line in its turn is given [`QUANTUM_BYTES`], and is served while what it was given lasts. A line that asks for
//! large steps is served as many bytes as one that asks for small ones; a disk with many connections gets as many as
//! a disk with one. No step is larger than the quantum, so that every visit serves one at least.

use std::collections::VecDeque;

/// What a line is given when its turn comes.
pub(super) const QUANTUM_BYTES: u64 = super::STEP_COST_MAX;

/// Names a step that waits.
pub(super) type Ticket = u64;

/// One that is served among others.
trait Served {
    /// What its next step costs. May reorder what is inside.
    fn next_cost(&mut self) -> Option<u64>;
    /// Takes its next step out.
    fn take(&mut self) -> Option<Ticket>;
}

#[derive(Debug)]
struct Line<S> {
    key: u64,
    deficit: u64,
    /// It was given its quantum for the visit under way.
    visited: bool,
    inside: S,
}

#[derive(Debug)]
struct Lines<S>(VecDeque<Line<S>>);

impl<S> Default for Lines<S> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<S: Default> Lines<S> {
    /// The line called `key`; a new one is last.
    fn of(&mut self, key: u64) -> &mut S {
        let at = self.0.iter().position(|line| line.key == key).unwrap_or_else(|| {
            self.0.push_back(Line { key, deficit: 0, visited: false, inside: S::default() });
            self.0.len() - 1
        });
        &mut self.0[at].inside
    }
}

impl<S: Served> Served for Lines<S> {
    fn next_cost(&mut self) -> Option<u64> {
        loop {
            let line = self.0.front_mut()?;
            let Some(cost) = line.inside.next_cost() else {
                self.0.pop_front();
                continue;
            };
            if !line.visited {
                line.visited = true;
                line.deficit += QUANTUM_BYTES;
            }
            if cost <= line.deficit {
                return Some(cost);
            }
            line.visited = false;
            self.0.rotate_left(1);
        }
    }

    fn take(&mut self) -> Option<Ticket> {
        let cost = self.next_cost()?;
        let line = self.0.front_mut()?;
        line.deficit -= cost;
        line.inside.take()
    }
}

/// Steps of one connection, in the order they came.
#[derive(Debug, Default)]
struct Steps(VecDeque<(Ticket, u64)>);

impl Served for Steps {
    fn next_cost(&mut self) -> Option<u64> {
        self.0.front().map(|&(_, cost)| cost)
    }

    fn take(&mut self) -> Option<Ticket> {
        self.0.pop_front().map(|(ticket, _)| ticket)
    }
}

/// Everything that waits on one loop.
#[derive(Debug, Default)]
pub(super) struct Round {
    disks: Lines<Lines<Steps>>,
    waiting: usize,
}

/// What requests a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Party {
    pub(crate) disk: u64,
    pub(crate) connection: u64,
}

impl Round {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// A step that costs `cost`, at most [`QUANTUM_BYTES`].
    pub(super) fn push(&mut self, party: Party, ticket: Ticket, cost: u64) {
        debug_assert!(cost <= QUANTUM_BYTES);
        self.disks.of(party.disk).of(party.connection).0.push_back((ticket, cost));
        self.waiting += 1;
    }

    /// The step that is next, if `left` pays for it, and its cost.
    pub(super) fn take(&mut self, left: u64) -> Option<(Ticket, u64)> {
        let cost = self.disks.next_cost().filter(|&cost| cost <= left)?;
        let ticket = self.disks.take()?;
        self.waiting -= 1;
        Some((ticket, cost))
    }

    /// A step that no task awaits any more.
    pub(super) fn cancel(&mut self, party: Party, ticket: Ticket) {
        let steps = &mut self.disks.of(party.disk).of(party.connection).0;
        let before = steps.len();
        steps.retain(|&(waiting, _)| waiting != ticket);
        self.waiting -= before - steps.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    fn party(disk: u64, connection: u64) -> Party {
        Party { disk, connection }
    }

    /// Bytes that each party got when `bytes` were given out; `ticket` is the party's place in `parties`.
    fn shares(parties: &[(Party, u64)], bytes: u64) -> Vec<u64> {
        let mut round = Round::default();
        let mut got = vec![0; parties.len()];
        for (ticket, &(party, cost)) in parties.iter().enumerate() {
            (0..bytes / cost + 1).for_each(|_| round.push(party, ticket as u64, cost));
        }
        while got.iter().sum::<u64>() < bytes {
            let (ticket, cost) = round.take(u64::MAX).expect("all have more");
            got[ticket as usize] += cost;
        }
        got
    }

    fn assert_even(shares: &[u64]) {
        let (least, most) = (shares.iter().min(), shares.iter().max());
        let (Some(least), Some(most)) = (least, most) else { panic!("nobody") };
        assert!(most - least <= 2 * QUANTUM_BYTES, "{shares:?}");
    }

    #[test]
    fn large_steps_and_small_ones_get_the_same_bytes() {
        let all = shares(&[(party(1, 1), QUANTUM_BYTES), (party(1, 2), 8 * KIB)], 100 * QUANTUM_BYTES);
        assert_even(&all);
    }

    #[test]
    fn a_disk_with_many_connections_gets_no_more_than_one_with_a_single_one() {
        let mut parties: Vec<_> = (0..16).map(|number| (party(1, number), QUANTUM_BYTES)).collect();
        parties.push((party(2, 99), 8 * KIB));
        let all = shares(&parties, 320 * QUANTUM_BYTES);
        assert_even(&[all[..16].iter().sum(), all[16]]);
        assert_even(&all[..16]);
    }

    #[test]
    fn who_comes_late_waits_for_one_quantum_of_each_other_disk() {
        let mut round = Round::default();
        (0..1000).for_each(|_| round.push(party(1, 1), 1, QUANTUM_BYTES));
        assert!(round.take(u64::MAX).is_some());
        round.push(party(2, 2), 2, 4 * KIB);
        let before =
            (0..).take_while(|_| round.take(u64::MAX).is_some_and(|(ticket, _)| ticket == 1)).count();
        assert!(before <= 1, "{before} large steps went first");
    }

    #[test]
    fn what_is_cancelled_is_not_served_and_what_is_too_dear_waits() {
        let mut round = Round::default();
        round.push(party(1, 1), 1, 100);
        round.push(party(1, 1), 2, 200);
        round.cancel(party(1, 1), 1);
        assert_eq!(round.take(199), None);
        assert!(!round.is_empty());
        assert_eq!(round.take(200), Some((2, 200)));
        assert!(round.is_empty() && round.take(u64::MAX).is_none());
    }
}
