//! Zeroes that were written stay zeroes, whatever image is put below later.
//!
//! An image that names no backing file dropped zeroes where it had nothing: it read as zeroes anyway. A platform uploads a layer in that form and
//! names its backing file afterwards (`rebase -u`); the disk then showed the old data of the base where a guest had written zeroes.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::sync::Arc;

use block::{Raw, ZeroOptions};
use qcow2::{CreateOptions, Files, Options, Qcow2, create};
use qcow2_layout::Version;
use storage::{Hints, IoBuf, MemoryStorage, Storage};

use crate::on_reactor::{Loop, reactor_run};

const SIZE: u64 = (5 << 20) + 1536;
const BASE: u8 = 7;
/// Parts of clusters of any size, whole clusters, and what ends with the disk.
const ZEROED: [(u64, u64); 5] =
    [(0, 512), (1536, 4096), (100_000, 300_000), (2 << 20, 1 << 20), (SIZE - 2000, 2000)];

async fn open(file: &Arc<MemoryStorage>, is_over_base: bool) -> Qcow2 {
    let base = || {
        Arc::new(Raw::new(Arc::new(MemoryStorage::from_bytes(&vec![BASE; SIZE as usize]))))
            as Arc<dyn block::Block>
    };
    let backing = is_over_base.then(base);
    let files = Files { file: Arc::clone(file) as Arc<dyn Storage>, data: None, backing };
    Qcow2::open(files, Options { writable: true, discard: true, ..Options::default() }, Arc::new(Loop))
        .await
        .unwrap()
}

async fn bytes(image: &Qcow2) -> Vec<u8> {
    let (result, buf) = image.read(0, IoBuf::uninit(SIZE as usize), Hints::NONE).await;
    result.unwrap();
    buf.to_vec()
}

/// What is not zero, among the zeroed bytes, over a base that is full of data.
async fn shows_base(options: CreateOptions, awaits: bool, change: impl AsyncFn(&Qcow2)) -> bool {
    let file = Arc::new(MemoryStorage::new(0));
    create(&*file, None, &CreateOptions { size: SIZE, ..options }).await.unwrap();
    let image = open(&file, false).await;
    if awaits {
        image.await_backing();
    }
    change(&image).await;
    image.close().await.unwrap();
    let read = bytes(&open(&file, true).await).await;
    assert!(read.contains(&BASE), "all of the base is hidden");
    ZEROED.iter().any(|(at, len)| read[*at as usize..(at + len) as usize].iter().any(|byte| *byte != 0))
}

async fn write_zeroes(image: &Qcow2) {
    for (index, (at, len)) in ZEROED.into_iter().enumerate() {
        let options = ZeroOptions { unmap: index % 2 == 0, fast_only: false };
        image.zero(at, len, options).await.unwrap();
    }
}

#[test]
fn zeroes_written_over_nothing_hide_what_is_put_below_later() {
    reactor_run(async {
        for (cluster_size, extended_l2) in
            [(512, false), (4096, false), (65_536, false), (65_536, true), (2 << 20, true)]
        {
            let options = CreateOptions { cluster_size, extended_l2, ..CreateOptions::default() };
            assert!(!shows_base(options, false, write_zeroes).await, "{cluster_size} {extended_l2}");
        }
    });
}

/// As QEMU: version 2 has no entry for it, and data for every trimmed cluster would fill the file. A copy says that a base comes.
#[test]
fn version_2_keeps_them_only_where_a_backing_file_is_expected() {
    reactor_run(async {
        for cluster_size in [512, 4096, 65_536] {
            let options = || CreateOptions { cluster_size, version: Version::V2, ..CreateOptions::default() };
            assert!(shows_base(options(), false, write_zeroes).await, "{cluster_size}");
            assert!(!shows_base(options(), true, write_zeroes).await, "{cluster_size}");
        }
    });
}

/// What is discarded may become anything: where nothing is, nothing is recorded.
#[test]
fn a_discard_over_nothing_allocates_nothing() {
    reactor_run(async {
        let file = Arc::new(MemoryStorage::new(0));
        create(&*file, None, &CreateOptions { size: SIZE, ..CreateOptions::default() }).await.unwrap();
        let image = open(&file, false).await;
        let before = file.length();
        image.discard(0, SIZE).await.unwrap();
        image.flush().await.unwrap();
        assert_eq!(file.length(), before);
        image.zero(0, SIZE, ZeroOptions::default()).await.unwrap();
        image.flush().await.unwrap();
        assert!(file.length() > before, "an L2 table says zeroes");
    });
}
