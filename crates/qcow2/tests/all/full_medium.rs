//! A medium without room: a request that needs some gets an error, and nothing is leaked by it.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use crate::harness;

use std::ops::ControlFlow;

use harness::{Qcow2Target, config};
use qcow2::snapshot::NewSnapshot;
use qcow2::{Error, Qcow2, Repair, ResizeOptions, check};
use sim::{IoKind, Sim};
use storage::{Hints, IoBytes, IoVec};

const CLUSTER: u64 = 4 << 10;

async fn write(image: &Qcow2, cluster: u64) -> Result<(), Error> {
    let data = IoVec::from(IoBytes::copy_from(&[7; CLUSTER as usize]));
    image.write(cluster * CLUSTER, data, Hints::NONE).await
}

/// Writes one cluster after the other, from `first` on, until there is no room; gives the number of the last one
/// that found some.
async fn fill(image: &Qcow2, first: u64) -> u64 {
    let last = image.size() / CLUSTER;
    for cluster in first..last {
        if let Err(error) = write(image, cluster).await {
            assert!(error.is_no_space(), "{error}");
            image.flush().await.unwrap();
            return cluster - 1;
        }
    }
    panic!("the disk fits into the device");
}

/// The image of a device that was full before so many clusters were discarded again.
async fn nearly_full(target: &Qcow2Target, sim: &Sim, free: u64) -> Qcow2 {
    let image = target.open_with(sim.world(), target.config().options(0)).await.unwrap();
    let last = fill(&image, 8).await;
    assert!(last > 8 + 16, "{last}: nothing to discard");
    for cluster in 8..8 + free {
        image.discard(cluster * CLUSTER, CLUSTER).await.unwrap();
    }
    image.flush().await.unwrap();
    while image.status().free_clusters < free {
        sim.yield_now().await;
    }
    image
}

async fn close_without_leaks(image: &Qcow2, sim: &Sim) {
    image.flush().await.unwrap();
    image.close().await.unwrap();
    let report = check(&sim.world().open(0), Repair::None, &mut |_| {}).await.unwrap();
    assert!(report.is_clean(), "{report:?}");
}

/// Does `operation` on a device of which so many clusters are free or in the reserve. Says whether it found room;
/// if it did not, there is as much as before.
async fn on_a_full_device<F: Future<Output = Result<(), Error>>>(
    target: &Qcow2Target,
    sim: &Sim,
    free: u64,
    operation: impl FnOnce(Qcow2) -> F,
) -> bool {
    let image = nearly_full(target, sim, free).await;
    if free > 0 {
        // Clusters are asked for, so the next flush fills the reserve.
        write(&image, 8).await.unwrap();
        image.flush().await.unwrap();
    }
    let done = operation(image.clone()).await;
    if let Err(error) = &done {
        assert!(error.is_no_space(), "{error}");
        for cluster in 9..8 + free {
            write(&image, cluster).await.unwrap();
        }
    }
    close_without_leaks(&image, sim).await;
    done.is_ok()
}

/// Tries `operation` with more and more room until it finds enough.
fn until_there_is_room<F: Future<Output = Result<(), Error>>>(operation: impl Fn(Qcow2) -> F) {
    let target = Qcow2Target::new(config("c4k_full_device_reserve"));
    let outcome = (0..16).try_for_each(|free| {
        let world = target.world(free);
        let found =
            sim::run(&world, free, async |sim| on_a_full_device(&target, &sim, free, &operation).await)
                .unwrap();
        match found {
            true => ControlFlow::Break(free),
            false => ControlFlow::Continue(()),
        }
    });
    assert!(matches!(outcome, ControlFlow::Break(1..)), "{outcome:?}: no room at first, and then enough");
}

#[test]
fn a_snapshot_that_finds_no_room_leaks_nothing_and_takes_none_away() {
    until_there_is_room(|image| async move { image.create_snapshot(NewSnapshot::default()).await.map(drop) });
}

#[test]
fn a_larger_l1_table_that_finds_no_room_leaks_nothing_and_takes_none_away() {
    // 512 L1 entries in a cluster, each for 2 MiB: 2 GiB need another one.
    until_there_is_room(|image| async move { image.resize(3 << 30, ResizeOptions::default()).await });
}

#[test]
fn a_flush_needs_no_room_for_the_reserve() {
    let target = Qcow2Target::new(config("c4k_full_device_reserve"));
    let world = target.world(1);
    let run = async |sim: Sim| {
        let image = nearly_full(&target, &sim, 3).await;
        for cluster in 490..493 {
            write(&image, cluster).await.unwrap();
            image.flush().await.unwrap();
        }
        assert!(write(&image, 493).await.unwrap_err().is_no_space());
        close_without_leaks(&image, &sim).await;
    };
    sim::run(&world, 1, run).unwrap();
}

#[test]
fn room_for_small_tables_is_taken_many_at_a_time() {
    const TABLE_COVERS: u64 = 512;
    let target = Qcow2Target::new(config("c4k_reserve"));
    let world = target.world(1);
    let reserved = async |sim: Sim| {
        let image = target.open_with(sim.world(), target.config().options(0)).await.unwrap();
        image.resize(200 << 20, ResizeOptions::default()).await.unwrap();
        sim.world().start_recording();
        for table in 0..100 {
            write(&image, table * TABLE_COVERS).await.unwrap();
        }
        let records = sim.world().recording().records;
        close_without_leaks(&image, &sim).await;
        records.iter().filter(|record| record.request.kind() == IoKind::Allocate).count()
    };
    let reserved = sim::run(&world, 1, reserved).unwrap();
    // 100 tables and 100 clusters of data are 800 KiB; the tables of the two upper levels have their room apart.
    assert!(reserved < 20, "{reserved} reservations for 100 tables");
}
