//! The harness can fail: it finds nothing in a correct disk, and each bug that is put in on purpose.

use crate::toy;

use sim::campaign::{
    CrashCounts, CrashPlan, FaultCounts, FaultPlan, Setup, crash_everywhere, fail_every_io, minimize,
    run_workload,
};
use sim::{CrashOptions, Failure, FailureKind, FaultKind, Order, Shape, Target, Workload};
use toy::{Bug, ToyTarget};

fn workload(target: &ToyTarget, steps: usize, queues: u8, seed: u64) -> Workload {
    Shape::new(target.abilities(), steps, queues).generate(seed)
}

fn crash(bug: Bug, seed: u64) -> Result<CrashCounts, Box<Failure>> {
    let target = ToyTarget { bug };
    let plan = CrashPlan {
        states: CrashOptions { samples: 16, tears: 2, seed, ..CrashOptions::default() },
        go_on_in_one_of: 32,
        go_on_steps: 30,
    };
    crash_everywhere(&target, &workload(&target, 30, 3, seed), &Setup::shuffled(seed), &plan, &mut |_| Ok(()))
}

/// The first failure among forty seeds.
fn found<T: Default + std::ops::AddAssign>(
    run: impl Fn(u64) -> Result<T, Box<Failure>>,
) -> Result<T, Box<Failure>> {
    found_in(40, run)
}

fn found_in<T: Default + std::ops::AddAssign>(
    seeds: u64,
    run: impl Fn(u64) -> Result<T, Box<Failure>>,
) -> Result<T, Box<Failure>> {
    let mut total = T::default();
    for seed in 0..seeds {
        total += run(seed)?;
    }
    Ok(total)
}

#[test]
fn a_correct_disk_survives_every_crash() {
    let counts = found(|seed| crash(Bug::None, seed)).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(counts.states > 10_000 && counts.gone_on > 100, "{counts:?}");
}

#[test]
fn a_correct_disk_survives_every_fault() {
    let target = ToyTarget { bug: Bug::None };
    for how in [FaultKind::Io, FaultKind::NoSpace, FaultKind::Short] {
        let counts = found_in(12, |seed| {
            let plan = FaultPlan {
                crash: Some(CrashOptions { share: (64, 1), samples: 4, ..CrashOptions::default() }),
                ..FaultPlan::once(how)
            };
            fail_every_io(&target, &workload(&target, 12, 2, seed), seed, &plan)
        });
        let counts: FaultCounts = counts.unwrap_or_else(|failure| panic!("{failure}"));
        assert!(counts.positions > 200 && counts.crash_states > 200, "{counts:?}");
    }
}

#[test]
fn a_flush_that_does_nothing_is_found() {
    let failure = found(|seed| crash(Bug::MissingFlush, seed)).unwrap_err();
    assert!(matches!(failure.kind, FailureKind::Data(_)), "{failure}");
}

#[test]
fn a_table_entry_before_its_data_is_found() {
    let failure = found(|seed| crash(Bug::TableBeforeData, seed)).unwrap_err();
    assert!(matches!(failure.kind, FailureKind::Data(_) | FailureKind::Check(_)), "{failure}");
}

#[test]
fn a_missing_barrier_is_found_and_the_report_tells_the_crash() {
    let failure = found(|seed| crash(Bug::NoBarrier, seed)).unwrap_err();
    assert!(matches!(failure.kind, FailureKind::Data(_) | FailureKind::Check(_)), "{failure}");
    let report = failure.to_string();
    assert!(report.contains("crash at tick") && report.contains("dropped: #"), "{report}");
}

#[test]
fn a_punch_that_lands_in_a_reused_cluster_is_found() {
    let failure = found(|seed| {
        let target = ToyTarget { bug: Bug::LatePunch };
        run_workload(&target, &workload(&target, 60, 3, seed), &Setup::shuffled(seed)).map(|_| 0)
    });
    assert!(matches!(failure.unwrap_err().kind, FailureKind::Data(_)));
}

#[test]
fn an_error_that_nobody_was_reported_is_found() {
    let target = ToyTarget { bug: Bug::SwallowedError };
    let plan = FaultPlan::once(FaultKind::Io);
    let failure =
        found(|seed| fail_every_io(&target, &workload(&target, 20, 1, seed), seed, &plan)).unwrap_err();
    assert!(matches!(failure.kind, FailureKind::Swallowed(_) | FailureKind::Data(_)), "{failure}");
}

#[test]
fn writers_that_do_not_exclude_each_other_are_found() {
    let failure = found_in(500, |seed| {
        let target = ToyTarget { bug: Bug::NoLock };
        run_workload(&target, &workload(&target, 100, 4, seed), &Setup::shuffled(seed)).map(|_| 0)
    });
    assert!(matches!(failure.unwrap_err().kind, FailureKind::Data(_)));
}

#[test]
fn a_dropped_table_write_that_lands_late_is_found() {
    // The toy is right only while no client drops its futures: an old table may land over a newer one.
    let target = ToyTarget { bug: Bug::None };
    // Flushes that wait for each other leave few such moments.
    let failure = found_in(2000, |seed| {
        let shape = Shape { drops: true, ..Shape::new(target.abilities(), 100, 3) };
        run_workload(&target, &shape.generate(seed), &Setup::shuffled(seed)).map(|_| 0)
    });
    assert!(matches!(failure.unwrap_err().kind, FailureKind::Data(_)));
}

#[test]
fn a_panic_is_a_failure_and_shrinks_to_one_step() {
    let target = ToyTarget { bug: Bug::Panics };
    let setup = Setup { order: Order::Immediate, ..Setup::shuffled(1) };
    let run = |workload: &Workload| run_workload(&target, workload, &setup).map(drop);
    let failure = (0..40).find_map(|seed| run(&workload(&target, 40, 2, seed)).err()).unwrap();
    let small = minimize(failure, 300, run);
    assert!(matches!(small.kind, FailureKind::Panic(_)), "{small}");
    assert_eq!(small.workload.steps.len(), 1, "{small}");
}

#[test]
fn the_same_seed_finds_the_same_failure() {
    let failure = || {
        let first = (0..40).find_map(|seed| crash(Bug::TableBeforeData, seed).err());
        first.unwrap().to_string()
    };
    assert_eq!(failure(), failure());
}
