//! A raw disk: no engine between the client and the file, so flushes of several clients meet there. And one whose bitmaps have a file of their own, which is true
//! whatever a crash keeps of which file.

use crate::harness;

use harness::{RAW, RAW_WITH_BITMAP, RawTarget};
use sim::campaign::{
    CrashCounts, CrashPlan, FaultCounts, FaultPlan, Setup, crash_everywhere, fail_every_io, run_workload,
};
use sim::{CrashOptions, CrashState, FaultKind, IoKind, Order, Persistence, Shape, Sweep, Target};

fn shape(steps: usize, drops: bool) -> Shape {
    Shape { drops, ..Shape::new(RAW.abilities(), steps, 4) }
}

fn holds(target: &RawTarget) {
    Sweep::from_environment(&target.name(), 40).run(|seed| {
        run_workload(target, &shape(200, seed % 2 == 1).generate(seed), &Setup::shuffled(seed)).map(drop)
    });
}

#[test]
fn a_raw_disk_holds_what_its_clients_and_the_process_before_wrote() {
    holds(&RAW);
}

#[test]
fn a_raw_disk_with_a_bitmap_holds_what_its_clients_and_the_process_before_wrote() {
    holds(&RAW_WITH_BITMAP);
}

fn survives(target: &RawTarget) {
    let mut total = CrashCounts::default();
    Sweep::from_environment(&target.name(), 40).run(|seed| {
        let states = CrashOptions { seed, exhaustive_atoms_max: 6, samples: 16, tears: 2, share: (8, 1) };
        let plan = CrashPlan { states, go_on_in_one_of: 64, go_on_steps: 50 };
        let workload = shape(40, seed % 3 == 1).generate(seed);
        let mut judge = |state: &CrashState| target.keeps_its_bitmap(state);
        total += crash_everywhere(target, &workload, &Setup::shuffled(seed), &plan, &mut judge)?;
        Ok(())
    });
    println!("looked at in {}: {} crash states", target.name(), total.states);
    assert!(total.states > 0);
}

#[test]
fn what_a_raw_disk_acknowledged_survives_a_crash_at_any_instant() {
    survives(&RAW);
}

#[test]
fn what_a_raw_disk_with_a_bitmap_acknowledged_survives_a_crash_and_the_bitmap_has_it() {
    survives(&RAW_WITH_BITMAP);
}

/// The kernel tells a failed writeback to one of the flushes that wait for it. The other one succeeded, was answered
/// first, and acknowledged what was gone.
#[test]
fn a_flush_of_a_raw_disk_is_acknowledged_only_if_none_has_failed() {
    fails_honestly(&RAW);
}

#[test]
fn what_fails_of_a_raw_disk_with_a_bitmap_is_reported_and_the_bitmap_stays_true() {
    fails_honestly(&RAW_WITH_BITMAP);
}

fn fails_honestly(target: &RawTarget) {
    let mut total = FaultCounts::default();
    let sweep = Sweep::from_environment(&target.name(), 12);
    sweep.run(|seed| {
        // With a bitmap there are many more positions.
        let share = if target.has_bitmap { (512, 1) } else { (32, 1) };
        let crash = CrashOptions { seed, exhaustive_atoms_max: 6, samples: 8, tears: 1, share };
        let kind = (seed % 2 == 0).then_some(IoKind::Flush);
        let persistence = if seed % 3 == 0 { Persistence::FromThenOn } else { Persistence::Once };
        // What a file for bitmaps does as a favour ([`super::sim_faults`]).
        let favours = [IoKind::Discard, IoKind::Extent, IoKind::Lengthen];
        let silent = if target.has_bitmap { favours.to_vec() } else { Vec::new() };
        let plan = FaultPlan {
            kind,
            persistence,
            silent,
            order: Order::Shuffled,
            crash: Some(crash),
            ..FaultPlan::once(FaultKind::Io)
        };
        total += fail_every_io(target, &shape(40, seed % 4 == 3).generate(seed), seed, &plan)?;
        Ok(())
    });
    println!(
        "looked at in {}: {} fault positions, {} crash states after a fault",
        target.name(),
        total.positions,
        total.crash_states
    );
    assert!(total.positions > 0, "{total:?}: nothing failed");
    assert!(!sweep.is_whole() || total.errors > 0, "{total:?}: no error was reported");
}
