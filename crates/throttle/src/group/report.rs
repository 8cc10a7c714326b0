//! Figures of a group and of its members.

use std::time::Duration;

use super::{Group, MemberId};
use crate::{BucketLevel, Counters, Flow, Limits, Time, Weight};

/// A group at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupReport {
    /// The limits in force.
    pub limits: Limits,
    /// Members that joined and have not left.
    pub members: usize,
    /// Figures of all members together, those that left included.
    pub counters: Counters,
    /// Time during which at least one request of the group waited.
    pub time_at_limit: Duration,
    /// Each limited flow and how full its bucket is.
    pub levels: Vec<(Flow, BucketLevel)>,
}

/// A member at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberReport {
    /// Its weight.
    pub weight: Weight,
    /// Its figures since it joined.
    pub counters: Counters,
    /// Time during which at least one of its requests waited.
    pub time_at_limit: Duration,
}

impl Group {
    /// Figures of the whole group.
    pub fn report(&mut self, now: Time) -> GroupReport {
        let levels =
            Flow::ALL.into_iter().filter_map(|flow| Some((flow, self.meter.level(flow, now)?))).collect();
        GroupReport {
            limits: *self.limits(),
            members: self.joined,
            counters: self.counters.clone(),
            time_at_limit: self.counters.time_at_limit(now),
            levels,
        }
    }

    /// Figures of one member.
    pub fn member_report(&mut self, member: &MemberId, now: Time) -> MemberReport {
        let found = Self::member_mut(&mut self.members, member.0);
        MemberReport {
            weight: found.weight,
            counters: found.counters.clone(),
            time_at_limit: found.counters.time_at_limit(now),
        }
    }
}
