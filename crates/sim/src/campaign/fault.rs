//! Every I/O of a run fails once.

use super::crash::look_at_all;
use super::{CrashCounts, CrashPlan, Ran, Setup, failed, run_workload};
use crate::crash::CrashOptions;
use crate::failure::{Failure, FailureKind};
use crate::request::IoKind;
use crate::subject::Target;
use crate::workload::Workload;
use crate::world::{Fault, FaultKind, Order, Persistence};

/// How to fail.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// What the failing I/O reports.
    pub how: FaultKind,
    /// Whether the device recovers.
    pub persistence: Persistence,
    /// Only I/O of this kind fails, or any.
    pub kind: Option<IoKind>,
    /// Requests end at once or in an order that the seed decides.
    pub order: Order,
    /// Every so manieth I/O is failed; 1 for all.
    pub stride: u64,
    /// Crash states that are looked at after each run with a fault.
    pub crash: Option<CrashOptions>,
    /// Failures of these kinds need not reach a client: giving space back is a favour.
    pub silent: Vec<IoKind>,
}

impl FaultPlan {
    /// Every I/O fails once, in the order in which it is issued.
    pub fn once(how: FaultKind) -> Self {
        Self {
            how,
            persistence: Persistence::Once,
            kind: None,
            order: Order::Immediate,
            stride: 1,
            crash: None,
            silent: vec![IoKind::Discard, IoKind::Extent],
        }
    }
}

/// How much was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Runs in which a fault was met.
    pub positions: u64,
    /// Errors that clients received.
    pub errors: u64,
    /// Crash states after faults.
    pub crash_states: u64,
}

impl std::ops::AddAssign for FaultCounts {
    fn add_assign(&mut self, other: Self) {
        self.positions += other.positions;
        self.errors += other.errors;
        self.crash_states += other.crash_states;
    }
}

/// Runs the workload again and again: in the N-th run the N-th I/O fails, until a run meets no fault.
/// The workload goes on after the error; at the end, with nothing failing, the images must be sound
/// and hold what was acknowledged.
pub fn fail_every_io<T: Target>(
    target: &T,
    workload: &Workload,
    seed: u64,
    plan: &FaultPlan,
) -> Result<FaultCounts, Box<Failure>> {
    let mut counts = FaultCounts::default();
    for nth in (1..).step_by(usize::try_from(plan.stride.max(1)).unwrap_or(1)) {
        let fault = Fault { nth, kind: plan.kind, disk: None, how: plan.how, persistence: plan.persistence };
        let record = plan.crash.is_some();
        let setup = Setup { seed, order: plan.order, faults: vec![fault], shortages: Vec::new(), record };
        let ran = run_workload(target, workload, &setup)?;
        if ran.world.counts().faults.is_empty() {
            break;
        }
        counts.positions += 1;
        counts.errors += ran.errors.len() as u64;
        let fail = |kind, crash| {
            let faults = setup.faults.clone();
            Box::new(Failure { faults, crash, ..failed(target, seed, workload, kind) })
        };
        // A dropped request has no client to be notified.
        let drops = workload.steps.iter().any(|step| step.dropped_after.is_some());
        let reported = if drops { Ok(()) } else { reported_somebody(&ran, &plan.silent) };
        reported.map_err(|kind| fail(kind, None))?;
        counts.crash_states +=
            crashed(target, &ran, seed, plan.crash).map_err(|(crash, kind)| fail(kind, Some(crash)))?;
    }
    Ok(counts)
}

/// No error goes unreported, but for those of requests that the disk gave up.
pub(super) fn reported_somebody(ran: &Ran, silent: &[IoKind]) -> Result<(), FailureKind> {
    let faults = ran.world.counts().faults;
    let loud = faults.keys().find(|kind| !silent.contains(kind));
    match loud {
        Some(kind) if ran.errors.is_empty() && !ran.gave_up => Err(FailureKind::Swallowed(*kind)),
        Some(_) | None => Ok(()),
    }
}

/// Looks at crash states of the run; gives their number.
pub(super) fn crashed<T: Target>(
    target: &T,
    ran: &Ran,
    seed: u64,
    states: Option<CrashOptions>,
) -> Result<u64, (String, FailureKind)> {
    let Some(states) = states else { return Ok(0) };
    let plan = CrashPlan { states, go_on_in_one_of: 0, go_on_steps: 0 };
    let mut counts = CrashCounts::default();
    look_at_all(target, ran, seed, &plan, &mut |_| Ok(()), &mut counts)
        .map_err(|(state, kind)| (state.to_string(), kind))?;
    Ok(counts.states)
}
