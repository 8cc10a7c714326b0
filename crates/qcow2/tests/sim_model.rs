//! Random requests of several queues, some of them dropped half-way, against the oracle.

mod harness;

use harness::{Qcow2Target, config, scale};
use sim::campaign::{Setup, run_workload};
use sim::{Failure, FailureKind, Shape, Sweep, Target};

/// Of so many runs one is shown to `qemu-img convert` and `qemu-img check` at its end.
const ASKED_OF_QEMU_ONE_IN: u64 = 45;

/// Steps of one workload.
const STEPS: usize = 300;

fn run(name: &str, seeds: u64) {
    let target = Qcow2Target::new(config(name));
    let queues = 4;
    let workloads = Sweep::from_environment(seeds * scale()).run(|seed| {
        let drops = seed % 2 == 1;
        let shape = Shape { drops, ..Shape::new(target.abilities(), STEPS, queues) };
        let workload = shape.generate(seed);
        let ran = run_workload(&target, &workload, &Setup::shuffled(seed))?;
        if seed % ASKED_OF_QEMU_ONE_IN != 0 {
            return Ok(());
        }
        let asked = target.read_by_qemu(&ran.world, &ran.model).map_err(FailureKind::Check);
        asked.map_err(|kind| Box::new(Failure::new(kind, target.name(), seed, &workload)))
    });
    println!("looked at in {name}: {} operations against the model", workloads * STEPS as u64);
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
    c512: 92;
    c512_r1_tiny: 92;
    c512_r64_tiny: 92;
    c512_table_grows: 92;
    c1k_v2_on_raw: 92;
    c1k_v2: 92;
    c4k: 92;
    c4k_device: 92;
    c4k_on_qcow2: 92;
    c64k_on_chain: 92;
    c4k_on_chain_tiny: 92;
    c4k_no_unref: 92;
    c4k_compressed: 92;
    c4k_snapshots: 92;
    c4k_snapshots_compressed: 92;
    c4k_bitmap: 92;
    c4k_lazy: 92;
    c16k_subclusters_on_qcow2: 92;
    c16k_subclusters_snapshots: 92;
    c64k_subclusters_zstd: 92;
    c64k: 92;
    c64k_on_short_raw: 92;
    c2m: 23;
    c4k_data_file: 92;
    c4k_raw_data_file: 92;
    c512_resized: 92;
    c4k_resized_under_longer: 92;
    c1k_v2_resized: 92;
    c4k_compressed_resized: 92;
    c4k_lazy_resized: 92;
    c16k_subclusters_resized: 92;
    c4k_raw_data_file_resized: 92;
    c512_snapshotted: 92;
    c1k_v2_snapshotted_on_raw: 92;
    c4k_snapshotted_and_resized: 92;
    c4k_compressed_snapshotted: 92;
    c4k_lazy_snapshotted: 92;
    c16k_subclusters_snapshotted: 92;
    c4k_device_snapshotted: 92;
}
