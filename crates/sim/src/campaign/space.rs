//! A device that fills up at any point of a run and has room again later.

use super::fault::{crashed, reported_somebody};
use super::{Ran, Setup, failed, run_workload};
use crate::crash::CrashOptions;
use crate::failure::{Failure, FailureKind};
use crate::request::IoKind;
use crate::rng::Rng;
use crate::subject::Target;
use crate::workload::Workload;
use crate::world::{Order, Shortage, World};

/// When room is short.
#[derive(Clone, Debug)]
pub struct SpacePlan {
    /// So many runs, each with a shortage somewhere else.
    pub shortages: u64,
    /// Requests end at once or in an order that the seed decides.
    pub order: Order,
    /// Crash states that are looked at after each run.
    pub crash: Option<CrashOptions>,
    /// Failures of these kinds need not reach a client: they were a favour.
    pub silent: Vec<IoKind>,
    /// Units that a run may leave leaked although every open and close went well and no client was notified of a leak.
    pub leaks_max: u64,
}

/// How much was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceCounts {
    /// Runs in which room was short of what was wanted.
    pub shortages: u64,
    /// Errors that clients received.
    pub errors: u64,
    /// Crash states after that.
    pub crash_states: u64,
}

impl std::ops::AddAssign for SpaceCounts {
    fn add_assign(&mut self, other: Self) {
        self.shortages += other.shortages;
        self.errors += other.errors;
        self.crash_states += other.crash_states;
    }
}

/// Runs the workload again and again on a device that is full for a part of the time. Clients go on; at the
/// end the images are sound and hold what was acknowledged, and where everything could be closed nothing
/// is leaked that no client was notified of. Meanwhile neither a flush nor a close fails.
pub fn run_short_of_space<T: Target>(
    target: &T,
    workload: &Workload,
    seed: u64,
    plan: &SpacePlan,
) -> Result<SpaceCounts, Box<Failure>> {
    let whole = run_workload(target, workload, &Setup { order: plan.order, ..Setup::shuffled(seed) })?;
    let all = whole.world.counts().all;
    let mut rng = Rng::new(seed ^ 0x7370_6163);
    let mut counts = SpaceCounts::default();
    for _ in 0..plan.shortages {
        let shortages = vec![shortage(&whole.world, all, &mut rng)];
        let record = plan.crash.is_some();
        let setup = Setup { seed, order: plan.order, faults: Vec::new(), shortages, record };
        let ran = run_workload(target, workload, &setup)?;
        let fail = |kind, crash| {
            let shortages = setup.shortages.clone();
            Box::new(Failure { shortages, crash, ..failed(target, seed, workload, kind) })
        };
        if !ran.world.counts().faults.is_empty() {
            counts.shortages += 1;
        }
        counts.errors += ran.errors.len() as u64;
        acknowledged_needs_no_room(&ran).map_err(|kind| fail(kind, None))?;
        if workload.steps.iter().all(|step| step.dropped_after.is_none()) {
            reported_somebody(&ran, &plan.silent).map_err(|kind| fail(kind, None))?;
            if ran.clean && ran.leaks > plan.leaks_max {
                return Err(fail(FailureKind::Leaked(ran.leaks), None));
            }
        }
        counts.crash_states +=
            crashed(target, &ran, seed, plan.crash).map_err(|(crash, kind)| fail(kind, Some(crash)))?;
    }
    Ok(counts)
}

/// A write that was answered has its room, for data and for what leads to it: nothing is left to be refused when it
/// is made durable.
fn acknowledged_needs_no_room(ran: &Ran) -> Result<(), FailureKind> {
    let flushed = ran.errors.iter().find(|(op, _)| op == "flush" || op == "close");
    match flushed.cloned() {
        Some((op, error)) => Err(FailureKind::Unflushable { op, error }),
        None => Ok(()),
    }
}

/// Somewhere between the first and the last I/O, for a moment, for long or for ever, with little room or none.
fn shortage(world: &World, all: u64, rng: &mut Rng) -> Shortage {
    let writable: Vec<usize> =
        (0..world.disks()).filter(|&disk| !world.capabilities(disk).read_only).collect();
    let from = 1 + rng.below(all.max(1));
    let length = match rng.below(4) {
        0 => 1 + rng.below(8),
        1 => 1 + rng.below(all.max(1)),
        2 => 1 + rng.below(40),
        _ => u64::MAX / 2,
    };
    let bytes = rng.pick(&[0, 0, 4096, 4096, 3 * 4096, 64 << 10]);
    Shortage { disk: rng.pick(&writable), from, until: from + length, bytes }
}
