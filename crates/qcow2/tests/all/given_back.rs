//! Opening an image for writing gives back what a crash left counted, and nothing else.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::path::Path;
use std::sync::Arc;

use crate::common;
use crate::on_reactor;

use block::{Block, Raw};
use common::broken::{KINDS, Kind, Places, set_word, word};
use common::faulty::Faulty;
use common::{load, qemu_check, qemu_img, run, save};
use on_reactor::{Loop, reactor_run};
use qcow2::{CheckReport, Files, Options, Progress, Qcow2, Repair, check};
use qcow2_layout::{refcount_get, refcount_set};
use storage::{Hints, IoBytes, MemoryStorage, Storage};

/// Bit 63 of the compatible features: a writer with a reserve was inside.
const RESERVE: u64 = 1 << 63;
const COMPATIBLE_AT: usize = 80;
const AUTOCLEAR_AT: usize = 88;
const LEAKED_MAX: u64 = 3;

const WITH_BACKING_FILE: Kind = Kind {
    name: "backing-file",
    options: "cluster_size=4k,backing_file=below.raw,backing_fmt=raw",
    size: "4M",
    steps: &[&["io", "write -P 1 0 200k", "write -z 1M 64k", "write -P 3 3000k 1k"]],
};

/// The image as a crash left it: its header tells of a reserve, and free clusters are counted, the highest; so many.
fn crashed(kind: &Kind, directory: &Path) -> (Vec<u8>, u64) {
    std::fs::write(directory.join("below.raw"), vec![0xbb; 3 << 20]).unwrap();
    let mut bytes = kind.make(directory, "image.qcow2");
    let Places { header, geometry, table, .. } = Places::of(&bytes);
    let (entries, order) = (geometry.refcount_block_entries(), geometry.refcount_order);
    let size = geometry.cluster_size();
    let clusters = bytes.len() as u64 / size + LEAKED_MAX;
    bytes.resize(usize::try_from(clusters * size).unwrap(), 0xee);
    let mut leaked = 0;
    for cluster in (0..clusters).rev() {
        let entry = word(&bytes, table + usize::try_from(cluster / entries).unwrap() * 8);
        let block = usize::try_from(entry).unwrap();
        let block = &mut bytes[block..block + usize::try_from(size).unwrap()];
        if leaked < LEAKED_MAX && entry != 0 && refcount_get(block, cluster % entries, order) == Some(0) {
            refcount_set(block, cluster % entries, order, 1).unwrap();
            leaked += 1;
        }
    }
    assert!(leaked > 0, "{}", kind.name);
    if header.version == qcow2_layout::Version::V3 {
        let compatible = word(&bytes, COMPATIBLE_AT) | RESERVE;
        set_word(&mut bytes, COMPATIBLE_AT, compatible);
    }
    (bytes, leaked)
}

async fn open(file: &Arc<Faulty>, directory: &Path) -> Result<Qcow2, qcow2::Error> {
    let header = qcow2::read_header(&**file).await?;
    let beside = |name: &str| Arc::new(load(&directory.join(name)));
    let external = header.incompatible.contains(qcow2_layout::Incompatible::EXTERNAL_DATA);
    let data = external.then(|| beside("data.raw") as Arc<dyn Storage>);
    let backing = header.backing.is_some().then(|| Arc::new(Raw::new(beside("below.raw"))) as Arc<dyn Block>);
    let file: Arc<dyn Storage> = Arc::clone(file) as _;
    let options = Options { writable: true, ..Options::default() };
    Qcow2::open(Files { file, data, backing }, options, Arc::new(Loop)).await
}

