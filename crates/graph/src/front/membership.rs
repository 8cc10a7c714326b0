//! One disk's place in a throttle group.

use std::sync::Arc;

use throttle::{MemberId, MemberReport, Request, Time, Weight};

use super::ahead::Ahead;
use super::group::ThrottleGroup;

/// A member as its group and its disk see it.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) member: MemberId,
    pub(super) ahead: Ahead,
}

/// A member of a group, until the last request that came through it has gone.
#[derive(Debug)]
pub(super) struct Membership {
    group: Arc<ThrottleGroup>,
    seat: Arc<Seat>,
}

impl Membership {
    pub(super) fn new(group: Arc<ThrottleGroup>, weight: Weight) -> Arc<Self> {
        let seat = group.join(weight);
        Arc::new(Self { group, seat })
    }

    pub(super) fn group(&self) -> &Arc<ThrottleGroup> {
        &self.group
    }

    /// Whether the request may go without asking; if it does, [`Membership::take`] says so.
    #[inline]
    pub(super) fn allows(&self, request: Request) -> bool {
        self.seat.ahead.allows(request) && self.group.counts_once(request.bytes)
    }

    /// A request went that [`Membership::allows`] allowed.
    #[inline]
    pub(super) fn take(&self, request: Request) {
        self.seat.ahead.take(request);
    }

    /// Charges a request that was carried out because the group was open.
    pub(super) fn charge(&self, request: Request, now: Time) {
        self.group.charge(&self.seat, request, now);
    }

    /// Waits until `request`, which came at `now`, may go.
    pub(super) async fn pass(&self, request: Request, now: Time) {
        self.group.pass(&self.seat, request, now).await;
    }

    /// Lifts the limits for all requests, waiting and new ones.
    pub(super) fn drain(&self) {
        self.group.drain(&self.seat);
    }

    pub(super) fn end_drain(&self) {
        self.group.end_drain(&self.seat);
    }

    pub(super) fn set_weight(&self, weight: Weight) {
        self.group.set_weight(&self.seat, weight);
    }

    /// Its figures.
    pub(super) fn report(&self) -> MemberReport {
        self.group.member_report(&self.seat)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.group.leave(&self.seat);
    }
}
