//! The harness says nothing against a disk that cannot be wrong, whatever its clients do.

use crate::flat;

use flat::FlatTarget;
use sim::campaign::{CrashCounts, CrashPlan, Setup, crash_everywhere, run_workload};
use sim::{CrashOptions, Shape, Target};

#[test]
fn dropped_requests_resizes_and_snapshots_on_several_queues_are_judged_rightly() {
    let target = FlatTarget::with_snapshots();
    let shape = Shape { drops: true, ..Shape::new(target.abilities(), 120, 4) };
    for seed in 0..300 {
        let ran = run_workload(&target, &shape.generate(seed), &Setup::shuffled(seed));
        ran.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn crashes_between_writes_punches_and_resizes_are_judged_rightly() {
    let target = FlatTarget::default();
    let shape = Shape { drops: true, ..Shape::new(target.abilities(), 24, 3) };
    let mut counts = CrashCounts::default();
    for seed in 0..30 {
        let plan = CrashPlan {
            states: CrashOptions { seed, samples: 16, ..CrashOptions::default() },
            go_on_in_one_of: 64,
            go_on_steps: 20,
        };
        let crashed =
            crash_everywhere(&target, &shape.generate(seed), &Setup::shuffled(seed), &plan, &mut |_| Ok(()));
        counts += crashed.unwrap_or_else(|failure| panic!("{failure}"));
    }
    assert!(counts.states > 5_000, "{counts:?}");
}
