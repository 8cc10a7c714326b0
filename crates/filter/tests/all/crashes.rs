//! A copy that a read makes changes nothing that anybody reads, whenever the machine dies, and no write is lost beside it.

use std::sync::Arc;

use block::Block;
use filter::CopyOnRead;
use futures_util::future::join_all;
use qcow2::{CreateOptions, Files, Options, Qcow2, Repair};
use sim::{Content, CrashOptions, CrashStates, Order, World};
use storage::{Capabilities, Hints};

use super::{Machine, bytes, raw, read};

const CLUSTER: u64 = 4096;
const SIZE: u64 = 16 * CLUSTER;

/// An overlay without data over a disk whose bytes are all 7.
fn world(seed: u64) -> World {
    let world = World::new(seed, Order::Immediate);
    world.add_disk("overlay", Capabilities::REGULAR_FILE, Content::zeroed(0));
    let mut below = Content::zeroed(SIZE);
    below.fill(0, SIZE, 7);
    world.add_disk("below", Capabilities { read_only: true, ..Capabilities::REGULAR_FILE }, below);
    let created = CreateOptions {
        size: SIZE,
        cluster_size: CLUSTER,
        backing_file: Some("below".to_owned()),
        backing_format: Some("raw".to_owned()),
        ..CreateOptions::default()
    };
    sim::run(&world, seed, async |_| qcow2::create(&world.open(0), None, &created).await.unwrap()).unwrap();
    world.copy(seed)
}

async fn overlay(world: &World) -> Qcow2 {
    let files = Files { file: Arc::new(world.open(0)), data: None, backing: Some(raw(world, 1)) };
    let options = Options { writable: true, ..Options::default() };
    Qcow2::open(files, options, Arc::new(Machine)).await.unwrap()
}

#[test]
fn a_crash_in_a_copy_leaves_what_was_read_and_what_was_written() {
    let mut states = 0;
    for seed in 0..3 {
        let world = world(seed);
        world.set_order(if seed == 0 { Order::Immediate } else { Order::Shuffled });
        world.start_recording();
        let ran = sim::run(&world, seed, async |_| {
            let disk = CopyOnRead::new(Arc::new(overlay(&world).await), None);
            // Cluster 1 is written and flushed before reads copy around it; 5 is written beside them.
            disk.write(CLUSTER, bytes(1, CLUSTER), Hints::NONE).await.unwrap();
            disk.flush().await.unwrap();
            let reads = join_all(
                [(100, 3 * CLUSTER), (4 * CLUSTER, 4 * CLUSTER)].map(|(at, len)| read(&disk, at, len)),
            );
            let write = disk.write(5 * CLUSTER + 512, bytes(2, 512), Hints::NONE);
            let (_, written) = futures_util::future::join(reads, write).await;
            written.unwrap();
            disk.flush().await.unwrap();
            assert_eq!(read(&disk, 5 * CLUSTER + 512, 512).await, vec![2; 512]);
            disk.close().await.unwrap();
        });
        ran.unwrap();
        let last = world.recording();
        let closed = last.current_at(last.end);
        assert!(closed[0].length() > 8 * CLUSTER, "nothing was copied");
        for state in CrashStates::new(&last, &[], CrashOptions { seed, tears: 2, ..CrashOptions::default() })
        {
            states += 1;
            let (world, _disks) = state.boot(seed);
            let looked = sim::run(&world, seed, async |_| {
                let report = qcow2::check(&world.open(0), Repair::None, &mut |_| ()).await.unwrap();
                assert_eq!((report.corruptions, report.check_errors), (0, 0), "{state}");
                let image = overlay(&world).await;
                let found = read(&image, 0, SIZE).await;
                let is_write = |at: u64| (5 * CLUSTER + 512..5 * CLUSTER + 1024).contains(&at);
                for (byte, at) in found.iter().zip(0..) {
                    let allowed: &[u8] = match at / CLUSTER {
                        1 => &[1, 7],
                        _ if is_write(at) => &[2, 7],
                        _ => &[7],
                    };
                    assert!(allowed.contains(byte), "byte {at} is {byte}\n{state}");
                }
                image.close().await.unwrap();
            });
            looked.unwrap();
        }
    }
    assert!(states > 50, "{states} crash states are too few to mean anything");
}
