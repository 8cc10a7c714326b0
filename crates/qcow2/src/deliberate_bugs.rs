//! The simulation can fail: each bug that is put in on purpose is found, and soon.
//!
//! It stands in the engine's library because only tests inside it can have bugs that no program has, without building the engine once more.
//!
//! `cargo test -p cowhand-qcow2 --lib deliberate_bugs::`

#[path = "../tests/unlike/chains/mod.rs"]
mod chains;
#[path = "../tests/all/harness/mod.rs"]
mod harness;

use std::panic::AssertUnwindSafe;

use crate::deliberate::{Bug, put_in};
use chains::{Case, Kind, Mode};
use harness::{Qcow2Target, RAW, config, judge};
use job::deliberate::Bug as CopyBug;
use sim::campaign::{CrashPlan, FaultPlan, Setup, crash_everywhere, fail_every_io, run_workload};
use sim::deliberate::Bug as DiskBug;
use sim::{
    CrashOptions, Durability, Failure, FaultKind, IoKind, Management, Mix, Op, Order, Persistence, Rng,
    Shape, Step, Sweep, Target, Workload,
};

/// Seeds among which a bug must be found: all of them take seconds.
const SEEDS: u64 = 400;

/// The first of the seeds that finds the bug. Without the bug that seed must find nothing.
fn found(bug: Bug, name: &str, one: impl Fn(&Qcow2Target, u64) -> Result<(), Box<Failure>>) {
    let target = Qcow2Target::new(config(name));
    put_in(Some(bug));
    let first = first_seed(|seed| one(&target, seed));
    put_in(None);
    say_and_confirm(&format!("{bug:?}"), name, first, |seed| one(&target, seed));
}

/// The same for a bug of the disks below.
fn found_below(bug: DiskBug, name: &str, one: impl Fn(u64) -> Result<(), Box<Failure>>) {
    sim::deliberate::put_in(Some(bug));
    let first = first_seed(&one);
    sim::deliberate::put_in(None);
    say_and_confirm(&format!("{bug:?}"), name, first, one);
}

type FirstFailure = Option<(u64, Box<Failure>)>;

fn first_seed(one: impl Fn(u64) -> Result<(), Box<Failure>>) -> FirstFailure {
    (0..SEEDS).find_map(|seed| one(seed).err().map(|failure| (seed, failure)))
}

