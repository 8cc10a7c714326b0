//! What a request learned of the map is handed on: it is not asked again three functions later.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use crate::on_reactor::{Loop, reactor_run};
use qcow2::{CreateOptions, Files, Options, Qcow2, create};
use storage::{Hints, IoBuf, IoBytes, IoVec, MemoryStorage};

const CLUSTER: u64 = 64 << 10;

async fn image(backing: Option<Qcow2>, extended_l2: bool) -> Qcow2 {
    let file = Arc::new(MemoryStorage::new(0));
    let options = CreateOptions {
        size: 1 << 20,
        cluster_size: CLUSTER,
        extended_l2,
        backing_file: backing.is_some().then(|| "below".to_owned()),
        backing_format: backing.is_some().then(|| "qcow2".to_owned()),
        ..CreateOptions::default()
    };
    create(&*file, None, &options).await.unwrap();
    let files = Files { file, data: None, backing: backing.map(|below| Arc::new(below) as _) };
    Qcow2::open(files, Options { writable: true, ..Options::default() }, Arc::new(Loop)).await.unwrap()
}

async fn write(image: &Qcow2, offset: u64, len: usize, byte: u8) {
    image.write(offset, IoVec::from(IoBytes::copy_from(&vec![byte; len])), Hints::NONE).await.unwrap();
}

/// Look-ups in the maps of both layers for one write of 4 KiB in the middle of a cluster that only the lower layer has.
fn look_ups_of_a_copy(extended_l2: bool) -> (u64, u64) {
    reactor_run(async {
        let below = image(None, false).await;
        write(&below, 0, 2 * CLUSTER as usize, 1).await;
        let above = image(Some(below.clone()), extended_l2).await;
        // The L2 table of the upper layer is there, so that each question is counted.
        write(&above, 0, 4096, 2).await;
        let asked = |image: &Qcow2| image.status().map.hits + image.status().map.misses;
        let before = (asked(&above), asked(&below));
        let at = CLUSTER + (CLUSTER / 2) + 512;
        write(&above, at, 4096, 3).await;
        let after = (asked(&above), asked(&below));
        let (result, bytes) = above.read(CLUSTER, IoBuf::uninit(CLUSTER as usize), Hints::NONE).await;
        result.unwrap();
        let expected = (CLUSTER..2 * CLUSTER).map(|byte| if (at..at + 4096).contains(&byte) { 3 } else { 1 });
        assert!(bytes.iter().copied().eq(expected), "the cluster around the write is not what it was");
        above.close().await.unwrap();
        (after.0 - before.0, after.1 - before.1)
    })
}

/// Each part of a copy-on-write asked the map for itself, the upper layer's eight times.
#[test]
fn a_copy_on_write_asks_the_map_three_times() {
    // Whether it can go at once; what is there, by the owner of the cluster; and where what is copied lies.
    assert_eq!(look_ups_of_a_copy(false), (3, 1));
}

#[test]
fn a_copy_on_write_of_subclusters_asks_the_map_once_more() {
    // Whether the cluster has its place already.
    assert_eq!(look_ups_of_a_copy(true), (4, 1));
}
