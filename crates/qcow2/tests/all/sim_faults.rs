//! Every I/O below the engine fails, once or from then on; the disk works on and loses nothing.

use crate::harness;

use harness::{Qcow2Target, config};
use sim::campaign::{FaultCounts, FaultPlan, fail_every_io, minimize};
use sim::{CrashOptions, FaultKind, IoKind, Order, Persistence, Shape, Sweep, Target, Workload};

/// The ways to fail, taken in turns by the seeds.
const WAYS: [Way; 6] = [
    (FaultKind::Io, Persistence::Once, Order::Immediate),
    (FaultKind::Io, Persistence::Once, Order::Shuffled),
    (FaultKind::NoSpace, Persistence::FromThenOn, Order::Shuffled),
    (FaultKind::Short, Persistence::Once, Order::Shuffled),
    (FaultKind::NoSpace, Persistence::Once, Order::Immediate),
    (FaultKind::Io, Persistence::FromThenOn, Order::Shuffled),
];

/// The same for changes of size: also a medium that fails for as long as one of them takes, and recovers before the next.
const RESIZE_WAYS: [Way; 6] = [
    (FaultKind::Io, Persistence::Once, Order::Immediate),
    (FaultKind::Io, Persistence::Once, Order::Shuffled),
    (FaultKind::Io, Persistence::Times(5), Order::Shuffled),
    (FaultKind::NoSpace, Persistence::Times(12), Order::Immediate),
    (FaultKind::Io, Persistence::FromThenOn, Order::Shuffled),
    (FaultKind::Short, Persistence::Times(3), Order::Shuffled),
];

fn run(name: &str, seeds: u64, steps: usize) {
    run_with(name, seeds, |target, seed| {
        let shape = Shape { drops: seed % 4 == 3, ..Shape::new(target.abilities(), steps, 3) };
        (shape.generate(seed), WAYS[seed as usize % WAYS.len()])
    });
}

/// A resize that fails half-way once left slices of tables that it had freed in the map cache: after the next resize two parts of
/// the disk shared clusters, and each overwrote the other's data.
fn run_resizes(name: &str, seeds: u64, rounds: usize) {
    run_with(name, seeds, |target, seed| {
        let workload = Shape::new(target.abilities(), 0, 2).generate_resizes(seed, rounds);
        (workload, RESIZE_WAYS[seed as usize % RESIZE_WAYS.len()])
    });
}

type Way = (FaultKind, Persistence, Order);

fn run_with(name: &str, seeds: u64, made: impl Fn(&Qcow2Target, u64) -> (Workload, Way)) {
    let target = Qcow2Target::new(config(name));
    let mut total = FaultCounts::default();
    let sweep = Sweep::from_environment(name, seeds);
    let workloads = sweep.run(|seed| {
        let (workload, (how, persistence, order)) = made(&target, seed);
        let crash = CrashOptions { share: (256, 1), samples: 4, tears: 1, seed, exhaustive_atoms_max: 5 };
        // Making the file longer ahead of writes is a favour as well: they do it themselves otherwise. A cut
        // was asked for, or belongs to the close: the caller must hear that the file is as long as before.
        let mut silent = vec![IoKind::Discard, IoKind::Extent, IoKind::Lengthen];
        // So is room reserved ahead, and a reserve: where there is no room for them, there are none. What must be reported on a full device is a
        // law of `sim_space.rs`.
        if how == FaultKind::NoSpace {
            silent.push(IoKind::Allocate);
            if config(name).reserve > 0 {
                silent.push(IoKind::Read);
            }
        }
        let plan = FaultPlan { persistence, order, crash: Some(crash), silent, ..FaultPlan::once(how) };
        match fail_every_io(&target, &workload, seed, &plan) {
            Ok(counts) => total += counts,
            Err(failure) => {
                let again = |workload: &Workload| fail_every_io(&target, workload, seed, &plan).map(drop);
                return Err(minimize(failure, 200, again));
            }
        }
        Ok(())
    });
    let FaultCounts { positions, crash_states, .. } = total;
    println!(
        "looked at in {name}: {workloads} workloads with failing I/O, {positions} fault positions, {crash_states} crash states after a fault"
    );
    assert!(total.positions > 0, "{total:?}: nothing failed");
    assert!(!sweep.is_whole() || total.errors > 0, "{total:?}: no error was reported");
}

