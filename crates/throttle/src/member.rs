//! A member's own queues, one per direction.

use std::collections::VecDeque;

use crate::fair_queue::Standing;
use crate::turn::Turn;
use crate::{Counters, Direction, Time, Weight};

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// Ascending in each queue: tickets are numbered in the order in which they are drawn.
    pub(crate) number: u64,
    pub(crate) bytes: u64,
    pub(crate) since: Time,
}

/// What a group knows of one disk.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) weight: Weight,
    /// Its requests go at once, uncharged.
    pub(crate) draining: bool,
    /// In each of the group's fair queues.
    pub(crate) standings: [Standing; 2],
    pub(crate) counters: Counters,
    queues: [VecDeque<Waiting>; 2],
    turn: Turn,
}

impl Member {
    pub(crate) fn new(index: usize, weight: Weight) -> Self {
        Self {
            weight,
            draining: false,
            standings: [Standing::new(index, weight), Standing::new(index, weight)],
            counters: Counters::default(),
            queues: [VecDeque::new(), VecDeque::new()],
            turn: Turn::default(),
        }
    }

    pub(crate) fn waits(&self, direction: Direction) -> bool {
        !self.queues[direction.index()].is_empty()
    }

    /// The number of the request that has waited longest.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.queues.iter().filter_map(|queue| queue.front()).map(|waiting| waiting.number).min()
    }

    /// The direction to serve next, if any request waits.
    pub(crate) fn next_direction(&self) -> Option<Direction> {
        match Direction::BOTH.map(|direction| self.waits(direction)) {
            [true, true] => Some(self.turn.next()),
            [true, false] => Some(Direction::Read),
            [false, true] => Some(Direction::Write),
            [false, false] => None,
        }
    }

    /// `direction` is served for `price` out of what reads and writes share.
    pub(crate) fn take_turn(&mut self, direction: Direction, price: u128) {
        if self.waits(direction.other()) {
            self.turn.served(direction, price);
        }
    }

    pub(crate) fn push(&mut self, direction: Direction, waiting: Waiting) {
        self.queues[direction.index()].push_back(waiting);
    }

    pub(crate) fn pop(&mut self, direction: Direction) -> Option<Waiting> {
        self.queues[direction.index()].pop_front()
    }

    /// Takes one request out of the middle. Logarithmic to find, linear in the shorter side to close up.
    pub(crate) fn remove(&mut self, direction: Direction, number: u64) -> Option<Waiting> {
        let queue = &mut self.queues[direction.index()];
        let at = queue.binary_search_by_key(&number, |waiting| waiting.number).ok()?;
        queue.remove(at)
    }

    pub(crate) fn forget_shares(&mut self, index: usize) {
        self.standings = [Standing::new(index, self.weight), Standing::new(index, self.weight)];
        self.turn = Turn::default();
    }
}
