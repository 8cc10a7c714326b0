//! I/O limits: leaky buckets, groups and weights.
//!
//! What QEMU's `throttling.*` options mean, as pure decisions: [`Options`] is what was typed,
//! [`Limits`] what it means once checked, [`Meter`] the six buckets, [`Group`] the members that
//! share them. Nothing here waits, reads a clock or takes a lock: the caller brings the time
//! ([`Time`]), asks [`Group::enqueue`], and calls [`Group::poll`] at the time it was given.
//! docs/reference/throttling.md explains the model and each difference from QEMU.

#![forbid(unsafe_code)]

mod bucket;
mod counters;
mod explain;
mod fair_queue;
mod group;
mod histogram;
mod limits;
mod limits_error;
mod member;
mod meter;
mod options;
mod parameter;
mod request;
mod time;
mod turn;
mod weight;

pub use bucket::{BucketLevel, LeakyBucket};
pub use counters::{Amount, Counters, Tally};
pub use explain::{Curve, Explanation, Point, explain};
pub use group::{Decision, Group, GroupReport, MemberId, MemberReport, Ticket};
pub use histogram::Histogram;
pub use limits::{LENGTH_MAX, Limits, RATE_MAX, Rate};
pub use limits_error::LimitsError;
pub use meter::Meter;
pub use options::Options;
pub use parameter::{Dialect, Flow, Measure, Names, PARAMETERS, Parameter, Part, SETTINGS, Setting};
pub use request::{Direction, Request};
pub use time::Time;
pub use weight::Weight;
