//! The state of a machine lies behind the disk: the disk does not change with it, and a snapshot keeps it.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use crate::on_reactor;

use std::sync::Arc;

use on_reactor::{Loop, reactor_run};
use qcow2::snapshot::SnapshotName;
use qcow2::{CreateOptions, Files, Options, Qcow2, create};
use storage::{Hints, IoBuf, IoBytes, IoVec, MemoryStorage, Storage};

const CLUSTER: u64 = 512;

async fn new_image(size: u64) -> Qcow2 {
    let file = MemoryStorage::new(0);
    let options = CreateOptions { size, cluster_size: CLUSTER, ..CreateOptions::default() };
    create(&file, None, &options).await.unwrap();
    // A backing file that is longer: its bytes are at offsets that the state has in the image.
    let below = Arc::new(MemoryStorage::from_bytes(&[9; 256 << 10])) as Arc<dyn Storage>;
    let backing = Some(Arc::new(block::Raw::new(below)) as Arc<dyn block::Block>);
    let file = Arc::new(file) as Arc<dyn Storage>;
    let options = Options { writable: true, ..Options::default() };
    Qcow2::open(Files { file, data: None, backing }, options, Arc::new(Loop)).await.unwrap()
}

fn bytes(byte: u8, len: usize) -> IoVec {
    IoVec::from(IoBytes::copy_from(&vec![byte; len]))
}

async fn state(image: &Qcow2, offset: u64, len: usize) -> Vec<u8> {
    let (result, buf) = image.read_machine_state(offset, IoBuf::uninit(len)).await;
    result.unwrap();
    buf.to_vec()
}

async fn disk(image: &Qcow2) -> Vec<u8> {
    let (result, buf) = image.read(0, IoBuf::uninit(image.size() as usize), Hints::NONE).await;
    result.unwrap();
    buf.to_vec()
}

#[test]
fn a_snapshot_keeps_the_state_and_the_disk_never_shows_it() {
    reactor_run(async {
        let image = new_image(64 << 10).await;
        assert_eq!(state(&image, 0, 2000).await, [0; 2000], "nothing was written");
        // The L1 table has no entry for it yet; neither end is at that of a cluster.
        image.write_machine_state(100, bytes(1, 3000)).await.unwrap();
        let expected = [[0; 100].as_slice(), &[1; 3000], &[0; 900]].concat();
        assert_eq!(state(&image, 0, 4000).await, expected);
        image.create_snapshot(Default::default()).await.unwrap();
        let taken = disk(&image).await;
        assert_eq!(taken, vec![9; 64 << 10], "the disk is that of the backing file");

        // The clusters are the snapshot's too: a part is written, the rest is kept.
        image.write_machine_state(1000, bytes(2, 10)).await.unwrap();
        image.write_machine_state(90 << 10, bytes(3, 10)).await.unwrap();
        assert_eq!(state(&image, 999, 12).await, [[1].as_slice(), &[2; 10], &[1]].concat());
        assert_eq!(state(&image, 3100, 10).await, [0; 10]);
        assert_eq!(disk(&image).await, taken);

        image.apply_snapshot(SnapshotName::IdOrName("1".into())).await.unwrap();
        assert_eq!(state(&image, 0, 4000).await, expected);
        assert_eq!(state(&image, 90 << 10, 10).await, [0; 10]);
    });
}

#[test]
fn a_state_that_no_table_can_map_is_an_error() {
    reactor_run(async {
        let image = new_image(64 << 10).await;
        for offset in [1 << 62, u64::MAX - 5, u64::MAX] {
            assert!(image.write_machine_state(offset, bytes(1, 512)).await.is_err(), "{offset}");
            assert!(image.read_machine_state(offset, IoBuf::uninit(512)).await.0.is_err(), "{offset}");
        }
        image.write_machine_state(0, bytes(1, 512)).await.unwrap();
    });
}
