//! Disks that share limits.

mod ahead;
mod report;
mod schedule;

use crate::fair_queue::FairQueue;
use crate::member::{Member, Waiting};
use crate::turn::Turn;
use crate::{BucketLevel, Counters, Direction, Flow, Limits, Measure, Meter, Rate, Request, Time, Weight};

pub use report::{GroupReport, MemberReport};

/// Members that share six buckets; a disk with limits of its own is a group of one.
///
/// While requests pass, [`Group::enqueue`] says so in a few dozen nanoseconds. Once the buckets are
/// full, requests queue, each member's in the order in which they came (reads and writes apart), and
/// [`Group::poll`] lets them go, members in proportion to their weights. Nothing happens between
/// calls: the caller keeps *one* timer per group, which belongs to the group and not to a member,
/// sets it to the time that `enqueue` and `poll` name, and calls `poll` then. A timer that is late
/// loses nothing: the buckets have leaked meanwhile.
#[derive(Debug)]
pub struct Group {
    meter: Meter,
    prices: Prices,
    /// What reads and writes take from each other.
    total_prices: Prices,
    arrangement: Arrangement,
    /// One fair queue for all, or one per direction; see [`Arrangement`].
    queues: [FairQueue; 2],
    /// Between the two fair queues, where both wait for a total.
    turn: Turn,
    /// By index; `None` can be given out again.
    members: Vec<Option<Member>>,
    /// Members that have not left.
    joined: usize,
    tickets_drawn: u64,
    counters: Counters,
}

/// What reads and writes have to do with each other under the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrangement {
    /// All limits are totals: one fair queue, a member's reads and writes are one share.
    Together,
    /// All limits are per direction: two fair queues that never meet.
    Apart,
    /// Totals and directions: two fair queues, which take turns at the totals.
    Mixed,
}

/// A membership. Worth nothing once [`Group::leave`] has taken it back.
#[derive(Debug, PartialEq, Eq)]
pub struct MemberId(usize);

/// A request that waits. Numbers are never used twice in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    number: u64,
    member: usize,
    direction: Direction,
}

/// What [`Group::enqueue`] decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Decision {
    /// The request is charged: dispatch it.
    Now,
    /// The request waits until [`Group::poll`] gives its ticket back.
    Queued {
        /// What to wait for.
        ticket: Ticket,
        /// When to call [`Group::poll`]. The group's timer must not be later than this.
        wake: Time,
    },
}

impl Group {
    /// A group without members, its buckets empty.
    pub fn new(limits: Limits, now: Time) -> Self {
        Self {
            meter: Meter::new(limits, now),
            prices: Prices::new(&limits),
            total_prices: Prices::of_totals(&limits),
            arrangement: Arrangement::of(&limits),
            queues: [FairQueue::default(), FairQueue::default()],
            turn: Turn::default(),
            members: Vec::new(),
            joined: 0,
            tickets_drawn: 0,
            counters: Counters::default(),
        }
    }

    /// The limits in force.
    pub const fn limits(&self) -> &Limits {
        self.meter.limits()
    }

    /// Adds a member. One that never sends a request costs the others nothing.
    pub fn join(&mut self, weight: Weight) -> MemberId {
        let index = self.members.iter().position(Option::is_none).unwrap_or_else(|| {
            self.members.push(None);
            self.members.len() - 1
        });
        self.members[index] = Some(Member::new(index, weight));
        self.joined += 1;
        MemberId(index)
    }

    /// Removes a member. Its waiting requests go at once, uncharged: they are appended to `released`,
    /// the caller dispatches or fails them. The others' timer stays as it is.
    ///
    /// # Panics
    /// Here and below: if `member` is of another group, or has left.
    pub fn leave(&mut self, member: &MemberId, now: Time, released: &mut Vec<Ticket>) {
        self.drain(member, now, released);
        self.members[member.0] = None;
        self.joined -= 1;
    }

