//! Who goes next, and when.

use super::{Arrangement, Group, Ticket};
use crate::fair_queue::FairQueue;
use crate::member::{Member, Waiting};
use crate::turn::Turn;
use crate::{Direction, Limits, Request, Time};

/// Fraction of a price divided by the weights that wait (at most 10000 per member, so that six
/// digits are left with a few hundred members). A price has less than 97 bits.
const TURN_BITS: u32 = 30;

/// What to do at a moment.
enum Choice {
    /// No member waits.
    Idle,
    /// No member may go before this.
    Wait(Time),
    /// This one may go now.
    Serve { member: usize, direction: Direction, contended: bool },
}

impl Arrangement {
    pub(super) fn of(limits: &Limits) -> Self {
        match (limits.has_total(), limits.has_direction()) {
            (_, false) => Self::Together,
            (false, true) => Self::Apart,
            (true, true) => Self::Mixed,
        }
    }

    /// The fair queue in which requests of `direction` wait.
    pub(super) fn queue(self, direction: Direction) -> usize {
        match self {
            Self::Together => 0,
            Self::Apart | Self::Mixed => direction.index(),
        }
    }

    /// Whether `member` has requests that wait in fair queue `queue`.
    pub(super) fn waits(self, member: &Member, queue: usize) -> bool {
        Direction::BOTH.into_iter().any(|direction| self.queue(direction) == queue && member.waits(direction))
    }
}

impl Group {
    /// Lets go all requests that may go at `now`: charges them and appends their tickets to
    /// `granted`, in the order in which they may be dispatched. Says when to call again: `None` if
    /// no member waits. O(log members) for each request.
    pub fn poll(&mut self, now: Time, granted: &mut Vec<Ticket>) -> Option<Time> {
        loop {
            match self.choose(now) {
                Choice::Idle => return None,
                Choice::Wait(time) => return Some(time),
                Choice::Serve { member, direction, contended } => {
                    granted.extend(self.serve(member, direction, contended, now));
                }
            }
        }
    }

    /// When the next request may go: `now` if one may already, `None` if no member waits.
    pub fn wake(&mut self, now: Time) -> Option<Time> {
        match self.choose(now) {
            Choice::Idle => None,
            Choice::Wait(time) => Some(time),
            Choice::Serve { .. } => Some(now),
        }
    }

    /// Whether a request that arrives now has to queue: the buckets are full, or a member that may
    /// use them came first.
    pub(super) fn must_wait(&mut self, direction: Direction, now: Time) -> bool {
        if !self.queues[self.arrangement.queue(direction)].is_empty() {
            return true;
        }
        if !self.meter.wait(direction, now).is_zero() {
            return true;
        }
        let other = direction.other();
        self.arrangement == Arrangement::Mixed
            && !self.queues[other.index()].is_empty()
            && self.meter.wait(other, now).is_zero()
    }

    fn choose(&mut self, now: Time) -> Choice {
        match self.arrangement {
            Arrangement::Together => self.choose_from(0, now),
            Arrangement::Apart | Arrangement::Mixed => {
                match (self.choose_from(0, now), self.choose_from(1, now)) {
                    (Choice::Idle, other) | (other, Choice::Idle) => other,
                    (Choice::Wait(reads), Choice::Wait(writes)) => Choice::Wait(reads.min(writes)),
                    (Choice::Wait(_), serve) | (serve, Choice::Wait(_)) => serve,
                    (reads @ Choice::Serve { .. }, writes) => match self.turn.next() {
                        Direction::Read => reads.contended(),
                        Direction::Write => writes.contended(),
                    },
                }
            }
        }
    }

    fn choose_from(&mut self, queue: usize, now: Time) -> Choice {
        let Some(member) = self.queues[queue].first() else { return Choice::Idle };
        let direction = match self.arrangement {
            Arrangement::Together => Self::member_mut(&mut self.members, member).next_direction(),
            Arrangement::Apart | Arrangement::Mixed => Some(Direction::BOTH[queue]),
        };
        let Some(direction) = direction else { return Choice::Idle };
        match self.meter.wait(direction, now) {
            wait if wait.is_zero() => Choice::Serve { member, direction, contended: false },
            wait => Choice::Wait(now.after(wait)),
        }
    }

    fn serve(&mut self, index: usize, direction: Direction, contended: bool, now: Time) -> Option<Ticket> {
        let member = Self::member_mut(&mut self.members, index);
        let Waiting { number, bytes, since } = member.pop(direction)?;
        let request = Request { direction, bytes };
        let price = self.prices.of(request);
        let queue = self.arrangement.queue(direction);
        if contended {
            // In proportion to the weights that wait on either side. Weights are at least 1.
            let weight = u128::from(self.queues[queue].weight_waiting().max(1));
            self.turn.served(direction, (self.total_prices.of(request) << TURN_BITS) / weight);
        }
        if self.arrangement == Arrangement::Together {
            member.take_turn(direction, price);
        }
        let more = self.arrangement.waits(member, queue);
        self.queues[queue].serve(&mut member.standings[queue], price, more);
        self.meter.account(request, now);
        member.counters.release(request, since, now);
        self.counters.release(request, since, now);
        Some(Ticket { number, member: index, direction })
    }

    /// Queues all members anew, the longest-waiting first: virtual times of other limits mean
    /// nothing under these.
    pub(super) fn line_up_again(&mut self) {
        self.queues = [FairQueue::default(), FairQueue::default()];
        self.turn = Turn::default();
        let mut waiting: Vec<(u64, usize)> = Vec::new();
        for (index, member) in self.members.iter_mut().enumerate() {
            let Some(member) = member else { continue };
            member.forget_shares(index);
            waiting.extend(member.oldest().map(|number| (number, index)));
        }
        waiting.sort_unstable();
        for (_, index) in waiting {
            let member = Self::member_mut(&mut self.members, index);
            for direction in Direction::BOTH {
                if member.waits(direction) {
                    let queue = self.arrangement.queue(direction);
                    self.queues[queue].arrive(&mut member.standings[queue]);
                }
            }
        }
    }
}

impl Choice {
    /// Both directions could have been served.
    fn contended(self) -> Self {
        match self {
            Self::Serve { member, direction, .. } => Self::Serve { member, direction, contended: true },
            other => other,
        }
    }
}
