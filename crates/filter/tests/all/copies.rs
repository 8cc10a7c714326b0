//! A snapshot is of one moment, whatever order requests end in: no write overtakes the copy of what it overwrites.

use std::sync::Arc;

use block::{Block, ZeroOptions};
use filter::{CopyBeforeWrite, CopyOnRead, OnError, Policy, SnapshotAccess};
use futures_util::future::join_all;
use memory::IoBuf;
use sim::{Content, Fault, FaultKind, IoKind, Order, Persistence, Rng, World};
use storage::{Capabilities, Hints};

use super::{bytes, raw, read};

const UNIT: u64 = 64 << 10;
const UNITS: u64 = 6;
const SIZE: u64 = UNIT * UNITS;

/// A disk that holds the number of each unit, and an empty one beside it.
fn world(seed: u64) -> World {
    let world = World::new(seed, Order::Shuffled);
    let mut content = Content::zeroed(SIZE);
    (0..UNITS).for_each(|unit| content.fill(unit * UNIT, UNIT, unit as u8 + 1));
    world.add_disk("disk", Capabilities::REGULAR_FILE, content);
    world.add_disk("target", Capabilities::REGULAR_FILE, Content::zeroed(SIZE));
    world
}

fn filter(world: &World, policy: Policy) -> Arc<dyn Block> {
    Arc::new(CopyBeforeWrite::new(raw(world, 0), raw(world, 1), policy, None).unwrap())
}

#[test]
fn no_write_overtakes_the_copy_of_what_it_overwrites() {
    for seed in 0..10 {
        let world = world(seed);
        world.start_recording();
        let ran = sim::run(&world, seed, async |_| {
            let disk = filter(&world, Policy::default());
            let snapshot = SnapshotAccess::new(&disk).unwrap();
            let mut random = Rng::new(seed);
            let changes = (0..12).map(|number| {
                let (at, kind) = (random.below(SIZE / 4096) * 4096, random.below(8));
                let (len, disk) = ((random.below(20) + 1) * 4096, &disk);
                let len = len.min(SIZE - at);
                async move {
                    match kind {
                        0 => disk.zero(at, len, ZeroOptions::default()).await.unwrap(),
                        1 => disk.discard(at, len).await.unwrap(),
                        _ => disk.write(at, bytes(100 + number, len), Hints::NONE).await.unwrap(),
                    }
                }
            });
            let changes = join_all(changes);
            let reads = join_all((0..8).map(|number| {
                let (at, snapshot) = ((number * 5 % UNITS) * UNIT, &snapshot);
                async move {
                    let found = read(snapshot, at, UNIT).await;
                    assert!(found.iter().all(|byte| u64::from(*byte) == at / UNIT + 1), "seed {seed}: {at}");
                }
            }));
            futures_util::future::join(changes, reads).await;
            let all = read(&snapshot, 0, SIZE).await;
            assert!(all.iter().zip(0..).all(|(byte, at)| u64::from(*byte) == at / UNIT + 1), "seed {seed}");
        });
        ran.unwrap();
        each_moment_has_the_old_bytes(&world, seed);
    }
}

/// At each moment what the disk does not have any more is in the target.
fn each_moment_has_the_old_bytes(world: &World, seed: u64) {
    let recording = world.recording();
    let mut seen = 0;
    let ends: Vec<_> = recording.records.iter().filter_map(|record| record.completed).collect();
    for at in ends {
        let disks = recording.current_at(at);
        for unit in 0..UNITS {
            let (mut now, old) = (vec![0; UNIT as usize], vec![unit as u8 + 1; UNIT as usize]);
            disks[0].read(unit * UNIT, &mut now);
            if now != old {
                disks[1].read(unit * UNIT, &mut now);
                assert!(now == old, "seed {seed}: unit {unit} at {at:?}");
                seen += 1;
            }
        }
    }
    assert!(seen > 0, "seed {seed}: nothing was overwritten");
}

/// A reader that takes units has each as it was, or finds it copied, and what is overwritten afterwards is not copied.
#[test]
fn a_unit_is_taken_as_it_was_or_is_in_the_target() {
    let (mut taken, mut copied) = (0, 0);
    for seed in 0..20 {
        let world = world(seed);
        let ran = sim::run(&world, seed, async |_| {
            let filter =
                CopyBeforeWrite::new(raw(&world, 0), raw(&world, 1), Policy::default(), None).unwrap();
            let (snapshot, target) = (Arc::clone(filter.snapshot()), raw(&world, 1));
            let mut random = Rng::new(seed);
            let writes = (0..UNITS * 2).map(|number| {
                let (at, filter) = (random.below(SIZE / 4096) * 4096, &filter);
                async move { filter.write(at, bytes(100 + number as u8, 4096), Hints::NONE).await.unwrap() }
            });
            let takes = (0..UNITS).map(|unit| snapshot.take(unit * UNIT..(unit + 1) * UNIT));
            let (_, found) = futures_util::future::join(join_all(writes), join_all(takes)).await;
            for (unit, found) in (0..UNITS).zip(found) {
                let found = match found.unwrap() {
                    Some(bytes) => {
                        taken += 1;
                        bytes.to_vec()
                    }
                    None => {
                        copied += 1;
                        read(&*target, unit * UNIT, UNIT).await
                    }
                };
                assert!(found.iter().all(|byte| u64::from(*byte) == unit + 1), "seed {seed}: unit {unit}");
            }
            target.zero(0, SIZE, ZeroOptions::default()).await.unwrap();
            filter.write(0, bytes(99, SIZE), Hints::NONE).await.unwrap();
            assert!(
                read(&*target, 0, SIZE).await.iter().all(|byte| *byte == 0),
                "seed {seed}: it was copied again"
            );
        });
        ran.unwrap();
    }
    assert!(taken > 0 && copied > 0, "{taken} taken, {copied} copied");
}

