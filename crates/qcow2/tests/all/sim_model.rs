//! Random requests of several queues, some of them dropped half-way, against the oracle.

use crate::harness;

use std::cell::Cell;

use harness::{Qcow2Target, config};
use sim::campaign::{Setup, run_workload};
use sim::{Failure, FailureKind, Shape, Sweep, Target, Workload};

/// Of so many runs one is shown to `qemu-img convert` and `qemu-img check` at its end.
const ASKED_OF_QEMU_ONE_IN: u64 = 45;

/// Steps of one workload.
const STEPS: usize = 300;

/// Rounds of smaller and larger again in one workload about sizes.
const RESIZES: usize = 12;

fn run(name: &str, seeds: u64) {
    run_with(name, seeds, |target, seed| {
        let drops = seed % 2 == 1;
        Shape { drops, ..Shape::new(target.abilities(), STEPS, 4) }.generate(seed)
    });
}

/// A table that was read ahead while a shrink freed it once came back into the map cache behind the shrink.
fn run_resizes(name: &str, seeds: u64) {
    run_with(name, seeds, |target, seed| {
        Shape::new(target.abilities(), STEPS, 4).generate_resizes(seed, RESIZES)
    });
}

fn run_with(name: &str, seeds: u64, made: impl Fn(&Qcow2Target, u64) -> Workload) {
    let target = Qcow2Target::new(config(name));
    let operations = Cell::new(0);
    Sweep::from_environment(name, seeds).run(|seed| {
        let workload = made(&target, seed);
        operations.set(operations.get() + workload.steps.len());
        let ran = run_workload(&target, &workload, &Setup::shuffled(seed))?;
        if seed % ASKED_OF_QEMU_ONE_IN != 0 {
            return Ok(());
        }
        let asked = target.read_by_qemu(&ran.world, &ran.model).map_err(FailureKind::Check);
        asked.map_err(|kind| Box::new(Failure::new(kind, target.name(), seed, &workload)))
    });
    println!("looked at in {name}: {} operations against the model", operations.get());
}

macro_rules! configurations {
    ($($name:ident: $seeds:expr;)*) => {
        mod model {
            $(#[test]
            fn $name() {
                super::run(stringify!($name), $seeds);
            })*
        }
    };
}

configurations! {
    c512: 68;
    c512_r1_tiny: 68;
    c512_r64_tiny: 68;
    c512_table_grows: 68;
    c1k_v2_on_raw: 68;
    c1k_v2: 68;
    c4k: 68;
    c4k_device: 68;
    c4k_on_qcow2: 68;
    c64k_on_chain: 68;
    c4k_on_chain_tiny: 68;
    c1k_prefetch: 68;
    c64k_on_chain_prefetch: 68;
    c4k_no_unref: 68;
    c4k_compressed: 68;
    c4k_snapshots: 68;
    c4k_packs: 68;
    c4k_packs_few_references: 68;
    c4k_snapshots_compressed: 68;
    c4k_bitmap: 68;
    c4k_lazy: 68;
    c16k_subclusters_on_qcow2: 68;
    c16k_subclusters_snapshots: 68;
    c64k_subclusters_zstd: 68;
    c64k: 68;
    c64k_on_short_raw: 68;
    c4k_encrypted: 30;
    c512_encrypted_resized: 30;
    c16k_subclusters_encrypted_snapshotted: 30;
    c2m: 17;
    c4k_data_file: 68;
    c4k_raw_data_file: 68;
    c512_resized: 68;
    c512_resized_prefetch: 68;
    c4k_resized_under_longer: 68;
    c1k_v2_resized: 68;
    c4k_compressed_resized: 68;
    c4k_lazy_resized: 68;
    c16k_subclusters_resized: 68;
    c4k_raw_data_file_resized: 68;
    c512_snapshotted: 68;
    c1k_v2_snapshotted_on_raw: 68;
    c4k_snapshotted_and_resized: 68;
    c4k_compressed_snapshotted: 68;
    c4k_lazy_snapshotted: 68;
    c16k_subclusters_snapshotted: 68;
    c4k_lazy_changed: 68;
    c512_snapshotted_and_changed: 68;
    c4k_device_snapshotted: 68;
    c512_reserve: 68;
    c512_table_grows_reserve: 68;
    c4k_reserve: 68;
    c4k_device_reserve: 68;
    c4k_on_qcow2_reserve: 68;
    c4k_snapshots_reserve: 68;
    c4k_lazy_reserve: 68;
    c16k_subclusters_reserve: 68;
    c16k_subclusters_small_reserve: 68;
    c16k_subclusters_on_qcow2_reserve: 68;
    c512_resized_reserve: 68;
    c4k_snapshotted_and_resized_reserve: 68;
    c16k_subclusters_snapshotted_reserve: 68;
    c16k_subclusters_data_file: 68;
    c16k_subclusters_raw_data_file: 68;
    c4k_bitmap_reserve: 68;
    c4k_bitmap_snapshotted: 40;
    c512_bitmap_resized_reserve: 40;
    c4k_second_writer: 68;
    c512_second_writer_resized: 68;
    c4k_second_writer_raw_data_file: 68;
}

macro_rules! resizing {
    ($($name:ident: $seeds:expr;)*) => {
        mod resizing {
            $(#[test]
            fn $name() {
                super::run_resizes(stringify!($name), $seeds);
            })*
        }
    };
}

resizing! {
    c512_resized_prefetch: 200;
    c4k_resized_under_longer: 68;
    c16k_subclusters_resized: 68;
    c4k_snapshotted_and_resized_reserve: 68;
}
