//! A raw disk: no engine between the client and the file, so flushes of several clients meet there.

use crate::harness;

use harness::{RawTarget, scale};
use sim::campaign::{
    CrashCounts, CrashPlan, FaultCounts, FaultPlan, Setup, crash_everywhere, fail_every_io, run_workload,
};
use sim::{CrashOptions, FaultKind, IoKind, Order, Persistence, Shape, Sweep, Target};

fn shape(steps: usize, drops: bool) -> Shape {
    Shape { drops, ..Shape::new(RawTarget.abilities(), steps, 4) }
}

#[test]
fn a_raw_disk_holds_what_its_clients_and_the_process_before_wrote() {
    Sweep::from_environment(40 * scale()).run(|seed| {
        run_workload(&RawTarget, &shape(200, seed % 2 == 1).generate(seed), &Setup::shuffled(seed)).map(drop)
    });
}

#[test]
fn what_a_raw_disk_acknowledged_survives_a_crash_at_any_instant() {
    let mut total = CrashCounts::default();
    Sweep::from_environment(40 * scale()).run(|seed| {
        let states = CrashOptions { seed, exhaustive_atoms_max: 6, samples: 16, tears: 2, share: (8, 1) };
        let plan = CrashPlan { states, go_on_in_one_of: 64, go_on_steps: 50 };
        let workload = shape(40, seed % 3 == 1).generate(seed);
        total += crash_everywhere(&RawTarget, &workload, &Setup::shuffled(seed), &plan, &mut |_| Ok(()))?;
        Ok(())
    });
    println!("looked at in raw: {} crash states", total.states);
    assert!(total.states > 0);
}

/// The kernel tells a failed writeback to one of the flushes that wait for it. The other one succeeded, was answered
/// first, and acknowledged what was gone.
#[test]
fn a_flush_of_a_raw_disk_is_acknowledged_only_if_none_has_failed() {
    let mut total = FaultCounts::default();
    Sweep::from_environment(12 * scale()).run(|seed| {
        let crash = CrashOptions { seed, exhaustive_atoms_max: 6, samples: 8, tears: 1, share: (32, 1) };
        let kind = (seed % 2 == 0).then_some(IoKind::Flush);
        let persistence = if seed % 3 == 0 { Persistence::FromThenOn } else { Persistence::Once };
        let plan = FaultPlan {
            kind,
            persistence,
            order: Order::Shuffled,
            crash: Some(crash),
            ..FaultPlan::once(FaultKind::Io)
        };
        total += fail_every_io(&RawTarget, &shape(40, seed % 4 == 3).generate(seed), seed, &plan)?;
        Ok(())
    });
    println!(
        "looked at in raw: {} fault positions, {} crash states after a fault",
        total.positions, total.crash_states
    );
    assert!(total.positions > 0 && total.errors > 0, "{total:?}: nothing failed");
}