/// A request that is dropped in the middle of a copy leaves a copy of the same bytes, early or late.
#[test]
fn a_dropped_write_leaves_the_snapshot_whole() {
    for seed in 0..14 {
        let world = world(seed);
        let ran = sim::run(&world, seed, async |sim| {
            let disk = filter(&world, Policy::default());
            let snapshot = SnapshotAccess::new(&disk).unwrap();
            let other = Arc::clone(&disk);
            let dropped =
                sim.spawn(async move { other.write(4096, bytes(200, UNIT), Hints::NONE).await.unwrap() });
            for _ in 0..seed % 7 {
                sim.yield_now().await;
            }
            dropped.cancel();
            join_all((0..3).map(|number| disk.write(number * 8192, bytes(100, 8192), Hints::NONE))).await;
            let all = read(&snapshot, 0, SIZE).await;
            assert!(all.iter().zip(0..).all(|(byte, at)| u64::from(*byte) == at / UNIT + 1), "seed {seed}");
        });
        ran.unwrap();
    }
}

/// The n-th request to the target fails: the guest's write does, or the snapshot is given up, and no other byte is read.
#[test]
fn a_failed_copy_breaks_the_write_or_the_snapshot_and_never_gives_wrong_bytes() {
    let policies = [OnError::BreakGuestWrite, OnError::BreakSnapshot];
    for (number, policy) in (1..=UNITS).flat_map(|number| policies.map(|policy| (number, policy))) {
        let world = world(number);
        let (kind, disk, persistence) = (Some(IoKind::Write), Some(1), Persistence::Once);
        world.set_faults(vec![Fault { nth: number, kind, disk, how: FaultKind::NoSpace, persistence }]);
        let ran = sim::run(&world, number, async |_| {
            let disk = filter(&world, Policy { on_error: policy, ..Policy::default() });
            let snapshot = SnapshotAccess::new(&disk).unwrap();
            let mut failed = 0;
            for unit in 0..UNITS {
                failed += u64::from(disk.write(unit * UNIT, bytes(99, 4096), Hints::NONE).await.is_err());
            }
            let (result, buf) = snapshot.read(0, memory::IoBuf::uninit(SIZE as usize), Hints::NONE).await;
            match policy {
                OnError::BreakGuestWrite => {
                    assert_eq!(failed, 1);
                    result.unwrap();
                    assert!(buf.iter().zip(0..).all(|(byte, at)| u64::from(*byte) == at / UNIT + 1));
                }
                OnError::BreakSnapshot => assert!(failed == 0 && result.is_err()),
            }
        });
        ran.unwrap();
    }
}

/// A raw disk has all that it reads: nothing is copied.
#[test]
fn copy_on_read_writes_nothing_where_nothing_is_below() {
    let world = world(1);
    world.start_recording();
    let ran = sim::run(&world, 1, async |_| {
        let disk = CopyOnRead::new(raw(&world, 0), None);
        assert_eq!(read(&disk, 100, 5000).await, vec![1; 5000]);
        assert_eq!(Block::driver(&disk), "copy-on-read");
    });
    ran.unwrap();
    assert!(world.recording().records.iter().all(|record| !record.request.changes()));
}

/// Only what a client chose is copied, and the rest of the snapshot, or what was given up, is an error: never other data.
#[test]
fn what_was_not_chosen_or_was_given_up_is_neither_copied_nor_read() {
    let world = world(3);
    world.start_recording();
    sim::run(&world, 3, async |_| {
        let chosen = [UNIT + 5..UNIT + 6, 3 * UNIT..SIZE];
        let made = CopyBeforeWrite::new(raw(&world, 0), raw(&world, 1), Policy::default(), Some(&chosen));
        let disk: Arc<dyn Block> = Arc::new(made.unwrap());
        let snapshot = SnapshotAccess::new(&disk).unwrap();
        snapshot.discard(3 * UNIT + 1, 2 * UNIT).await.unwrap();
        disk.write(0, bytes(100, SIZE), Hints::NONE).await.unwrap();
        for unit in 0..UNITS {
            let (result, buf) = snapshot.read(unit * UNIT, IoBuf::uninit(UNIT as usize), Hints::NONE).await;
            let status = snapshot.block_status(unit * UNIT, UNIT).await;
            match unit {
                // Of the third unit not all was given up, nor of the fifth.
                1 | 3 | 5 => {
                    result.unwrap();
                    assert!(buf.iter().all(|byte| u64::from(*byte) == unit + 1), "unit {unit}");
                    status.unwrap();
                }
                _ => assert!(result.is_err() && status.is_err(), "unit {unit}"),
            }
        }
        let target = read(&*raw(&world, 1), 0, SIZE).await;
        let copied = |unit: &u64| target[(unit * UNIT) as usize] != 0;
        assert_eq!((0..UNITS).filter(copied).collect::<Vec<_>>(), [1, 3, 5]);
    })
    .unwrap();
}
