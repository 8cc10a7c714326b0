//! Refcount blocks and their table where there are many: bounded growth, bounded memory.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use crate::on_reactor;

use std::sync::Arc;

use on_reactor::{Loop, reactor_run};
use qcow2::{CreateOptions, Files, Options, Qcow2, Repair, check, create};
use storage::{Hints, IoBytes, IoVec, MemoryStorage, Storage};

const MIB: u64 = 1 << 20;

fn small() -> CreateOptions {
    CreateOptions { cluster_size: 512, ..CreateOptions::default() }
}

async fn new_file(options: CreateOptions) -> Arc<MemoryStorage> {
    let file = Arc::new(MemoryStorage::new(0));
    create(&*file, None, &options).await.unwrap();
    file
}

async fn open(file: &Arc<MemoryStorage>, lazy_refcounts: bool) -> Qcow2 {
    let files = Files { file: Arc::clone(file) as Arc<dyn Storage>, data: None, backing: None };
    let options = Options { writable: true, lazy_refcounts: Some(lazy_refcounts), ..Options::default() };
    Qcow2::open(files, options, Arc::new(Loop)).await.unwrap()
}

async fn write(image: &Qcow2, offset: u64, len: u64) {
    let data = IoVec::from(IoBytes::copy_from(&vec![7; usize::try_from(len).unwrap()]));
    image.write(offset, data, Hints::NONE).await.unwrap();
}

async fn close_clean(image: &Qcow2, file: &MemoryStorage) {
    image.close().await.unwrap();
    let report = check(file, Repair::None, &mut |_| {}).await.unwrap();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn a_large_refcount_table_moves_once_although_its_new_place_needs_blocks() {
    reactor_run(async {
        let file = new_file(CreateOptions { size: MIB, ..small() }).await;
        // The next cluster lies where a table of 13,000 clusters is needed to count it.
        let end = 0x10_fcff_0000;
        file.grow_to(end).await.unwrap();
        let image = open(&file, false).await;
        write(&image, 0, 64 << 10).await;
        image.flush().await.unwrap();
        assert!(file.length() < end + 256 * MIB, "{} bytes more", file.length() - end);
        close_clean(&image, &file).await;
    });
}

#[test]
fn lazy_refcounts_wait_in_bounded_memory() {
    reactor_run(async {
        // A block counts 32 KiB of the file.
        let size = 128 * MIB;
        let file = new_file(CreateOptions { size, refcount_bits: 64, ..small() }).await;
        let image = open(&file, true).await;
        for offset in (0..size).step_by(1 << 20) {
            write(&image, offset, MIB).await;
            let bytes = image.status().refcount_bytes;
            assert!(bytes <= MIB + MIB / 4, "{bytes} bytes of refcount blocks after {offset}");
        }
        close_clean(&image, &file).await;
    });
}

#[test]
fn clusters_that_are_counted_beyond_the_end_of_the_file_are_not_met_one_by_one() {
    reactor_run(async {
        const CLUSTER: u64 = 2 * MIB;
        let cluster_size = CLUSTER;
        let options = CreateOptions { size: MIB, cluster_size, refcount_bits: 1, ..CreateOptions::default() };
        let file = new_file(options).await;
        // Each of these blocks says that 16,777,216 clusters are in use, of which the file has a few.
        let (first, blocks) = (file.length().next_multiple_of(CLUSTER), 16);
        let places: Vec<u8> = (0..blocks).flat_map(|index| (first + index * CLUSTER).to_be_bytes()).collect();
        file.write(CLUSTER, IoBytes::copy_from(&places).into(), Hints::NONE).await.unwrap();
        let full = vec![0xff; usize::try_from(blocks * CLUSTER).unwrap()];
        file.write(first, IoBytes::copy_from(&full).into(), Hints::NONE).await.unwrap();
        let image = open(&file, false).await;
        write(&image, 0, 64 << 10).await;
        image.close().await.unwrap();
        assert!(file.length() >= blocks * 8 * CLUSTER * CLUSTER, "{:#x}", file.length());
    });
}

#[test]
fn a_file_that_may_not_grow_any_more_is_a_full_one() {
    reactor_run(async {
        let file = new_file(CreateOptions { size: MIB, ..small() }).await;
        // Beyond the end no cluster can be counted, the table would need more than 8 MiB; before it, 128 KiB are.
        file.grow_to(1 << 40).await.unwrap();
        let image = open(&file, false).await;
        let data = IoVec::from(IoBytes::copy_from(&[7; 256 << 10]));
        let error = image.write(0, data, Hints::NONE).await.unwrap_err();
        assert!(error.is_no_space(), "{error}");
        assert!(error.to_string().contains("at most 8388608 are allowed"), "{error}");
        close_clean(&image, &file).await;
    });
}
