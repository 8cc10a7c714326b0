//! Copies between images that are not alike, simulated: which cases there are, their images, jobs and tools, and what must be true of them.

#![allow(
    dead_code,
    unused_imports,
    clippy::allow_attributes,
    reason = "each test program uses its own part of this"
)]

mod disk;
#[path = "../../all/jobs/exchange.rs"]
mod exchange;
mod guest;
mod host;
mod images;
mod law;
#[path = "../../all/jobs/machine.rs"]
mod machine;
mod note;
mod shape;
mod target;
mod tools;
mod work;

use super::judge;
use sim::campaign::{CrashPlan, Setup, crash_everywhere};
use sim::{CrashOptions, Failure, FailureKind, Mix, Rng, Shape, Target, Workload};

pub use shape::{Case, Kind, Mode, ROUND, case, pairs_covered};
use target::Unlike;

/// Of the crash states of a job one in so many is looked at.
const SHARE: (u64, u64) = (256, 1);

/// Guests with much to write, users who ask much of the job.
fn workload(target: &Unlike, seed: u64) -> Workload {
    let mix = Mix { tidy: 3, discard: 2, zero: 2, ..Mix::swarm(&mut Rng::new(seed)) };
    Shape { mix: Some(mix), ..Shape::new(target.abilities(), 16, 3) }.generate(seed)
}

/// Runs the job or the tool of a seed, and looks at what there is at each step, at the end and after crashes; gives how many crash states
/// those were.
pub fn run(seed: u64) -> Result<u64, Box<Failure>> {
    let case = case(seed);
    let failed = |kind| Box::new(Failure::new(kind, format!("{case:?}"), seed, &Workload::default()));
    if case.kind().is_tool() {
        return tools::run(case, seed).map_err(|error| failed(FailureKind::Check(error)));
    }
    let target = Unlike::new(case, seed).map_err(|error| failed(FailureKind::Build(error)))?;
    let states = CrashOptions { seed, exhaustive_atoms_max: 3, samples: 4, tears: 1, share: SHARE };
    let plan = CrashPlan { states, go_on_in_one_of: 8, go_on_steps: 20 };
    let workload = workload(&target, seed);
    let counts = crash_everywhere(&target, &workload, &Setup::shuffled(seed), &plan, &mut |_| Ok(()))?;
    Ok(counts.states)
}
