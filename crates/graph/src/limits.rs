//! Limits and figures of an open disk, to be read and changed while it is in use.

use std::sync::Arc;

use storage::Medium;
use throttle::{BucketLevel, Flow, GroupReport, Limits, LimitsError, MemberReport, Options, Weight};

use crate::disk::Disk;
use crate::front::{BoundsError, Drained, Kind, Pauses, Statistics, ThrottleGroup};

/// What a disk's limits have done.
#[derive(Clone, Debug, PartialEq)]
pub struct ThrottleReport {
    /// The group's name; `None` if the disk has its limits alone.
    pub group: Option<String>,
    /// Figures of the disk, since it joined the group.
    pub disk: MemberReport,
    /// Limits, figures and bucket levels of the group.
    pub shared: GroupReport,
}

impl Disk {
    /// What has passed since the disk was opened.
    pub fn statistics(&self) -> Statistics {
        self.front.statistics()
    }

    /// How long snapshots and ends of jobs kept requests out.
    pub fn pauses(&self) -> Pauses {
        self.front.pauses()
    }

    /// Properties of the device under the disk's file, as far as they were queried or tried. Of an image with
    /// a data file: that of the
    /// image file.
    pub fn medium(&self) -> Medium {
        self.layers().files().map_or_else(Medium::default, |files| files.written.file.medium())
    }

    /// Counts latencies of `kind` between `bounds_ns` (nanoseconds, ascending from above 0) from now
    /// on; `None` ends it. While any kind is counted so, every request is timed.
    ///
    /// # Errors
    /// When the bounds do not ascend or are too many; then nothing changes.
    pub fn set_latency_bounds(&self, kind: Kind, bounds_ns: Option<&[u64]>) -> Result<(), BoundsError> {
        self.front.set_latency_bounds(kind, bounds_ns)
    }

    /// The group whose limits the disk has: under a name, or one of its own.
    pub fn throttle_group(&self) -> Arc<ThrottleGroup> {
        self.front.group()
    }

    /// The limits in force.
    pub fn limits(&self) -> Limits {
        self.front.group().limits()
    }

    /// Whether any limit is in force.
    pub fn is_limited(&self) -> bool {
        self.front.is_limited()
    }

    /// Puts limits in force, for all disks of its group. Requests that wait stay in line or go, as the
    /// new limits say; buckets are empty.
    pub fn set_limits(&self, limits: Limits) {
        self.front.group().set_limits(limits);
    }

    /// Moves the disk to the group called `name`, or (`None`) to one of its own without limits. What
    /// waits goes at once, uncharged. Nothing happens if it is there already.
    pub fn set_throttle_group(&self, name: Option<&str>) {
        self.front.set_group(name);
    }

    /// Its part of the group.
    pub fn weight(&self) -> Weight {
        self.front.weight()
    }

    /// Changes its part of the group.
    pub fn set_weight(&self, weight: Weight) {
        self.front.set_weight(weight);
    }

    /// All at once, as `block_set_io_throttle` means it: limits replace those in force, for the group
    /// named or else the one the disk is in; no limit at all takes the disk out of its group.
    ///
    /// # Errors
    /// When the limits break a rule; then nothing changes.
    pub fn set_throttling(&self, options: &Options) -> Result<(), LimitsError> {
        let limits = options.check()?;
        if let Some(weight) = options.weight {
            self.set_weight(weight);
        }
        if limits.is_unlimited() {
            self.set_throttle_group(None);
            return Ok(());
        }
        if options.group.is_some() {
            self.set_throttle_group(options.group.as_deref());
        }
        self.set_limits(limits);
        Ok(())
    }

    /// Makes the buckets of the limits in force at least so full: another process charged so much until now.
    pub fn raise_levels(&self, levels: &[(Flow, BucketLevel)]) {
        self.front.report().0.raise_levels(levels);
    }

    /// What the limits have done. Figures of requests that passed while nothing was limited are not in
    /// here but in [`Disk::statistics`].
    pub fn throttle_report(&self) -> ThrottleReport {
        let (group, disk) = self.front.report();
        ThrottleReport { group: group.name().map(str::to_owned), disk, shared: group.report() }
    }

    /// Drains the disk: keeps requests out, and waits until none is in flight and the work that they left
    /// behind has ended. Requests that wait for a limit are admitted at once and not charged; new ones wait
    /// until the result is dropped. Requests that a door has received stay with it. Several tasks may drain a
    /// disk at a time.
    ///
    /// The loops of the requests in flight must run meanwhile. Dropped half-way, nothing is kept out.
    /// Requests of the caller are kept out like any other. Deadlock: do not await a request to this disk
    /// while draining it.
    pub async fn drain(&self) -> Drained<'_> {
        self.front.close_gate();
        let drained = Drained::new(&self.front);
        self.front.emptied().await;
        self.idle().await;
        drained
    }

    /// Lifts all limits and admits the requests that wait for them: the disk is about to be closed.
    pub fn lift_limits(&self) {
        self.front.suspend_limits();
    }
}
