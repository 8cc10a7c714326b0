//! An image switches to another file: docs/internals/write-order.md, "Another file below an image".
//!
//! There are two media. Who copies the first one to the second writes and does not flush. Whatever is cut off when, what was flushed is on
//! the first before the image goes on, and on the second from then on.

use std::sync::Arc;

use block::Block;
use qcow2::{Compressing, CreateOptions, ErrorKind, Files, Options, OtherFiles, Qcow2, create};
use sim::{Content, CrashOptions, CrashStates, Order, SimStorage, World};
use storage::{Capabilities, Hints, IoBuf, IoBytes, IoVec, MemoryStorage, Storage};

use crate::harness::judge;
use crate::harness::target::Machine;
use crate::on_reactor::{Loop, reactor_run};

const SIZE: u64 = 1 << 20;
const CLUSTER: u64 = 4 << 10;

async fn open(file: SimStorage, options: Options) -> Qcow2 {
    let files = Files { file: Arc::new(file), data: None, backing: None };
    Qcow2::open(files, options, Arc::new(Machine)).await.expect("it can be opened")
}

async fn write(image: &Qcow2, cluster: u64, value: u8) {
    let data = IoVec::from(IoBytes::copy_from(&[value; CLUSTER as usize]));
    image.write(cluster * CLUSTER, data, Hints::NONE).await.expect("a write");
}

/// The values that a cluster has: several where a write was torn by a crash.
async fn read(image: &Qcow2, cluster: u64) -> Vec<u8> {
    let (result, buf) = image.read(cluster * CLUSTER, IoBuf::uninit(CLUSTER as usize), Hints::NONE).await;
    result.expect("a read");
    let mut values = buf.to_vec();
    values.sort_unstable();
    values.dedup();
    values
}

/// Everything that disk `from` holds, written to disk `to` and not flushed.
async fn copy(world: &World, from: usize, to: &SimStorage) {
    let content = world.current(from);
    for (at, bytes) in content.stored() {
        to.write(at, IoBytes::copy_from(&bytes).into(), Hints::NONE).await.expect("a write");
    }
    to.grow_to(content.length()).await.expect("it grows");
}

/// Copies the image, has it switch to the copy, and cuts the power everywhere.
fn goes_on(options: Options, lazy: bool, order: Order, seed: u64) {
    let world = World::new(seed, order);
    let first = world.add_disk("first", Capabilities::REGULAR_FILE, Content::zeroed(0));
    let second = world.add_disk("second", Capabilities::REGULAR_FILE, Content::zeroed(0));
    let gone_on = sim::run(&world, seed, async |sim| {
        let created = CreateOptions {
            size: SIZE,
            cluster_size: CLUSTER,
            lazy_refcounts: lazy,
            ..CreateOptions::default()
        };
        create(&first, None, &created).await.expect("it is made");
        first.flush().await.expect("a flush");
        let image = open(first, options).await;
        write(&image, 0, 1).await;
        write(&image, 9, 1).await;
        image.flush().await.expect("a flush");
        world.start_recording();
        // Neither is a change of metadata: a copy that is made afterwards has all of it.
        write(&image, 0, 2).await;
        copy(sim.world(), 0, &second).await;
        image.rest().await.expect("it rests");
        if lazy {
            // Its refcounts were not in the copy.
            copy(sim.world(), 0, &second).await;
        }
        let second = world.open(1);
        let still = image.hold_still().await.expect("it is open");
        let files = Files { file: Arc::new(second), data: None, backing: None };
        let moving = still.on_other_files(files, OtherFiles::Copies).await.expect("it is a copy");
        let moved = moving.image().clone();
        moving.go_on();
        let gone_on = world.tick();
        // Overwritten, and allocated.
        write(&moved, 9, 3).await;
        write(&moved, 20, 3).await;
        moved.flush().await.expect("a flush");
        let flushed = world.tick();
        assert!(matches!(image.flush().await, Err(error) if error.kind() == ErrorKind::Refused));
        image.close().await.expect("there is nothing to do");
        for (cluster, value) in [(0, 2), (9, 3), (20, 3), (30, 0)] {
            assert_eq!(read(&moved, cluster).await, [value]);
        }
        moved.close().await.expect("it is closed");
        (gone_on, flushed)
    });
    let (gone_on, flushed) = gone_on.expect("nobody waits for ever");
    let recording = world.recording();
    let later = |disk: usize| {
        let changes = recording.records.iter().filter(|record| record.issued >= gone_on);
        changes.filter(|record| record.disk == disk && record.request.changes()).count()
    };
    assert_eq!(later(0), 0, "the old file is written no more");
    assert!(later(1) > 0, "this test shows nothing");
    let mut looked_at = [0; 3];
    let states = CrashOptions { tears: 4, seed, ..CrashOptions::default() };
    for state in CrashStates::new(&recording, &[gone_on, flushed], states) {
        // Who was not notified that the image went on opens the first one.
        let disk = usize::from(state.instant >= gone_on);
        // The dirty bit says so where refcounts are written late.
        if !lazy {
            judge::check(&state.disks[disk], &[]).unwrap_or_else(|error| panic!("{error} in {state}"));
        }
        let (world, mut disks) = state.boot(1);
        let opened = disks.swap_remove(disk);
        let found = sim::run(&world, 1, async |_| {
            let image = open(opened, Options { writable: false, ..options }).await;
            [read(&image, 0).await, read(&image, 9).await, read(&image, 20).await, read(&image, 30).await]
        });
        let found = found.expect("nobody waits for ever");
        let allowed: [&[u8]; 4] = match (disk, state.instant >= flushed) {
            (0, _) => [&[1, 2], &[1], &[0], &[0]],
            (_, false) => [&[2], &[1, 3], &[0, 3], &[0]],
            (_, true) => [&[2], &[3], &[3], &[0]],
        };
        let is_allowed =
            |(found, allowed): (&Vec<u8>, &[u8])| found.iter().all(|value| allowed.contains(value));
        let is_allowed = found.iter().zip(allowed).all(is_allowed);
        assert!(is_allowed, "{found:?} where {allowed:?} is allowed, in {state}");
        looked_at[disk + usize::from(state.instant >= flushed)] += 1;
    }
    assert!(looked_at.iter().all(|states| *states > 0), "{looked_at:?} crash states are too few");
}

