//! Whole experiments on a target: run a workload, crash it everywhere, fail its every I/O.

mod crash;
mod fault;
mod run;
mod space;

use crate::failure::{Failure, FailureKind};
use crate::subject::Target;
use crate::workload::{Workload, shrink};

pub use crash::{CrashCounts, CrashPlan, crash_everywhere};
pub use fault::{FaultCounts, FaultPlan, fail_every_io};
pub use run::{CLIENT_DISK, Ran, Setup, run_workload};
pub use space::{SpaceCounts, SpacePlan, run_short_of_space};

/// Runs `experiment` on smaller and smaller workloads that still fail, and gives the failure of the
/// smallest; at most `runs` runs. A panic, a lost byte and a bad check count as the same failure only
/// if they are of the same kind.
pub fn minimize(
    failure: Box<Failure>,
    runs: usize,
    mut experiment: impl FnMut(&Workload) -> Result<(), Box<Failure>>,
) -> Box<Failure> {
    let kind = std::mem::discriminant(&failure.kind);
    let mut smallest = failure.clone();
    shrink(&failure.workload, runs, |candidate| match experiment(candidate) {
        Err(found) if std::mem::discriminant(&found.kind) == kind => {
            *smallest = Failure { replay: failure.replay.clone(), ..*found };
            true
        }
        Err(_) | Ok(()) => false,
    });
    smallest
}

fn failed<T: Target>(target: &T, seed: u64, workload: &Workload, kind: FailureKind) -> Failure {
    Failure::new(kind, target.name(), seed, workload)
}
