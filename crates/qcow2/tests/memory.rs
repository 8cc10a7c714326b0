//! What is known of free clusters takes bounded memory, counted where it is allocated.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

#[path = "all/on_reactor/mod.rs"]
mod on_reactor;

use std::alloc::System;
use std::sync::Arc;

use on_reactor::{Loop, reactor_run};
use qcow2::{CreateOptions, Files, Options, Qcow2, create};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use storage::{Hints, IoBytes, IoVec, MemoryStorage, Storage};

#[global_allocator]
static GLOBAL: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const MIB: u64 = 1 << 20;

async fn open(file: &Arc<MemoryStorage>) -> Qcow2 {
    let files = Files { file: Arc::clone(file) as Arc<dyn Storage>, data: None, backing: None };
    let options = Options { writable: true, discard: true, ..Options::default() };
    Qcow2::open(files, options, Arc::new(Loop)).await.unwrap()
}

async fn write(image: &Qcow2, offset: u64, len: u64) {
    let data = IoVec::from(IoBytes::copy_from(&vec![7; usize::try_from(len).unwrap()]));
    image.write(offset, data, Hints::NONE).await.unwrap();
}

/// What was given up is freed by another task, which never has to wait in memory.
async fn let_others_run() {
    let mut turns = 0;
    std::future::poll_fn(|context| {
        turns += 1;
        context.waker().wake_by_ref();
        if turns > 100 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// Bytes that `work` leaves allocated, without those of the file, the map and the refcount blocks: each has its own account.
async fn kept_by(image: &Qcow2, file: &MemoryStorage, work: impl AsyncFnOnce()) -> i64 {
    let accounted = || {
        let status = image.status();
        let all = file.allocated_bytes().unwrap() + status.map.resident_bytes + status.refcount_bytes;
        i64::try_from(all).unwrap()
    };
    let before = accounted();
    let region = Region::new(GLOBAL);
    work().await;
    let change = region.change();
    let kept =
        i64::try_from(change.bytes_allocated).unwrap() - i64::try_from(change.bytes_deallocated).unwrap();
    kept - (accounted() - before)
}

/// An image of 9 MiB says of a long file that every second cluster is free. 12 MiB of writes, each of which looks for free
/// clusters, once took 659 to 1,185 MiB.
async fn free_clusters_of_a_hostile_image() {
    const BLOCKS: u64 = 128;
    let options = CreateOptions { size: 64 * MIB, refcount_bits: 1, ..CreateOptions::default() };
    let file = Arc::new(MemoryStorage::new(0));
    create(&*file, None, &options).await.unwrap();
    let first = file.length().next_multiple_of(64 << 10);
    let places: Vec<u8> = (1..BLOCKS).flat_map(|index| (first + (index << 16)).to_be_bytes()).collect();
    let table = qcow2::read_header(&*file).await.unwrap().refcount_table_offset.0;
    file.write(table + 8, IoBytes::copy_from(&places).into(), Hints::NONE).await.unwrap();
    let mut halves = vec![0x55; usize::try_from((BLOCKS - 1) << 16).unwrap()];
    file.write(first + (1 << 16), IoBytes::copy_from(&halves).into(), Hints::NONE).await.unwrap();
    // The first block lies behind the table; all metadata is in use.
    halves.truncate(1 << 16);
    halves[..32].fill(0xff);
    file.write(table + (1 << 16), IoBytes::copy_from(&halves).into(), Hints::NONE).await.unwrap();
    drop(halves);
    file.grow_to(BLOCKS << 19 << 16).await.unwrap();
    let image = open(&file).await;
    let kept = kept_by(&image, &file, async || {
        for offset in (0..12 * MIB).step_by(64 << 10) {
            write(&image, offset, 64 << 10).await;
        }
    })
    .await;
    println!("a hostile image: {kept} bytes");
    assert!(image.status().free_clusters > 1000, "the free clusters were found");
    assert!(kept < 4 << 20, "{kept} bytes for free clusters");
}

/// Each trimmed cluster between two others once took 128 to 221 bytes.
async fn every_second_cluster_trimmed() {
    const CLUSTER: u64 = 512;
    let options = CreateOptions { size: 64 * MIB, cluster_size: CLUSTER, ..CreateOptions::default() };
    let file = Arc::new(MemoryStorage::new(0));
    create(&*file, None, &options).await.unwrap();
    let image = open(&file).await;
    for offset in (0..64 * MIB).step_by(1 << 20) {
        write(&image, offset, MIB).await;
    }
    image.flush().await.unwrap();
    let kept = kept_by(&image, &file, async || {
        for offset in (0..64 * MIB).step_by(2 * 512) {
            image.discard(offset, CLUSTER).await.unwrap();
        }
        image.flush().await.unwrap();
        let_others_run().await;
    })
    .await;
    let trimmed = i64::try_from(64 * MIB / CLUSTER / 2).unwrap();
    println!("trimmed clusters: {kept} bytes for {trimmed}");
    assert!(kept <= 16 * trimmed, "{} bytes a trimmed cluster", kept / trimmed);
    // None is lost by being left out.
    let before = file.allocated_bytes().unwrap();
    for offset in (0..64 * MIB).step_by(2 * 512) {
        write(&image, offset, CLUSTER).await;
    }
    let more = file.allocated_bytes().unwrap() - before;
    assert!(more <= MIB, "{more} bytes more for clusters that were free");
    image.close().await.unwrap();
}

/// One test: what others allocate at the same time would be counted.
#[test]
fn free_clusters_take_bounded_memory_whatever_the_image_and_the_guest() {
    reactor_run(async {
        free_clusters_of_a_hostile_image().await;
        every_second_cluster_trimmed().await;
    });
}
