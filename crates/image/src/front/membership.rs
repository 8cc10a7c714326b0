//! One disk's place in a throttle group.

use std::sync::Arc;

use throttle::{MemberId, MemberReport, Request, Time, Weight};

use super::group::ThrottleGroup;

/// A member of a group, until the last request that came through it has gone.
#[derive(Debug)]
pub(super) struct Membership {
    group: Arc<ThrottleGroup>,
    member: MemberId,
}

impl Membership {
    pub(super) fn new(group: Arc<ThrottleGroup>, weight: Weight) -> Arc<Self> {
        let member = group.join(weight);
        Arc::new(Self { group, member })
    }

    pub(super) fn group(&self) -> &Arc<ThrottleGroup> {
        &self.group
    }

    /// Charges a request that was carried out because the group was open.
    pub(super) fn charge(&self, request: Request, now: Time) {
        self.group.charge(&self.member, request, now);
    }

    /// Waits until `request` may go.
    pub(super) async fn pass(&self, request: Request) {
        self.group.pass(&self.member, request).await;
    }

    /// Lets all requests go, those that wait and those that come.
    pub(super) fn drain(&self) {
        self.group.drain(&self.member);
    }

    pub(super) fn end_drain(&self) {
        self.group.end_drain(&self.member);
    }

    pub(super) fn set_weight(&self, weight: Weight) {
        self.group.set_weight(&self.member, weight);
    }

    /// Its figures.
    pub(super) fn report(&self) -> MemberReport {
        self.group.member_report(&self.member)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.group.leave(&self.member);
    }
}
