//! Faults that other implementations of the format have shipped: each has a test here, in `tests/faults.rs` (where
//! the whole program is needed) or in docs/internals/write-order.md's.

use crate::harness;

use harness::{Qcow2Target, config, judge};
use sim::campaign::{FaultPlan, Ran, Setup, fail_every_io, run_workload};
use sim::{Durability, Fault, FaultKind, IoKind, Op, Order, Persistence, Step, Workload};
use storage::Zeroing;

const K: u64 = 1 << 10;

fn workload(ops: Vec<Op>) -> Workload {
    Workload { steps: ops.into_iter().map(Step::of).collect() }
}

fn write(at: u64, len: u64) -> Op {
    Op::Write { at, len, durability: Durability::AtFlush }
}

fn run(name: &str, ops: Vec<Op>, faults: Vec<Fault>) -> Ran {
    let setup = Setup { order: Order::Immediate, faults, ..Setup::shuffled(1) };
    let ran = run_workload(&Qcow2Target::new(config(name)), &workload(ops), &setup);
    ran.unwrap_or_else(|failure| panic!("{failure}"))
}

/// As [`run`]; everything works, and nothing is left over.
fn run_without_leaks(name: &str, ops: Vec<Op>) -> Ran {
    let ran = run(name, ops, Vec::new());
    assert_eq!((ran.leaks, &ran.errors[..]), (0, &[][..]), "{name}");
    ran
}

/// Their allocator gave out an L2 table that had left the cache.
#[test]
fn an_l2_table_that_left_memory_is_still_in_use() {
    let size = config("c512_r64_tiny").size;
    let all = |step: u64| (0..size / step).map(move |index| write(index * step, step));
    let mut ops: Vec<Op> = all(8 * K).collect();
    ops.extend([Op::Flush, Op::Discard { at: 0, len: size }, Op::Flush]);
    ops.extend(all(4 * K));
    let ran = run_without_leaks("c512_r64_tiny", ops);
    let tables =
        judge::pieces(&ran.world.current(0)).into_values().filter(|piece| *piece == judge::Piece::L2);
    assert!(tables.count() > 4, "too few tables to leave the cache");
}

/// A cluster whose write had failed was free and in use at once.
#[test]
fn after_a_write_that_failed_its_cluster_is_given_out_once() {
    for nth in 1..40 {
        for kind in [IoKind::Write, IoKind::Flush] {
            let fault = Fault { kind: Some(kind), ..Fault::nth(nth, FaultKind::Io) };
            let places = [64 * K, 128 * K, 64 * K, 256 * K, 128 * K];
            let ops = places.into_iter().flat_map(|at| [write(at, 5000), Op::Flush]);
            run("c4k", ops.collect(), vec![fault]);
        }
    }
}

/// An offset of 0 in a table let guest data go to the header.
#[test]
fn the_header_is_no_place_for_a_guest() {
    let mut before = [0; 512];
    Qcow2Target::new(config("c512")).world(1).current(0).read(0, &mut before);
    let size = config("c512").size;
    let ran = run_without_leaks("c512", vec![write(0, size), Op::Flush, Op::Discard { at: 0, len: size }]);
    let mut after = [0; 512];
    ran.world.current(0).read(0, &mut after);
    assert_eq!(&before[..48], &after[..48], "magic to L1");
}

/// Refcount blocks and tables were left behind where they had been, until the host was full.
#[test]
fn refcount_structures_that_move_leave_nothing_behind() {
    let grow = || (0..40).map(|index| write((2048 + index * 32) * K, 32 * K));
    let ops = grow().chain([Op::Flush, Op::Reopen { variant: 0 }]).chain(grow());
    run_without_leaks("c512_table_grows", ops.collect());
}

/// Of a compressed cluster that lies in two clusters of the host, only the first was freed.
#[test]
fn a_compressed_cluster_that_spans_two_is_freed_in_both() {
    let rewrite = (0..32).map(|index| write(index * 4 * K, 4 * K));
    run_without_leaks("c4k_compressed", rewrite.chain([Op::Flush]).collect());
    let zero = Op::Zero { at: 0, len: 128 * K, how: Zeroing::Unmap, durability: Durability::AtFlush };
    run_without_leaks("c4k_compressed", vec![zero, Op::Flush]);
}

/// A table of which a read gave only the beginning was zeroes from there on: unallocated.
#[test]
fn a_table_that_is_read_short_is_no_table_of_zeroes() {
    let short = FaultPlan { kind: Some(IoKind::Read), ..FaultPlan::once(FaultKind::Short) };
    for persistence in [Persistence::Once, Persistence::FromThenOn] {
        for name in ["c4k_snapshots", "c4k_on_qcow2", "c16k_subclusters_snapshots"] {
            let ops = [write(64 * K, 5000), Op::Flush, Op::Read { at: 0, len: 128 * K }];
            let plan = FaultPlan { persistence, ..short.clone() };
            let target = Qcow2Target::new(config(name));
            let counts = fail_every_io(&target, &workload(ops.to_vec()), 1, &plan);
            let counts = counts.unwrap_or_else(|failure| panic!("{failure}"));
            assert!(counts.positions > 3 && counts.errors >= counts.positions, "{counts:?}");
        }
    }
}
