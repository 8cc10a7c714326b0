//! What a crash at any instant leaves: opened, read, used further, judged.

use crate::harness;

use std::cell::Cell;

use harness::{Qcow2Target, config};
use sim::campaign::{CrashCounts, CrashPlan, Setup, crash_everywhere};
use sim::{CrashOptions, Shape, Sweep, Target, scaled};

/// Of so many states one is shown to `qemu-img check`.
const ASKED_OF_QEMU_ONE_IN: u64 = 400;

/// In one of so many it is looked whether the reserve comes back.
const GIVEN_BACK_ONE_IN: u64 = 16;

/// Workloads from one seed after the other until so many crash states were looked at.
fn run(name: &str, states: u64, steps: usize) {
    let target = Qcow2Target::new(config(name));
    let sweep = Sweep::from_environment(name, 2000);
    let wanted = if sweep.is_asked_for() { u64::MAX } else { scaled(states) };
    let total = Cell::new(CrashCounts::default());
    let one = |seed: u64| {
        if total.get().states >= wanted {
            return Ok(());
        }
        let shape = Shape { drops: seed % 3 == 1, ..Shape::new(target.abilities(), steps, 3) };
        let samples = CrashOptions { seed, exhaustive_atoms_max: 6, samples: 16, tears: 2, share: (8, 1) };
        let plan = CrashPlan { states: samples, go_on_in_one_of: 64, go_on_steps: 100 };
        let asked = Cell::new(seed);
        let mut judge = |state: &sim::CrashState| {
            asked.set(asked.get() + 1);
            target.keeps_its_bitmaps(state)?;
            if asked.get().is_multiple_of(GIVEN_BACK_ONE_IN) {
                target.gives_the_reserve_back(state)?;
            }
            match asked.get().is_multiple_of(ASKED_OF_QEMU_ONE_IN) {
                true => target.asked_of_qemu(&state.disks),
                false => Ok(()),
            }
        };
        let counts =
            crash_everywhere(&target, &shape.generate(seed), &Setup::shuffled(seed), &plan, &mut judge)?;
        let mut sum = total.get();
        sum += counts;
        total.set(sum);
        Ok(())
    };
    sweep.run(one);
    let CrashCounts { states, gone_on } = total.get();
    println!("looked at in {name}: {states} crash states, {gone_on} crash states worked on with");
    let enough = sweep.is_asked_for() || total.get().states >= wanted;
    assert!(enough, "{:?}: too few states to mean anything", total.get());
}

macro_rules! configurations {
    ($($name:ident: $states:expr, $steps:expr;)*) => {
        mod crash {
            $(#[test]
            fn $name() {
                super::run(stringify!($name), $states, $steps);
            })*
        }
    };
}

configurations! {
    c512: 8000, 40;
    c512_r1_tiny: 8000, 40;
    c512_r64_tiny: 8000, 40;
    c512_table_grows: 3000, 60;
    c1k_v2_on_raw: 6000, 40;
    c1k_v2: 4000, 40;
    c4k: 4000, 40;
    c4k_device: 4000, 40;
    c4k_on_qcow2: 8000, 40;
    c64k_on_chain: 6000, 40;
    c4k_on_chain_tiny: 4000, 40;
    c1k_prefetch: 4000, 40;
    c64k_on_chain_prefetch: 4000, 40;
    c4k_no_unref: 6000, 40;
    c4k_compressed: 8000, 40;
    c4k_snapshots: 8000, 40;
    c4k_packs: 6000, 40;
    c4k_packs_few_references: 6000, 40;
    c4k_snapshots_compressed: 6000, 40;
    c4k_bitmap: 3000, 40;
    c4k_lazy: 300, 40;
    c16k_subclusters_on_qcow2: 6000, 40;
    c16k_subclusters_snapshots: 6000, 40;
    c64k_subclusters_zstd: 4000, 40;
    c64k: 4000, 40;
    c64k_on_short_raw: 4000, 40;
    c4k_encrypted: 2000, 40;
    c512_encrypted_resized: 1000, 40;
    c16k_subclusters_encrypted_snapshotted: 1000, 40;
    c2m: 300, 20;
    c4k_data_file: 4000, 40;
    c4k_raw_data_file: 4000, 40;
    c512_reserve: 6000, 40;
    c512_table_grows_reserve: 3000, 60;
    c4k_reserve: 6000, 40;
    c4k_device_reserve: 6000, 40;
    c4k_on_qcow2_reserve: 6000, 40;
    c4k_snapshots_reserve: 6000, 40;
    c4k_lazy_reserve: 300, 40;
    c16k_subclusters_reserve: 6000, 40;
    c16k_subclusters_small_reserve: 3000, 40;
    c16k_subclusters_on_qcow2_reserve: 6000, 40;
    c512_resized_reserve: 6000, 40;
    c4k_snapshotted_and_resized_reserve: 6000, 40;
    c16k_subclusters_snapshotted_reserve: 6000, 40;
    c512_resized: 4000, 40;
    c4k_resized_under_longer: 4000, 40;
    c1k_v2_resized: 4000, 40;
    c4k_compressed_resized: 4000, 40;
    c4k_lazy_resized: 300, 40;
    c16k_subclusters_resized: 4000, 40;
    c4k_raw_data_file_resized: 4000, 40;
    c512_snapshotted: 4000, 40;
    c1k_v2_snapshotted_on_raw: 4000, 40;
    c4k_snapshotted_and_resized: 4000, 40;
    c4k_compressed_snapshotted: 4000, 40;
    c4k_lazy_snapshotted: 300, 40;
    c16k_subclusters_snapshotted: 4000, 40;
    c4k_lazy_changed: 4000, 40;
    c512_snapshotted_and_changed: 4000, 40;
    c4k_device_snapshotted: 4000, 40;
    c16k_subclusters_data_file: 4000, 40;
    c16k_subclusters_raw_data_file: 4000, 40;
    c4k_bitmap_reserve: 3000, 40;
    c4k_bitmap_snapshotted: 2000, 40;
    c512_bitmap_resized_reserve: 2000, 40;
    c4k_second_writer: 3000, 40;
    c512_second_writer_resized: 3000, 40;
    c4k_second_writer_raw_data_file: 3000, 40;
}
