//! Who goes next, in proportion to weights.

use std::collections::BTreeSet;

use crate::Weight;

/// Start-time fair queueing over members.
///
/// Each member has a virtual time at which its next request starts: where its last one ended, but
/// never before the queue's own virtual time, which is the start of the request served last. The
/// earliest start is served first; serving moves the member on by price divided by weight. So the
/// sums of prices of members that keep waiting stay in proportion to their weights, within one
/// request each; a member that was idle is owed nothing and owes nothing; equal members with equal
/// requests take turns.
///
/// Virtual time grows by at most 2^76 a second (10^9 ns, 16 bits of fraction, 30 bits for the
/// division by the weight), so 128 bits last for millions of years.
#[derive(Clone, Debug, Default)]
pub(crate) struct FairQueue {
    virtual_time: u128,
    places: BTreeSet<Place>,
    arrivals: u64,
    weight_waiting: u64,
}

/// A member's place in the queue. Ordered by start, then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    start: u128,
    arrival: u64,
    member: usize,
}

/// A member as one queue knows it.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    member: usize,
    weight: Weight,
    finish: u128,
    place: Option<Place>,
}

/// One step of virtual time for a price of 1 at weight 1, as a power of two: divided by a weight of
/// 10000 it still has six digits.
const STEP_BITS: u32 = 30;

impl Standing {
    pub(crate) fn new(member: usize, weight: Weight) -> Self {
        Self { member, weight, finish: 0, place: None }
    }

    /// The distance that serving a request of `price` (less than 2^97) moves the member on.
    fn step(&self, price: u128) -> u128 {
        price.saturating_mul((1 << STEP_BITS) / u128::from(self.weight.get()))
    }
}

impl FairQueue {
    /// No member waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The member to serve next.
    pub(crate) fn first(&self) -> Option<usize> {
        self.places.first().map(|place| place.member)
    }

    /// Sum of the weights of the members that wait.
    pub(crate) fn weight_waiting(&self) -> u64 {
        self.weight_waiting
    }

    /// A member that does not wait is served at once.
    pub(crate) fn pass(&mut self, standing: &mut Standing, price: u128) {
        self.virtual_time = self.virtual_time.max(standing.finish);
        standing.finish = self.virtual_time.saturating_add(standing.step(price));
    }

    /// A member begins to wait; one that waits already keeps its place.
    pub(crate) fn arrive(&mut self, standing: &mut Standing) {
        if standing.place.is_none() {
            let start = self.virtual_time.max(standing.finish);
            self.insert(standing, start);
        }
    }

    /// A waiting member is served, and waits on if it has `more`.
    pub(crate) fn serve(&mut self, standing: &mut Standing, price: u128, more: bool) {
        let Some(start) = standing.place.map(|place| place.start) else { return };
        self.leave(standing);
        self.virtual_time = self.virtual_time.max(start);
        standing.finish = start.saturating_add(standing.step(price));
        if more {
            self.insert(standing, standing.finish);
        }
    }

    /// A member no longer waits. What it has had stays on its account.
    pub(crate) fn leave(&mut self, standing: &mut Standing) {
        if let Some(place) = standing.place.take() {
            self.places.remove(&place);
            self.weight_waiting -= u64::from(standing.weight.get());
        }
    }

    /// Changes a member's weight from its next request on.
    pub(crate) fn set_weight(&mut self, standing: &mut Standing, weight: Weight) {
        if standing.place.is_some() {
            self.weight_waiting -= u64::from(standing.weight.get());
            self.weight_waiting += u64::from(weight.get());
        }
        standing.weight = weight;
    }

    fn insert(&mut self, standing: &mut Standing, start: u128) {
        let place = Place { start, arrival: self.arrivals, member: standing.member };
        self.arrivals += 1;
        self.weight_waiting += u64::from(standing.weight.get());
        self.places.insert(place);
        standing.place = Some(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standings(weights: &[u64]) -> Vec<Standing> {
        weights
            .iter()
            .enumerate()
            .map(|(member, &weight)| Standing::new(member, Weight::new(weight).unwrap()))
            .collect()
    }

    /// Serves `rounds` requests of `price` among members that all keep waiting.
    fn served(weights: &[u64], rounds: usize, price: impl Fn(usize) -> u128) -> Vec<u128> {
        let mut queue = FairQueue::default();
        let mut members = standings(weights);
        members.iter_mut().for_each(|member| queue.arrive(member));
        let mut sums = vec![0; weights.len()];
        for _ in 0..rounds {
            let first = queue.first().unwrap();
            sums[first] += price(first);
            queue.serve(&mut members[first], price(first), true);
        }
        assert_eq!(queue.weight_waiting(), weights.iter().sum::<u64>());
        sums
    }

    #[test]
    fn equal_members_with_equal_requests_take_turns() {
        assert_eq!(served(&[100; 5], 52, |_| 1 << 40), [11, 11, 10, 10, 10].map(|n: u128| n << 40));
    }

    #[test]
    fn shares_follow_the_weights_whatever_the_sizes_of_requests() {
        let weights = [1, 2, 4, 10_000];
        let sums = served(&weights, 200_000, |member| (1 << 40) + (member as u128) * 12_345_678_901);
        let sum: u128 = sums.iter().sum();
        let weight: u64 = weights.iter().sum();
        for (share, own) in sums.iter().zip(weights) {
            let expected = sum * u128::from(own) / u128::from(weight);
            // One request either way: shares this small have no more than that to go by.
            assert!(share.abs_diff(expected) <= 3 << 40, "{share} instead of {expected}");
        }
    }

    #[test]
    fn an_idle_member_returns_without_credit_or_debt() {
        let mut queue = FairQueue::default();
        let mut members = standings(&[100, 100]);
        let (busy, idle) = members.split_at_mut(1);
        for _ in 0..1000 {
            queue.arrive(&mut busy[0]);
            queue.serve(&mut busy[0], 1 << 40, false);
        }
        queue.arrive(&mut busy[0]);
        queue.arrive(&mut idle[0]);
        let mut order = Vec::new();
        for _ in 0..6 {
            let first = queue.first().unwrap();
            order.push(first);
            let member = if first == 0 { &mut busy[0] } else { &mut idle[0] };
            queue.serve(member, 1 << 40, true);
        }
        assert_eq!(order, [1, 0, 1, 0, 1, 0]);
    }

    #[test]
    fn a_member_that_leaves_the_queue_is_not_found_in_it() {
        let mut queue = FairQueue::default();
        let mut members = standings(&[100, 300]);
        members.iter_mut().for_each(|member| queue.arrive(member));
        queue.set_weight(&mut members[1], Weight::MAX);
        queue.leave(&mut members[0]);
        assert_eq!((queue.first(), queue.weight_waiting()), (Some(1), 10_000));
        queue.leave(&mut members[1]);
        queue.leave(&mut members[1]);
        assert_eq!((queue.is_empty(), queue.weight_waiting()), (true, 0));
    }
}