    /// Lets the member's requests go at once and uncharged, those that wait (appended to `released`)
    /// and all that come, until [`Group::end_drain`]: what a snapshot or a reopening waits for must
    /// not hang on a limit, and the others are not to pay for it.
    pub fn drain(&mut self, member: &MemberId, now: Time, released: &mut Vec<Ticket>) {
        let group = &mut *self;
        let found = Self::member_mut(&mut group.members, member.0);
        found.draining = true;
        for (queue, standing) in group.queues.iter_mut().zip(&mut found.standings) {
            queue.leave(standing);
        }
        for direction in Direction::BOTH {
            while let Some(Waiting { number, bytes, since }) = found.pop(direction) {
                let request = Request { direction, bytes };
                found.counters.release(request, since, now);
                group.counters.release(request, since, now);
                released.push(Ticket { number, member: member.0, direction });
            }
        }
    }

    /// Limits the member again.
    pub fn end_drain(&mut self, member: &MemberId) {
        Self::member_mut(&mut self.members, member.0).draining = false;
    }

    /// Changes a member's weight, from its next request on.
    pub fn set_weight(&mut self, member: &MemberId, weight: Weight) {
        let group = &mut *self;
        let found = Self::member_mut(&mut group.members, member.0);
        found.weight = weight;
        for (queue, standing) in group.queues.iter_mut().zip(&mut found.standings) {
            queue.set_weight(standing, weight);
        }
    }

    /// Puts new limits in force for all members and empties the buckets. The limits may have been set through another member.
    /// Requests that wait stay in line: call [`Group::poll`] next, for some may go.
    pub fn set_limits(&mut self, limits: Limits, now: Time) {
        self.meter = Meter::new(limits, now);
        self.prices = Prices::new(&limits);
        self.total_prices = Prices::of_totals(&limits);
        self.arrangement = Arrangement::of(&limits);
        self.line_up_again();
    }

    /// Makes buckets at least as full as those of another group were, whose limits this one takes.
    pub fn raise_levels(&mut self, levels: &[(Flow, BucketLevel)], now: Time) {
        levels.iter().for_each(|(flow, level)| self.meter.raise(*flow, level, now));
    }

    /// Asks permission for a request.
    pub fn enqueue(&mut self, member: &MemberId, request: Request, now: Time) -> Decision {
        let drains = Self::member_mut(&mut self.members, member.0).draining;
        if !drains && self.must_wait(request.direction, now) {
            return self.draw_ticket(member.0, request, now);
        }
        self.charge(member, request, now);
        Decision::Now
    }

    /// Charges a request that goes without having asked: one that was carried out because
    /// [`Group::opens`] had come. Whatever is above a capacity afterwards, those behind it wait for.
    pub fn charge(&mut self, member: &MemberId, request: Request, now: Time) {
        let found = Self::member_mut(&mut self.members, member.0);
        let drains = found.draining;
        found.counters.pass(request);
        self.counters.pass(request);
        if !drains && !self.meter.limits().is_unlimited() {
            self.meter.account(request, now);
            let queue = self.arrangement.queue(request.direction);
            self.queues[queue].pass(&mut found.standings[queue], self.prices.of(request));
        }
    }

    /// From when on a request in `direction` need not wait, unless others are charged meanwhile; `None`
    /// while requests wait that it must not overtake.
    pub fn opens(&mut self, direction: Direction, now: Time) -> Option<Time> {
        let queued = match self.arrangement {
            Arrangement::Apart => !self.queues[self.arrangement.queue(direction)].is_empty(),
            Arrangement::Together | Arrangement::Mixed => self.queues.iter().any(|queue| !queue.is_empty()),
        };
        (!queued).then(|| now.after(self.meter.wait(direction, now)))
    }