macro_rules! configurations {
    ($($name:ident: $seeds:expr, $steps:expr;)*) => {
        mod faults {
            $(#[test]
            fn $name() {
                super::run(stringify!($name), $seeds, $steps);
            })*
        }
    };
}

configurations! {
    c512: 12, 30;
    c512_r1_tiny: 12, 30;
    c512_r64_tiny: 12, 30;
    c512_table_grows: 6, 40;
    c1k_v2_on_raw: 12, 30;
    c1k_v2: 12, 30;
    c4k: 12, 30;
    c4k_device: 12, 30;
    c4k_on_qcow2: 12, 30;
    c64k_on_chain: 12, 30;
    c4k_on_chain_tiny: 12, 30;
    c1k_prefetch: 12, 30;
    c64k_on_chain_prefetch: 12, 30;
    c4k_no_unref: 12, 30;
    c4k_compressed: 12, 30;
    c4k_snapshots: 12, 30;
    c4k_packs: 12, 30;
    c4k_packs_few_references: 12, 30;
    c4k_snapshots_compressed: 12, 30;
    c4k_bitmap: 12, 30;
    c4k_lazy: 4, 20;
    c16k_subclusters_on_qcow2: 12, 30;
    c16k_subclusters_snapshots: 12, 30;
    c64k_subclusters_zstd: 12, 30;
    c64k: 12, 30;
    c64k_on_short_raw: 12, 30;
    c4k_encrypted: 4, 30;
    c512_encrypted_resized: 4, 30;
    c16k_subclusters_encrypted_snapshotted: 4, 30;
    c2m: 2, 12;
    c4k_data_file: 12, 30;
    c4k_raw_data_file: 12, 30;
    c512_reserve: 6, 30;
    c512_table_grows_reserve: 4, 30;
    c4k_reserve: 6, 30;
    c4k_device_reserve: 6, 30;
    c4k_on_qcow2_reserve: 6, 30;
    c4k_snapshots_reserve: 6, 30;
    c4k_lazy_reserve: 4, 20;
    c16k_subclusters_reserve: 6, 30;
    c16k_subclusters_small_reserve: 6, 30;
    c16k_subclusters_on_qcow2_reserve: 6, 30;
    c512_resized_reserve: 6, 30;
    c4k_snapshotted_and_resized_reserve: 6, 30;
    c16k_subclusters_snapshotted_reserve: 6, 30;
    c512_resized: 6, 30;
    c4k_resized_under_longer: 6, 30;
    c1k_v2_resized: 6, 30;
    c4k_compressed_resized: 6, 30;
    c4k_lazy_resized: 2, 20;
    c16k_subclusters_resized: 6, 30;
    c4k_raw_data_file_resized: 6, 30;
    c512_snapshotted: 6, 30;
    c1k_v2_snapshotted_on_raw: 6, 30;
    c4k_snapshotted_and_resized: 6, 30;
    c4k_compressed_snapshotted: 6, 30;
    c4k_lazy_snapshotted: 2, 20;
    c16k_subclusters_snapshotted: 6, 30;
    c4k_lazy_changed: 6, 30;
    c512_snapshotted_and_changed: 6, 30;
    c4k_device_snapshotted: 6, 30;
    c16k_subclusters_data_file: 6, 30;
    c16k_subclusters_raw_data_file: 6, 30;
    c4k_bitmap_reserve: 6, 30;
    c4k_bitmap_snapshotted: 4, 30;
    c512_bitmap_resized_reserve: 4, 30;
    c4k_second_writer: 6, 30;
    c512_second_writer_resized: 6, 30;
    c4k_second_writer_raw_data_file: 6, 30;
}

macro_rules! resizing {
    ($($name:ident: $seeds:expr, $rounds:expr;)*) => {
        mod resizing {
            $(#[test]
            fn $name() {
                super::run_resizes(stringify!($name), $seeds, $rounds);
            })*
        }
    };
}

resizing! {
    c512_resized_prefetch: 12, 2;
    c512_resized: 6, 2;
    c4k_resized_under_longer: 6, 2;
    c1k_v2_resized: 6, 2;
    c16k_subclusters_resized: 6, 2;
    c4k_snapshotted_and_resized_reserve: 6, 2;
    c4k_raw_data_file_resized: 6, 2;
}
