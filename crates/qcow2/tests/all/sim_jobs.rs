//! Jobs on a disk that guests use: what a crash at any instant leaves, what a failing or full medium below does, and what guests see
//! meanwhile, whatever the order of requests and of what users ask of the job.
//!
//! The disk is opened again after each crash, and the job begins anew; guests read everything meanwhile, and some go on. A job that fails
//! leaves the chain that was there. Users pause it, let it go on, cancel it by force or not, and complete it, at any moment.

use crate::jobs::{JobTarget, Kind};

use sim::campaign::{
    CrashCounts, CrashPlan, FaultCounts, FaultPlan, Setup, SpaceCounts, SpacePlan, crash_everywhere,
    fail_every_io, run_short_of_space, run_workload,
};
use sim::{CrashOptions, FaultKind, IoKind, Mix, Order, Persistence, Rng, Shape, Sweep, Target, Workload};

/// Workloads whose crashes are looked at, and how many states at least that must be.
const CRASHED: u64 = 4;
const STATES_MIN: u64 = 60;
/// Workloads in which each I/O fails once, in turns.
const FAILED: u64 = 2;
/// Workloads that are run and judged at their end.
const RUN: u64 = 30;

/// Guests with much to write, users who ask much of the job.
fn workload(target: &JobTarget, steps: usize, seed: u64) -> Workload {
    let mix = Mix { tidy: 3, discard: 2, zero: 2, ..Mix::swarm(&mut Rng::new(seed)) };
    let drops = seed % 4 == 3;
    Shape { mix: Some(mix), drops, ..Shape::new(target.abilities(), steps, 3) }.generate(seed)
}

fn crash(kind: Kind) {
    let target = JobTarget(kind);
    let mut total = CrashCounts::default();
    let sweep = Sweep::from_environment(&format!("{kind:?}"), CRASHED);
    sweep.run(|seed| {
        let states = CrashOptions { seed, exhaustive_atoms_max: 3, samples: 4, tears: 1, share: (24, 1) };
        let plan = CrashPlan { states, go_on_in_one_of: 8, go_on_steps: 30 };
        let mut judge = |state: &sim::CrashState| target.keeps_its_bitmaps(state);
        let workload = workload(&target, 12, seed);
        total += crash_everywhere(&target, &workload, &Setup::shuffled(seed), &plan, &mut judge)?;
        Ok(())
    });
    let CrashCounts { states, gone_on } = total;
    println!("looked at in {kind:?}: {states} crash states, {gone_on} crash states worked on with");
    assert!(!sweep.is_whole() || states >= STATES_MIN, "{states} crash states are too few to mean anything");
}

/// Failures that need not be reported: favours, and those of a copy that the job repeats by itself.
fn silent(kind: Kind) -> Vec<IoKind> {
    let favours = vec![IoKind::Discard, IoKind::Extent, IoKind::Lengthen, IoKind::Allocate];
    match kind {
        Kind::MirrorBlocking | Kind::Mirror | Kind::CommitTop => {
            [favours, vec![IoKind::Write, IoKind::Zero, IoKind::Read]].concat()
        }
        _ => favours,
    }
}

fn faults(kind: Kind) {
    let target = JobTarget(kind);
    let mut total = FaultCounts::default();
    let sweep = Sweep::from_environment(&format!("{kind:?}"), FAILED);
    sweep.run(|seed| {
        let ways = [
            (FaultKind::Io, Persistence::Once, Order::Shuffled),
            (FaultKind::NoSpace, Persistence::Times(6), Order::Shuffled),
            (FaultKind::Short, Persistence::Once, Order::Immediate),
            (FaultKind::Io, Persistence::FromThenOn, Order::Shuffled),
        ];
        let (how, persistence, order) = ways[seed as usize % ways.len()];
        let crash = CrashOptions { share: (256, 1), samples: 2, tears: 1, seed, exhaustive_atoms_max: 3 };
        let plan = FaultPlan {
            persistence,
            order,
            stride: 7,
            crash: Some(crash),
            silent: silent(kind),
            ..FaultPlan::once(how)
        };
        total += fail_every_io(&target, &workload(&target, 10, seed), seed, &plan)?;
        Ok(())
    });
    println!(
        "looked at in {kind:?}: {} fault positions, {} crash states",
        total.positions, total.crash_states
    );
    assert!(total.positions > 0, "{total:?}: nothing failed");
    assert!(!sweep.is_whole() || total.errors > 0, "{total:?}: no error was reported");
}

fn space(kind: Kind) {
    let target = JobTarget(kind);
    let mut total = SpaceCounts::default();
    let sweep = Sweep::from_environment(&format!("{kind:?}"), 2);
    sweep.run(|seed| {
        let plan = SpacePlan {
            shortages: 40,
            order: Order::Shuffled,
            crash: None,
            silent: silent(kind),
            leaks_max: u64::MAX,
        };
        total += run_short_of_space(&target, &workload(&target, 12, seed), seed, &plan)?;
        Ok(())
    });
    println!("looked at in {kind:?}: {} shortages", total.shortages);
    assert!(!sweep.is_whole() || total.shortages > 0, "room was never short");
}

fn interleave(kind: Kind) {
    let target = JobTarget(kind);
    Sweep::from_environment(&format!("{kind:?}"), RUN)
        .run(|seed| run_workload(&target, &workload(&target, 60, seed), &Setup::shuffled(seed)).map(drop));
}

#[test]
fn job_snapshot() {
    crash(Kind::Snapshot);
}

#[test]
fn job_stream() {
    crash(Kind::Stream);
}

#[test]
fn job_stream_to_a_base() {
    crash(Kind::StreamToBase);
}

#[test]
fn job_stream_below_the_top() {
    crash(Kind::StreamMiddle);
}

#[test]
fn job_commit_of_a_middle_image() {
    crash(Kind::CommitMiddle);
}

#[test]
fn job_commit_of_the_top() {
    crash(Kind::CommitTop);
}

#[test]
fn job_mirror() {
    crash(Kind::Mirror);
}

#[test]
fn job_mirror_write_blocking() {
    crash(Kind::MirrorBlocking);
}

#[test]
fn job_backup() {
    crash(Kind::Backup);
}

macro_rules! kinds {
    ($($name:ident: $kind:ident;)*) => {
        /// Each I/O fails: the job fails or goes on, and guests lose nothing.
        mod failing {
            $(#[test]
            fn $name() {
                super::faults(super::Kind::$kind);
            })*
        }

        /// The device is full for a while.
        mod full {
            $(#[test]
            fn $name() {
                super::space(super::Kind::$kind);
            })*
        }

        /// Steps of the job, requests of guests and verbs of users in many orders.
        mod beside_guests {
            $(#[test]
            fn $name() {
                super::interleave(super::Kind::$kind);
            })*
        }
    };
}

kinds! {
    snapshot: Snapshot;
    stream: Stream;
    stream_to_base: StreamToBase;
    stream_middle: StreamMiddle;
    commit_middle: CommitMiddle;
    commit_top: CommitTop;
    mirror: Mirror;
    mirror_blocking: MirrorBlocking;
    backup: Backup;
}