    /// Gives up a request that waits: its future was dropped. `false` if it does not wait (any more):
    /// it has been let go and charged, and is not refunded.
    pub fn cancel(&mut self, ticket: Ticket, now: Time) -> bool {
        let group = &mut *self;
        let Some(Some(found)) = group.members.get_mut(ticket.member) else { return false };
        let direction = ticket.direction;
        let Some(Waiting { bytes, .. }) = found.remove(direction, ticket.number) else { return false };
        let request = Request { direction, bytes };
        found.counters.unqueue(request, now);
        group.counters.unqueue(request, now);
        let queue = group.arrangement.queue(direction);
        if !group.arrangement.waits(found, queue) {
            group.queues[queue].leave(&mut found.standings[queue]);
        }
        true
    }

    fn draw_ticket(&mut self, index: usize, request: Request, now: Time) -> Decision {
        let Request { direction, bytes } = request;
        let number = self.tickets_drawn;
        self.tickets_drawn += 1;
        let found = Self::member_mut(&mut self.members, index);
        found.push(direction, Waiting { number, bytes, since: now });
        found.counters.queue(request, now);
        self.counters.queue(request, now);
        let queue = self.arrangement.queue(direction);
        self.queues[queue].arrive(&mut found.standings[queue]);
        let wake = self.wake(now).unwrap_or(now);
        Decision::Queued { ticket: Ticket { number, member: index, direction }, wake }
    }

    #[expect(
        clippy::expect_used,
        reason = "a membership cannot be copied, and is taken back by who held it: it outlives its member only by a bug"
    )]
    fn member_mut(members: &mut [Option<Member>], index: usize) -> &mut Member {
        members.get_mut(index).and_then(Option::as_mut).expect("a member of this group")
    }
}

/// Fixed point: fractions of a nanosecond.
const FRACTION_BITS: u32 = 16;

/// Sizes above this (a pebibyte) count as this when shares are computed, so that no price overflows.
const BYTES_MAX: u64 = 1 << 50;

/// Prices under some limits: the time for which a request occupies the narrowest of its buckets.
///
/// With limits in operations only, a request costs what it counts as; with limits in bytes only, its
/// bytes; with both, whichever takes longer. Members are served so that the sums stay in proportion
/// to their weights.
#[derive(Clone, Debug)]
struct Prices {
    of: [DirectionPrices; 2],
    iops_size: u64,
}

/// In 2^-16 nanoseconds; at most 10^9 * 2^16, less than 2^46.
#[derive(Clone, Copy, Debug)]
struct DirectionPrices {
    per_operation: u64,
    per_byte: u64,
}

impl Prices {
    /// Prices in all buckets that a request fills.
    fn new(limits: &Limits) -> Self {
        Self::in_buckets(limits, |_| true)
    }

    /// Prices in the buckets that reads and writes fill both.
    fn of_totals(limits: &Limits) -> Self {
        Self::in_buckets(limits, |flow| flow.direction().is_none())
    }

    fn in_buckets(limits: &Limits, counts: fn(&Flow) -> bool) -> Self {
        let narrowest = |direction, measure| {
            Flow::of(direction)
                .into_iter()
                .filter(|flow| counts(flow) && flow.measure() == measure)
                .filter_map(|flow| unit_price(limits.rate(flow)))
                .max()
                .unwrap_or(0)
        };
        let of = Direction::BOTH.map(|direction| DirectionPrices {
            per_operation: narrowest(direction, Measure::Operations),
            per_byte: narrowest(direction, Measure::Bytes),
        });
        Self { of, iops_size: limits.iops_size() }
    }

    /// At least 1, less than 2^97.
    fn of(&self, request: Request) -> u128 {
        let prices = &self.of[request.direction.index()];
        let bytes = u128::from(request.bytes.min(BYTES_MAX));
        let operation = u128::from(prices.per_operation);
        let operations = match u128::from(self.iops_size) {
            size if size == 0 || bytes <= size => operation,
            size => bytes * operation / size,
        };
        operations.max(bytes * u128::from(prices.per_byte)).max(1)
    }
}

/// The time that one unit occupies a bucket, if it is limited.
fn unit_price(rate: Rate) -> Option<u64> {
    (1_000_000_000_u64 << FRACTION_BITS).checked_div(rate.avg).map(|price| price.max(1))
}