fn checked(file: &MemoryStorage) -> CheckReport {
    run(check(file, Repair::None, &mut |_: Progress<'_>| {})).unwrap()
}

fn all_kinds() -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().chain([&WITH_BACKING_FILE])
}

/// What bitmaps, snapshots and their tables have, what a data file and a backing file are for, stays; what nothing leads to goes.
#[test]
fn only_what_nothing_leads_to_is_given_back() {
    for kind in all_kinds() {
        let directory = tempfile::tempdir().unwrap();
        let (bytes, leaked) = crashed(kind, directory.path());
        let before = checked(&MemoryStorage::from_bytes(&bytes));
        assert_eq!((before.corruptions, before.leaks), (0, leaked), "{}", kind.name);
        let file = Arc::new(Faulty::new(MemoryStorage::from_bytes(&bytes), u64::MAX));
        reactor_run(async { open(&file, directory.path()).await.unwrap().close().await.unwrap() });
        let after = checked(&file.inner);
        let old = Places::of(&bytes).header.version == qcow2_layout::Version::V2;
        // A version 2 header cannot tell of a reserve.
        let left = if old { leaked } else { 0 };
        assert_eq!((after.corruptions, after.check_errors, after.leaks), (0, 0, left), "{}", kind.name);
        std::fs::write(directory.path().join("before.qcow2"), &bytes).unwrap();
        save(&file.inner, &directory.path().join("after.qcow2"));
        let compare = ["compare", "-f", "qcow2", "-F", "qcow2", "before.qcow2", "after.qcow2"];
        qemu_img(directory.path(), &compare);
        let (code, report) = qemu_check(&directory.path().join("after.qcow2"), None);
        assert_eq!(code, if old { 3 } else { 0 }, "{}: {report}", kind.name);
    }
}

/// Whichever of the writes of an open, or of what comes after it, is the last to land: nothing that is in use is counted as free,
/// and no cluster has two owners.
#[test]
fn a_failure_half_way_leaves_leaks_at_most() {
    for kind in all_kinds() {
        let directory = tempfile::tempdir().unwrap();
        let (bytes, _) = crashed(kind, directory.path());
        for left in 0..12 {
            let file = Arc::new(Faulty::new(MemoryStorage::from_bytes(&bytes), left));
            reactor_run(async {
                // What cannot be given back is no reason to refuse the image.
                let Ok(image) = open(&file, directory.path()).await else { return };
                for at in [3 << 20, 40 << 10] {
                    let _ = image.write(at, IoBytes::copy_from(&[7; 9000]).into(), Hints::NONE).await;
                    let _ = image.flush().await;
                }
                let _ = image.close().await;
            });
            let after = checked(&file.inner);
            let name = kind.name;
            assert_eq!((after.corruptions, after.check_errors), (0, 0), "{name}, after {left} changes");
        }
    }
}

/// A feature that we do not know may have clusters of its own, for as long as the header says so.
#[test]
fn what_an_unknown_feature_may_have_is_left_alone() {
    for kind in all_kinds() {
        let directory = tempfile::tempdir().unwrap();
        let (mut bytes, leaked) = crashed(kind, directory.path());
        if Places::of(&bytes).header.version == qcow2_layout::Version::V2 {
            continue;
        }
        let unknown = word(&bytes, AUTOCLEAR_AT) | 1 << 40;
        set_word(&mut bytes, AUTOCLEAR_AT, unknown);
        let file = Arc::new(Faulty::new(MemoryStorage::from_bytes(&bytes), u64::MAX));
        reactor_run(async { open(&file, directory.path()).await.unwrap().close().await.unwrap() });
        let after = checked(&file.inner);
        assert_eq!((after.corruptions, after.leaks), (0, leaked), "{}", kind.name);
    }
}

/// A program that does not know bitmaps clears the bit that says that they are valid. From then on they must not be read, and
/// QEMU too takes their clusters for leaked: they go back, and the bit stays clear.
#[test]
fn bitmaps_that_are_out_of_date_are_given_back_and_stay_out_of_date() {
    let mut seen = 0;
    for kind in all_kinds() {
        let directory = tempfile::tempdir().unwrap();
        let (mut bytes, _) = crashed(kind, directory.path());
        if Places::of(&bytes).header.extensions.bitmaps.is_none() {
            continue;
        }
        seen += 1;
        set_word(&mut bytes, AUTOCLEAR_AT, 0);
        let file = Arc::new(Faulty::new(MemoryStorage::from_bytes(&bytes), u64::MAX));
        reactor_run(async { open(&file, directory.path()).await.unwrap().close().await.unwrap() });
        let after = checked(&file.inner);
        assert_eq!((after.corruptions, after.leaks), (0, 0), "{}", kind.name);
        let path = directory.path().join("after.qcow2");
        save(&file.inner, &path);
        let (code, report) = qemu_check(&path, None);
        assert_eq!(code, 0, "{}: {report}", kind.name);
        assert_eq!(word(&std::fs::read(path).unwrap(), AUTOCLEAR_AT), 0, "{}", kind.name);
    }
    assert!(seen > 0, "no image with bitmaps");
}

/// What a crash leaks of a reserve is found by a mark in the header. Version 2 has none, so there is no reserve.
#[test]
fn a_version_that_cannot_tell_of_a_reserve_leaks_none() {
    for (compat, leaks_some) in [("0.10", false), ("1.1", true)] {
        let directory = tempfile::tempdir().unwrap();
        let options = format!("compat={compat}");
        qemu_img(directory.path(), &["create", "-q", "-f", "qcow2", "-o", &options, "image.qcow2", "1G"]);
        let file = Arc::new(Faulty::new(load(&directory.path().join("image.qcow2")), u64::MAX));
        reactor_run(async {
            let image = open(&file, directory.path()).await.unwrap();
            image.write(5 << 20, IoBytes::copy_from(&[7; 9000]).into(), Hints::NONE).await.unwrap();
            image.flush().await.unwrap();
            let crashed = checked(&file.inner);
            assert_eq!((crashed.corruptions, crashed.leaks > 0), (0, leaks_some), "{compat}");
            image.close().await.unwrap();
        });
        assert!(checked(&file.inner).is_clean(), "{compat}");
    }
}