#[test]
fn what_was_flushed_is_on_the_old_file_before_an_image_goes_on_and_on_the_other_one_afterwards() {
    let writable = Options { writable: true, ..Options::default() };
    for seed in 0..4 {
        let order = if seed == 0 { Order::Immediate } else { Order::Shuffled };
        goes_on(writable, false, order, seed);
        goes_on(Options { allocation_reserve: Some(0), ..writable }, false, order, seed);
    }
    goes_on(writable, true, Order::Immediate, 9);
}

fn storage_of(bytes: &[u8]) -> Arc<MemoryStorage> {
    Arc::new(MemoryStorage::from_bytes(bytes))
}

async fn bytes_of(file: &dyn Storage) -> Vec<u8> {
    let (result, buf) = file.read(0, IoBuf::uninit(file.length() as usize), Hints::NONE).await;
    result.expect("a read");
    buf.to_vec()
}

async fn opened(file: Arc<dyn Storage>) -> Qcow2 {
    let files = Files { file, data: None, backing: None };
    let options = Options { writable: true, ..Options::default() };
    Qcow2::open(files, options, Arc::new(Loop)).await.expect("it can be opened")
}

async fn image(bits: &dyn Storage) {
    let created = CreateOptions { size: SIZE, cluster_size: CLUSTER, ..CreateOptions::default() };
    create(bits, None, &created).await.expect("it is made");
}

async fn moved(image: &Qcow2, file: Arc<dyn Storage>) -> Qcow2 {
    image.rest().await.expect("it rests");
    let still = image.hold_still().await.expect("it is open");
    let files = Files { file, data: None, backing: None };
    let moving = still.on_other_files(files, OtherFiles::Copies).await.expect("a copy");
    let moved = moving.image().clone();
    moving.go_on();
    moved
}

/// A copy onto an older file, by a tool that leaves holes out, has old bytes where nothing was used: a guest would have read them.
#[test]
fn nothing_of_another_file_is_taken_for_zeroes() {
    reactor_run(async {
        let file = storage_of(&[]);
        image(&*file).await;
        let old = opened(Arc::clone(&file) as _).await;
        write(&old, 0, 1).await;
        old.flush().await.expect("a flush");
        let mut bytes = bytes_of(&*file).await;
        let mut old_bytes = 0;
        for cluster in
            bytes.chunks_mut(CLUSTER as usize).filter(|cluster| cluster.iter().all(|byte| *byte == 0))
        {
            cluster.fill(0xee);
            old_bytes += 1;
        }
        assert!(old_bytes > 100, "{old_bytes} clusters are too few");
        bytes.resize(bytes.len() + 10 * CLUSTER as usize, 0xee);
        let new = moved(&old, storage_of(&bytes)).await;
        for cluster in 1..SIZE / CLUSTER {
            let one = IoVec::from(IoBytes::copy_from(&[7]));
            new.write(cluster * CLUSTER + 9, one, Hints::NONE).await.expect("a write");
            assert_eq!(read(&new, cluster).await, [0, 7], "cluster {cluster}");
        }
        new.close().await.expect("it is closed");
    });
}

/// Two images that differ in data alone: what was unpacked of one is not what the other has.
#[test]
fn a_compressed_cluster_is_read_from_the_other_file() {
    reactor_run(async {
        let mut files = Vec::new();
        for value in [1, 2] {
            let file = storage_of(&[]);
            image(&*file).await;
            let made = opened(Arc::clone(&file) as _).await;
            let cluster = IoVec::from(IoBytes::copy_from(&[value; CLUSTER as usize]));
            let compressing = Compressing::new(made, 1).expect("it can be compressed");
            compressing.write(0, cluster, Hints::NONE).await.expect("a write");
            Block::close(&compressing).await.expect("it is closed");
            files.push(file);
        }
        let old = opened(Arc::clone(&files[0]) as _).await;
        assert_eq!(read(&old, 0).await, [1]);
        let new = moved(&old, Arc::clone(&files[1]) as _).await;
        assert_eq!(read(&new, 0).await, [2]);
        new.close().await.expect("it is closed");
    });
}
