//! The simulation can fail: each bug that is put in on purpose is found, and soon.
//!
//! `cargo test -p qcow2 --features deliberate-bugs --test deliberate_bugs`

mod harness;

use std::panic::AssertUnwindSafe;

use harness::{Qcow2Target, config};
use qcow2::deliberate::{Bug, put_in};
use sim::campaign::{CrashPlan, Setup, crash_everywhere, run_workload};
use sim::{CrashOptions, Failure, Shape, Sweep, Target, Workload};

/// Seeds among which a bug must be found: all of them take seconds.
const SEEDS: u64 = 400;

/// The first of the seeds that finds the bug. Without the bug that seed must find nothing.
fn found(bug: Bug, name: &str, one: impl Fn(&Qcow2Target, u64) -> Result<(), Box<Failure>>) {
    let target = Qcow2Target::new(config(name));
    put_in(Some(bug));
    let first = (0..SEEDS).find_map(|seed| one(&target, seed).err().map(|failure| (seed, failure)));
    put_in(None);
    let Some((seed, failure)) = first else { panic!("{bug:?} is not found in {SEEDS} seeds of {name}") };
    println!("{bug:?}: {name}, seed {seed}: {}", failure.kind);
    if let Err(failure) = one(&target, seed) {
        panic!("not the bug was found but another one: {failure}");
    }
}

fn workload(target: &Qcow2Target, steps: usize, queues: u8, seed: u64) -> Workload {
    Shape::new(target.abilities(), steps, queues).generate(seed)
}

fn by_crashing(target: &Qcow2Target, seed: u64) -> Result<(), Box<Failure>> {
    let states = CrashOptions { seed, exhaustive_atoms_max: 6, samples: 8, tears: 1, share: (4, 1) };
    let plan = CrashPlan { states, go_on_in_one_of: 0, go_on_steps: 0 };
    let workload = workload(target, 30, 3, seed);
    crash_everywhere(target, &workload, &Setup::shuffled(seed), &plan, &mut |_| Ok(())).map(drop)
}

fn by_the_model(target: &Qcow2Target, seed: u64) -> Result<(), Box<Failure>> {
    run_workload(target, &workload(target, 200, 4, seed), &Setup::shuffled(seed)).map(drop)
}

/// What somebody who sees a failure needs: what it was, where, and how to see it again.
#[test]
fn a_failure_prints_seed_commit_and_the_command_that_shows_it_again() {
    let target = Qcow2Target::new(config("c4k"));
    let sweep = Sweep::from_environment(SEEDS);
    let panic = std::panic::catch_unwind(AssertUnwindSafe(|| {
        put_in(Some(Bug::RefcountAfterL2));
        sweep.run(|seed| by_crashing(&target, seed))
    }));
    let panic = panic.expect_err("the bug is found");
    let said = panic.downcast_ref::<String>().expect("a panic with words");
    let seed = said.strip_prefix("seed ").and_then(|rest| rest.split_once(':')).map(|(seed, _)| seed);
    let seed: u64 = seed.and_then(|seed| seed.parse().ok()).expect("the seed comes first");
    let name = "a_failure_prints_seed_commit_and_the_command_that_shows_it_again";
    assert!(said.contains(&format!("replay: cargo xtask sim --seed {seed} {name}\n")), "{said}");
    assert!(
        said.contains(&format!("seed {seed} at commit ")) && said.contains("workload, 30 steps:"),
        "{said}"
    );
    // The seed alone shows the same again.
    let again = by_crashing(&target, seed).expect_err("the bug is still there");
    assert!(said.contains(&again.kind.to_string()), "{said}\n{again}");
    put_in(None);
}

#[test]
fn write_order_swapped() {
    found(Bug::WriteOrderSwapped, "c4k_device", by_crashing);
}

#[test]
fn refcount_after_l2() {
    found(Bug::RefcountAfterL2, "c4k", by_crashing);
}

#[test]
fn missing_flush() {
    found(Bug::MissingFlush, "c4k", by_crashing);
}

#[test]
fn punch_too_early() {
    found(Bug::PunchTooEarly, "c4k_snapshots", by_crashing);
}

#[test]
fn punch_too_late() {
    found(Bug::PunchTooLate, "c512_r64_tiny", by_the_model);
}

#[test]
fn single_flight_broken() {
    found(Bug::SingleFlightBroken, "c512_r64_tiny", by_the_model);
}

#[test]
fn lock_dropped() {
    found(Bug::LockDropped, "c4k", by_the_model);
}

#[test]
fn grace_skipped() {
    found(Bug::GraceSkipped, "c512_r64_tiny", by_the_model);
}

#[test]
fn data_not_awaited() {
    found(Bug::DataNotAwaited, "c4k_on_qcow2_reserve", by_crashing);
}

#[test]
fn data_not_awaited_on_a_device() {
    found(Bug::DataNotAwaited, "c4k_device_reserve", by_crashing);
}

#[test]
fn data_not_awaited_where_zeroes_hide_old_data() {
    found(Bug::DataNotAwaited, "c16k_subclusters_reserve", by_crashing);
}

#[test]
fn refcount_not_awaited() {
    found(Bug::RefcountNotAwaited, "c4k_reserve", by_crashing);
}

#[test]
fn table_not_awaited() {
    found(Bug::TableNotAwaited, "c4k_snapshots", by_crashing);
}

#[test]
fn entry_not_merged() {
    found(Bug::EntryNotMerged, "c16k_subclusters_small_reserve", by_the_model);
}

#[test]
fn raw_range_shared() {
    found(Bug::RawRangeShared, "c4k_raw_data_file", by_the_model);
}
