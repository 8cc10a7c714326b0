//! The device fills up in the middle of things, and has room again later or never: every error is reported, what
//! was acknowledged stays, and nothing is leaked in silence.

use crate::harness;

use harness::{Qcow2Target, config};
use sim::campaign::{SpaceCounts, SpacePlan, minimize, run_short_of_space};
use sim::{CrashOptions, IoKind, Mix, Order, Shape, Sweep, Target, Workload};

/// Shortages of room in each workload.
const SHORTAGES: u64 = 12;

/// Much that takes room, and all that changes the disk as a whole.
fn mix(seed: u64) -> Option<Mix> {
    let busy = Mix {
        read: 2,
        write: 16,
        fua_of_16: 2,
        zero: 3,
        discard: 3,
        flush: 3,
        reopen: 1,
        resize: 2,
        snapshot: 4,
        change: 1,
        tidy: 1,
        dropped_of_16: 4,
    };
    seed.is_multiple_of(2).then_some(busy)
}

fn run(name: &str, seeds: u64, steps: usize) {
    let target = Qcow2Target::new(config(name));
    let mut total = SpaceCounts::default();
    let sweep = Sweep::from_environment(name, seeds);
    let workloads = sweep.run(|seed| {
        let order = if seed.is_multiple_of(3) { Order::Immediate } else { Order::Shuffled };
        let shape =
            Shape { drops: seed % 4 == 3, mix: mix(seed), ..Shape::new(target.abilities(), steps, 3) };
        let crash = CrashOptions { share: (256, 1), samples: 4, tears: 1, seed, exhaustive_atoms_max: 5 };
        // Reserving room and lengthening ahead of writes are favours.
        let silent = vec![IoKind::Discard, IoKind::Extent, IoKind::Lengthen, IoKind::Allocate];
        let plan = SpacePlan { shortages: SHORTAGES, order, crash: Some(crash), silent, leaks_max: 0 };
        match run_short_of_space(&target, &shape.generate(seed), seed, &plan) {
            Ok(counts) => total += counts,
            Err(failure) => {
                let again =
                    |workload: &Workload| run_short_of_space(&target, workload, seed, &plan).map(drop);
                return Err(minimize(failure, 200, again));
            }
        }
        Ok(())
    });
    let SpaceCounts { shortages, errors, crash_states } = total;
    println!(
        "looked at in {name}: {workloads} workloads on a full device, {shortages} shortages of room, {errors} errors reported, {crash_states} crash states on a full device"
    );
    assert!(!sweep.is_whole() || (shortages > 0 && errors > 0), "{total:?}: there was always room");
}

macro_rules! configurations {
    ($($name:ident: $seeds:expr, $steps:expr;)*) => {
        mod space {
            $(#[test]
            fn $name() {
                super::run(stringify!($name), $seeds, $steps);
            })*
        }
    };
}

configurations! {
    c512: 12, 40;
    c512_table_grows_reserve: 24, 40;
    c4k: 12, 40;
    c4k_reserve: 12, 40;
    c4k_on_qcow2: 12, 40;
    c4k_compressed: 8, 40;
    c4k_lazy: 4, 30;
    c16k_subclusters_on_qcow2_reserve: 8, 40;
    c64k: 12, 40;
    c4k_data_file: 12, 40;
    c4k_raw_data_file: 12, 40;
    c512_resized: 12, 40;
    c16k_subclusters_resized: 8, 40;
    c4k_raw_data_file_resized: 8, 40;
    c512_snapshotted: 12, 40;
    c4k_snapshotted_and_resized: 12, 40;
    c4k_snapshotted_and_resized_reserve: 12, 40;
    c4k_bitmap: 6, 30;
    c4k_bitmap_reserve: 6, 30;
    c4k_compressed_snapshotted: 8, 40;
    c16k_subclusters_snapshotted_reserve: 8, 40;
}