fn say_and_confirm(
    bug: &str,
    name: &str,
    first: FirstFailure,
    one: impl Fn(u64) -> Result<(), Box<Failure>>,
) {
    let Some((seed, failure)) = first else { panic!("{bug} is not found in {SEEDS} seeds of {name}") };
    println!("{bug}: {name}, seed {seed}: {}", failure.kind);
    if let Err(failure) = one(seed) {
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

fn resizes(target: &Qcow2Target, rounds: usize, seed: u64) -> Workload {
    Shape::new(target.abilities(), 0, 2).generate_resizes(seed, rounds)
}

fn by_resizing(target: &Qcow2Target, seed: u64) -> Result<(), Box<Failure>> {
    run_workload(target, &resizes(target, 8, seed), &Setup::shuffled(seed)).map(drop)
}

fn by_failing_resizes(target: &Qcow2Target, seed: u64) -> Result<(), Box<Failure>> {
    let plan = FaultPlan {
        persistence: Persistence::Times(5),
        order: Order::Shuffled,
        stride: 7,
        ..FaultPlan::once(FaultKind::Io)
    };
    fail_every_io(target, &resizes(target, 1, seed), seed, &plan).map(drop)
}

/// What a person who sees a failure needs: what it was, where, and how to see it again.
#[test]
fn a_failure_prints_seed_commit_and_the_command_that_shows_it_again() {
    let target = Qcow2Target::new(config("c4k"));
    let sweep = Sweep::from_environment("c4k", SEEDS);
    let panic = std::panic::catch_unwind(AssertUnwindSafe(|| {
        put_in(Some(Bug::RefcountAfterL2));
        sweep.run(|seed| by_crashing(&target, seed))
    }));
    let panic = panic.expect_err("the bug is found");
    let said = panic.downcast_ref::<String>().expect("a panic with words");
    let seed = said.strip_prefix("seed ").and_then(|rest| rest.split_once(':')).map(|(seed, _)| seed);
    let seed: u64 = seed.and_then(|seed| seed.parse().ok()).expect("the seed comes first");
    let name = "deliberate_bugs::a_failure_prints_seed_commit_and_the_command_that_shows_it_again";
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

/// Another process had the image when we opened it, wrote, and released it while we waited for the lock. With the
/// length from before, its tables were "past the end of the file", the image was marked corrupt, and what it had
/// flushed was cut off.
#[test]
fn length_before_lock() {
    let target = Qcow2Target::new(config("c4k_second_writer"));
    found_below(DiskBug::LengthBeforeLock, "c4k_second_writer", |seed| by_the_model(&target, seed));
}

#[test]
fn length_before_lock_where_the_other_cuts_the_file() {
    let name = "c512_second_writer_resized";
    let target = Qcow2Target::new(config(name));
    found_below(DiskBug::LengthBeforeLock, name, |seed| by_the_model(&target, seed));
}

/// Two clients of a raw disk flushed at once, and writeback had failed. The kernel reported one of the flushes; the other
/// succeeded, was answered first, and what its client had written was gone.
#[test]
fn flushes_side_by_side() {
    let one = |seed| {
        let abilities = RAW.abilities();
        let mix = Mix { flush: 12, reopen: 0, ..Mix::swarm(&mut Rng::new(seed)) };
        let shape = Shape { mix: Some(mix), ..Shape::new(abilities, 40, 4) };
        let crash = CrashOptions { seed, exhaustive_atoms_max: 6, samples: 8, tears: 1, share: (4, 1) };
        let plan = FaultPlan {
            kind: Some(IoKind::Flush),
            order: Order::Shuffled,
            crash: Some(crash),
            ..FaultPlan::once(FaultKind::Io)
        };
        fail_every_io(&RAW, &shape.generate(seed), seed, &plan).map(drop)
    };
    found_below(DiskBug::FlushesSideBySide, "raw", one);
}

#[test]
fn tables_forgotten_at_the_end() {
    found(Bug::TablesForgottenAtTheEnd, "c512_resized_prefetch", by_failing_resizes);
}

#[test]
fn stale_load_lands() {
    found(Bug::StaleLoadLands, "c512_resized_prefetch", by_resizing);
}

/// A shrink failed when it wrote the refcount table, and what it had dropped was allocated.
#[test]
fn blocks_forgotten_first() {
    let one = |target: &Qcow2Target, seed| {
        let size = target.config().size / 4;
        let write = Op::Write { at: size / 8, len: size / 2, durability: Durability::AtFlush };
        let steps = [Op::Manage(Management::Resize(size)), write, Op::Flush].map(Step::of);
        let plan = FaultPlan { kind: Some(IoKind::Write), ..FaultPlan::once(FaultKind::Io) };
        fail_every_io(target, &Workload { steps: steps.to_vec() }, seed, &plan).map(drop)
    };
    found(Bug::BlocksForgottenFirst, "c512_resized", one);
}

/// Seeds among which a fault of copies must be found: some hundred are of one kind.
const COPY_SEEDS: u64 = 8000;

/// A fault of copies, which may need one of the engine to show; it is found in the seeds of one kind of job or tool.
fn found_in_copies(bugs: (Option<CopyBug>, Option<Bug>), kind: Kind) {
    found_in_cases(bugs, &format!("{kind:?}"), |case| case.kind() == kind);
}

/// The same, in the seeds of some cases.
fn found_in_cases(bugs: (Option<CopyBug>, Option<Bug>), name: &str, is_one: impl Fn(&Case) -> bool) {
    let put = |(copy, engine)| {
        job::deliberate::put_in(copy);
        put_in(engine);
    };
    put(bugs);
    let mut seeds = (0..COPY_SEEDS).filter(|seed| is_one(&chains::case(*seed)));
    let first = seeds.find_map(|seed| chains::run(seed).err().map(|failure| (seed, failure)));
    put((None, None));
    say_and_confirm(&format!("{bugs:?}"), name, first, |seed| chains::run(seed).map(drop));
}

/// Old data of the base showed behind the end of a short middle layer when that was committed.
#[test]
fn short_layer_says_nothing() {
    found_in_copies((Some(CopyBug::ShortLayerSaysNothing), None), Kind::CommitMiddle);
}

/// The same with the tool.
#[test]
fn short_layer_says_nothing_to_the_tool() {
    found_in_copies((Some(CopyBug::ShortLayerSaysNothing), None), Kind::CommitToBase);
}

/// A guest wrote to both sides of a shallow mirror, less than a cluster of the target: the rest of that became zeroes. It did so from the
/// beginning, or since the mirror had gone over to it by itself.
#[test]
fn part_written_through() {
    for mode in [Mode::Blocking, Mode::Switching] {
        let bugs = (Some(CopyBug::PartWrittenThrough), None);
        let name = format!("MirrorTop, {mode:?}");
        found_in_cases(bugs, &name, |case| case.kind() == Kind::MirrorTop && case.mode() == mode);
    }
}

/// The unit of a shallow mirror was smaller than a cluster of its target.
#[test]
fn rest_from_target() {
    found_in_copies((Some(CopyBug::RestFromTarget), None), Kind::MirrorTop);
}

/// Zeroes of the layers that went were left out where the base had data in the rest of a cluster.
#[test]
fn base_asked_in_part_by_a_stream() {
    found_in_copies((Some(CopyBug::BaseAskedInPart), Some(Bug::ZeroesNotRecorded)), Kind::StreamToBase);
}

/// The same with the tool.
#[test]
fn base_asked_in_part_by_flatten() {
    found_in_copies((Some(CopyBug::BaseAskedInPart), Some(Bug::ZeroesNotRecorded)), Kind::FlattenToBase);
}

/// Likewise for the base that an image was put over.
#[test]
fn base_asked_in_part_by_a_rebase() {
    found_in_copies((Some(CopyBug::BaseAskedInPart), Some(Bug::ZeroesNotRecorded)), Kind::Rebase);
}

/// A restored disk showed what the point before had where a guest had zeroed less than a cluster of the backup since.
#[test]
fn zeroes_left_out_of_an_incremental_backup() {
    found_in_copies((Some(CopyBug::ZeroesLeftOut), None), Kind::BackupIncremental);
}

/// The same with the tool.
#[test]
fn zeroes_left_out_by_the_backup_tool() {
    found_in_copies((Some(CopyBug::ZeroesLeftOut), None), Kind::BackupTool);
}

/// The same in a shallow backup.
#[test]
fn zeroes_left_out_of_a_shallow_backup() {
    found_in_copies((Some(CopyBug::ZeroesLeftOut), None), Kind::BackupTop);
}

/// The same in a shallow mirror.
#[test]
fn zeroes_left_out_of_a_shallow_mirror() {
    found_in_copies((Some(CopyBug::ZeroesLeftOut), None), Kind::MirrorTop);
}

/// An image was written and then put over a base by `rebase -u`: the base showed where zeroes had been written.
#[test]
fn zeroes_not_recorded() {
    found_in_copies((None, Some(Bug::ZeroesNotRecorded)), Kind::RebaseUnsafe);
}

/// A compressed cluster has no place in the file as it is, and counts all the same.
#[test]
fn compressed_says_nothing() {
    found_in_copies((Some(CopyBug::CompressedSaysNothing), None), Kind::CommitMiddle);
}

/// The same in a shallow backup.
#[test]
fn compressed_says_nothing_to_a_shallow_backup() {
    found_in_copies((Some(CopyBug::CompressedSaysNothing), None), Kind::BackupTop);
}

/// The same with the tool.
#[test]
fn compressed_says_nothing_to_the_tool() {
    found_in_copies((Some(CopyBug::CompressedSaysNothing), None), Kind::ConvertOver);
}

/// A part of a compressed cluster was overwritten, and the rest of it went with it.
#[test]
fn packed_rest_lost() {
    found_in_copies((None, Some(Bug::PackedRestLost)), Kind::CommitTop);
}

#[test]
fn packed_freed_early() {
    found_in_copies((None, Some(Bug::PackedFreedEarly)), Kind::Commit);
}

#[test]
fn packed_neighbours_punched() {
    found_in_copies((None, Some(Bug::PackedNeighboursPunched)), Kind::Commit);
}
