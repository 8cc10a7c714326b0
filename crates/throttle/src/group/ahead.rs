//! Requests that go without asking, a few at a time, while the buckets are far from full.

use super::{Group, MemberId};
use crate::{Amount, Direction, Request, Time};

/// Of the room in the buckets, all members in both directions together may take this part without a look at the levels. A
/// burst may be short by this part, because a grant is charged at the next look, not when its requests pass.
const PART: u64 = 128;

/// Most requests and bytes of one member and direction: how far its figures may be behind.
const MOST: Amount = Amount { requests: 1024, bytes: 1 << 30 };

impl Group {
    /// How much a member may let go in `direction` before it looks again; nothing while requests wait, or near the limit.
    /// What went is to be charged with [`Group::charge_all`] before anything else is decided for the member. Requests
    /// that count as more than one operation ([`crate::Limits::counts_once`]) have to ask.
    pub fn ahead(&mut self, direction: Direction, now: Time) -> Amount {
        if self.queues.iter().any(|queue| !queue.is_empty()) {
            return Amount::default();
        }
        let room = self.meter.room(direction, now);
        let sharers = PART * 2 * self.joined.max(1) as u64;
        let requests = (room.requests / sharers).min(MOST.requests);
        let bytes = (room.bytes / sharers).min(MOST.bytes);
        if requests == 0 || bytes == 0 { Amount::default() } else { Amount { requests, bytes } }
    }

    /// Charges what a member has let go without asking.
    ///
    /// # Panics
    /// If `member` is of another group, or has left.
    pub fn charge_all(&mut self, member: &MemberId, direction: Direction, amount: Amount, now: Time) {
        let Some(mean) = amount.bytes.checked_div(amount.requests) else { return };
        let found = Self::member_mut(&mut self.members, member.0);
        found.counters.pass_all(direction, amount);
        self.counters.pass_all(direction, amount);
        if !found.draining && !self.meter.limits().is_unlimited() {
            self.meter.account_all(direction, amount, now);
            // No member waited for them: they are a turn like one of them.
            let price = self.prices.of(Request { direction, bytes: mean });
            let queue = self.arrangement.queue(direction);
            self.queues[queue].pass(&mut found.standings[queue], price);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Flow, Limits, Options, Parameter, Part, Weight};

    fn limits(given: &[(Flow, u64, u64)]) -> Limits {
        let mut options = Options::new();
        for &(flow, average, max) in given {
            options.set(Parameter::Rate(flow, Part::Average), average);
            if max > 0 {
                options.set(Parameter::Rate(flow, Part::Max), max);
                options.set(Parameter::Rate(flow, Part::MaxLength), 10);
            }
        }
        options.check().unwrap()
    }

    #[test]
    fn all_that_may_go_ahead_together_would_have_been_allowed_one_by_one() {
        for limits in [
            limits(&[(Flow::IopsTotal, 1_000_000, 0)]),
            limits(&[(Flow::IopsRead, 500_000, 0), (Flow::BpsTotal, 1 << 30, 0)]),
            limits(&[(Flow::IopsTotal, 100, 1_000_000), (Flow::BpsWrite, 1 << 32, 0)]),
        ] {
            let now = Time::default();
            let mut group = Group::new(limits, now);
            let members: Vec<_> = (0..5).map(|_| group.join(Weight::default())).collect();
            let mut rounds = 0;
            loop {
                let mut granted = Vec::new();
                for member in &members {
                    for direction in Direction::BOTH {
                        granted.push((member, direction, group.ahead(direction, now)));
                    }
                }
                if granted.iter().all(|(.., amount)| amount.requests == 0) {
                    break;
                }
                rounds += 1;
                for (member, direction, amount) in granted {
                    group.charge_all(member, direction, amount, now);
                }
                for direction in Direction::BOTH {
                    assert!(!group.must_wait(direction, now), "{limits:?} after {rounds} rounds");
                }
            }
            assert!(rounds > 10, "{limits:?}: {rounds}");
        }
    }

    #[test]
    fn nothing_goes_ahead_where_little_is_left_or_somebody_waits() {
        let now = Time::default();
        let mut group = Group::new(limits(&[(Flow::IopsTotal, 100, 0)]), now);
        let _member = group.join(Weight::default());
        assert_eq!(group.ahead(Direction::Read, now), Amount::default());
        let mut group = Group::new(limits(&[(Flow::IopsWrite, 10, 0), (Flow::IopsRead, 1_000_000, 0)]), now);
        let writer = group.join(Weight::default());
        assert_ne!(group.ahead(Direction::Read, now), Amount::default());
        for _ in 0..3 {
            let _ = group.enqueue(&writer, Request::write(1), now);
        }
        assert_eq!(group.ahead(Direction::Read, now), Amount::default());
    }
}
