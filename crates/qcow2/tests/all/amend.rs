//! What an image is, changed: what cannot be is refused before anything is written, and a failure leaves the old image or the new one.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::ops::ControlFlow;
use std::sync::Arc;

use qcow2::{
    Amendment, CreateOptions, ErrorKind, Files, Options, Qcow2, Repair, amend, check, create, read_header,
};
use qcow2_layout::{Header, Version};
use storage::{Hints, IoBytes, IoVec, MemoryStorage, Storage};

use crate::common::faulty::Faulty;
use crate::on_reactor::{Loop, reactor_run};

const CLUSTER: u64 = 512;

fn width(bits: u32) -> Amendment {
    Amendment { refcount_bits: Some(bits), ..Amendment::default() }
}

fn version(version: Version) -> Amendment {
    Amendment { version: Some(version), ..Amendment::default() }
}

/// An image with data and a snapshot of it, and where its bytes are.
async fn image(options: CreateOptions) -> Arc<MemoryStorage> {
    let file = Arc::new(MemoryStorage::new(0));
    let options = CreateOptions { size: 4 << 20, cluster_size: CLUSTER, ..options };
    create(&*file, None, &options).await.unwrap();
    let files = Files { file: Arc::clone(&file) as Arc<dyn Storage>, data: None, backing: None };
    let options = Options { writable: true, ..Options::default() };
    let image = Qcow2::open(files, options, Arc::new(Loop)).await.unwrap();
    image.write(0, IoVec::from(IoBytes::copy_from(&[7; 100 << 10])), Hints::NONE).await.unwrap();
    image.create_snapshot(Default::default()).await.unwrap();
    image.write(1 << 20, IoVec::from(IoBytes::copy_from(&[8; 9 << 10])), Hints::NONE).await.unwrap();
    image.close().await.unwrap();
    file
}

async fn refused(file: &MemoryStorage, amendment: Amendment) -> (ErrorKind, String) {
    let before = file.to_bytes();
    let error = amend(file, &amendment, &mut |_, _| ControlFlow::Continue(())).await.unwrap_err();
    assert!(file.to_bytes() == before, "{amendment:?} is refused and changes the file");
    (error.kind(), error.to_string())
}

async fn clean(file: &dyn Storage) {
    let report = check(file, Repair::None, &mut |_| {}).await.unwrap();
    assert!(report.is_clean(), "{report:?}");
}

/// What of the header may change.
fn reported(header: &Header) -> (Version, u32) {
    (header.version, header.refcount_order)
}

#[test]
fn what_cannot_be_is_refused_with_what_can_and_nothing_is_written() {
    reactor_run(async {
        let file = image(CreateOptions::default()).await;
        let old = image(CreateOptions { version: Version::V2, ..CreateOptions::default() }).await;
        let zstd = CreateOptions { compression: qcow2_layout::Compression::Zstd, ..CreateOptions::default() };
        let zstd = image(zstd).await;
        let lazy = Amendment { lazy_refcounts: Some(true), ..version(Version::V2) };
        let data_file = Amendment { data_file: Some("x".to_owned()), ..Amendment::default() };
        let raw = Amendment { data_file_raw: Some(true), ..Amendment::default() };
        for (file, amendment, kind, words) in [
            (&file, width(3), ErrorKind::Invalid, "must be 1, 2, 4"),
            (&file, width(128), ErrorKind::Invalid, "must be 1, 2, 4"),
            (&file, width(1), ErrorKind::Invalid, "refcount_bits=1 at most 1"),
            (&old, width(8), ErrorKind::Invalid, "refcount_bits=16"),
            (&file, lazy, ErrorKind::Invalid, "lazy"),
            (&zstd, version(Version::V2), ErrorKind::Unsupported, "compression type"),
            (&file, data_file, ErrorKind::Invalid, "data_file"),
            (&file, raw, ErrorKind::Invalid, "data_file_raw"),
        ] {
            let (found, error) = refused(file, amendment).await;
            assert_eq!(found, kind, "{error}");
            assert!(error.contains(words), "{words}: {error}");
        }
    });
}

#[test]
fn an_image_that_must_be_repaired_first_is_refused() {
    reactor_run(async {
        for bit in [1u8, 2] {
            let file = image(CreateOptions::default()).await;
            file.write(79, IoBytes::copy_from(&[bit]).into(), Hints::NONE).await.unwrap();
            assert_eq!(refused(&file, width(8)).await.0, ErrorKind::Refused);
        }
    });
}

#[test]
fn refcounts_that_are_not_there_are_corruption_and_not_zeroes() {
    reactor_run(async {
        let file = image(CreateOptions::default()).await;
        let header = read_header(&*file).await.unwrap();
        // The second block of a table of which the first is right.
        let word = (file.length().next_multiple_of(CLUSTER) + CLUSTER).to_be_bytes();
        file.write(header.refcount_table_offset.0 + 8, IoBytes::copy_from(&word).into(), Hints::NONE)
            .await
            .unwrap();
        let (kind, error) = refused(&file, width(64)).await;
        assert_eq!(kind, ErrorKind::Corrupt, "{error}");
        assert!(error.contains("past the end of the file"), "{error}");
    });
}

/// The machine goes off after each change of the file in turn.
#[test]
fn a_failure_leaves_the_old_image_or_the_new_one() {
    reactor_run(async {
        let bytes = image(CreateOptions::default()).await.to_bytes();
        let amendment = Amendment { lazy_refcounts: Some(true), ..width(64) };
        let mut changes = 0;
        loop {
            let file = Faulty::new(MemoryStorage::from_bytes(&bytes), changes);
            let before = read_header(&file).await.unwrap();
            let done = amend(&file, &amendment, &mut |_, _| ControlFlow::Continue(())).await;
            let after = read_header(&file).await.unwrap();
            let is_new = reported(&after) == (Version::V3, 6);
            assert!(is_new || reported(&after) == reported(&before), "after {changes} changes: {after:?}");
            clean(&file.inner).await;
            if done.is_ok() {
                assert!(is_new);
                break;
            }
            changes += 1;
        }
        assert!(changes > 4, "{changes}");
    });
}

#[test]
fn a_device_without_room_is_reported_and_stays_as_it_is() {
    reactor_run(async {
        let mut bytes = image(CreateOptions::default()).await.to_bytes();
        let full = Faulty::device(&bytes);
        let error = amend(&full, &width(64), &mut |_, _| ControlFlow::Continue(())).await.unwrap_err();
        assert!(error.is_no_space(), "{error}");
        assert!(full.inner.to_bytes() == bytes);
        bytes.resize(bytes.len() + (64 << 10), 0xdb);
        let device = Faulty::device(&bytes);
        // Ended by the user in the middle: nothing leads to what was written.
        let error = amend(&device, &width(64), &mut |_, _| ControlFlow::Break(())).await.unwrap_err();
        assert!(error.to_string().contains("interrupted"), "{error}");
        clean(&device).await;
        amend(&device, &width(64), &mut |_, _| ControlFlow::Continue(())).await.unwrap();
        clean(&device).await;
    });
}
