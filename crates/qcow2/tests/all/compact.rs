//! A smaller file for the same image: what disk and snapshots hold stays, whenever it ends.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use crate::common;
use crate::harness;
use crate::on_reactor;

use block::{Block, Raw};
use common::broken::{KINDS, Kind};
use common::faulty::Faulty;
use common::{load, qemu, qemu_check, qemu_img, run, save};
use harness::compacting::contents;
use harness::{Qcow2Target, config, scale};
use on_reactor::{Loop, reactor_run};
use qcow2::{
    CheckReport, CompactError, CompactOptions, CompactReport, Files, Options, Progress, Qcow2, Repair, check,
    compact,
};
use sim::campaign::{Setup, run_workload};
use sim::{Shape, Target};
use storage::{IoBuf, MemoryStorage, Storage};

const OPTIONS: CompactOptions = CompactOptions { detect_zeroes: false, dry_run: false };
const ZEROES: CompactOptions = CompactOptions { detect_zeroes: true, dry_run: false };

/// More kinds: compressed clusters that are packed, over a backing file, and with many bitmaps.
const MORE_KINDS: [Kind; 3] = [
    Kind {
        name: "backing-file",
        options: "cluster_size=4k,backing_file=below.raw,backing_fmt=raw",
        size: "4M",
        steps: &[&["io", "write -P 1 0 200k", "write -z 1M 64k", "write -P 3 3000k 1k"]],
    },
    Kind {
        name: "bitmaps",
        options: "cluster_size=4k",
        size: "8M",
        steps: &[
            &["img", "bitmap", "--add", "-g", "512", "BITMAP"],
            &["io", "write -P 1 0 800k", "write -P 0 1M 256k"],
        ],
    },
    Kind {
        name: "few-references",
        options: "cluster_size=4k,refcount_bits=2",
        size: "4M",
        steps: &[&["io", "write -P 1 0 800k", "write -c -P 0 1M 4k", "write -c -P 6 1028k 4k"]],
    },
];

fn kinds() -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().chain(&MORE_KINDS)
}

/// An image with free clusters before others: the guest discarded what it wrote first, after writing compressed clusters in which
/// there is something to compress, zeroes as data, and more at the end.
fn with_holes(kind: &Kind, directory: &Path) -> Vec<u8> {
    std::fs::write(directory.join("below.raw"), vec![0xbb; 3 << 20]).unwrap();
    kind.make(directory, "image.qcow2");
    let mut commands = vec!["-f", "qcow2", "-d", "unmap", "-c", "write -P 0 1600k 256k"];
    // QEMU compresses whole clusters, and only where nothing is allocated.
    let allocated =
        ["data_file", "preallocation", "cluster_size=2M"].iter().any(|option| kind.options.contains(option));
    let compressible = kind.size == "8M" && !allocated;
    let compressed: Vec<String> =
        (0..6).map(|index| format!("write -c -P {} {}k 64k", index + 1, 5120 + index * 64)).collect();
    if compressible {
        commands.extend(compressed.iter().flat_map(|command| ["-c", command]));
    }
    commands.extend(["-c", "write -P 9 2M 128k", "-c", "discard 0 512k"]);
    if kind.size == "8M" {
        commands.extend(["-c", "discard 5184k 64k", "-c", "write -P 8 7M 300k"]);
    }
    commands.extend(["-c", "discard 1M 128k", "image.qcow2"]);
    let done = qemu(directory, "qemu-io", &commands);
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && !said.contains("rror"), "{}: {said}", kind.name);
    std::fs::read(directory.join("image.qcow2")).unwrap()
}

fn compacted(file: &dyn Storage, options: CompactOptions) -> Result<CompactReport, CompactError> {
    run(compact(file, options, &mut |_| ControlFlow::Continue(())))
}

fn checked(file: &MemoryStorage) -> CheckReport {
    run(check(file, Repair::None, &mut |_: Progress<'_>| {})).unwrap()
}

/// What the guest reads.
fn content(file: &MemoryStorage, directory: &Path) -> Vec<u8> {
    let bytes = file.to_bytes();
    reactor_run(async {
        let file: Arc<dyn Storage> = Arc::new(MemoryStorage::from_bytes(&bytes));
        let header = qcow2::read_header(&*file).await.unwrap();
        let beside = |name: &str| Arc::new(load(&directory.join(name)));
        let external = header.incompatible.contains(qcow2_layout::Incompatible::EXTERNAL_DATA);
        let data = external.then(|| beside("data.raw") as Arc<dyn Storage>);
        let backing =
            header.backing.is_some().then(|| Arc::new(Raw::new(beside("below.raw"))) as Arc<dyn Block>);
        let image =
            Qcow2::open(Files { file, data, backing }, Options::default(), Arc::new(Loop)).await.unwrap();
        let size = usize::try_from(image.size()).unwrap();
        let (read, bytes) = image.read(0, IoBuf::uninit(size)).await;
        read.unwrap();
        bytes.to_vec()
    })
}

/// What each snapshot holds, and what is said of bitmaps, as QEMU sees them.
fn beside_the_disk(directory: &Path, name: &str) -> (Vec<Vec<u8>>, serde_json::Value) {
    let info: serde_json::Value =
        serde_json::from_str(&qemu_img(directory, &["info", "--output=json", name])).unwrap();
    let snapshots = info["snapshots"].as_array().cloned().unwrap_or_default();
    let snapshots = snapshots.iter().map(|snapshot| {
        let named = format!("snapshot.name={}", snapshot["name"].as_str().unwrap());
        qemu_img(directory, &["convert", "-l", &named, "-O", "raw", name, "snapshot.raw"]);
        std::fs::read(directory.join("snapshot.raw")).unwrap()
    });
    (snapshots.collect(), info["format-specific"]["data"]["bitmaps"].clone())
}

/// The same disk, snapshots and bitmaps, and nothing wrong for QEMU.
fn assert_same(before: &[u8], after: &MemoryStorage, directory: &Path, what: &str) {
    std::fs::write(directory.join("before.qcow2"), before).unwrap();
    save(after, &directory.join("after.qcow2"));
    qemu_img(directory, &["compare", "-f", "qcow2", "-F", "qcow2", "before.qcow2", "after.qcow2"]);
    let (code, report) = qemu_check(&directory.join("after.qcow2"), None);
    assert_eq!(code, 0, "{what}: {report}");
    let sides = ["before.qcow2", "after.qcow2"].map(|name| beside_the_disk(directory, name));
    assert!(sides[0] == sides[1], "{what}: snapshots or bitmaps differ");
}

#[test]
fn images_of_every_kind_become_smaller_and_stay_what_they_were() {
    for kind in kinds() {
        for options in [OPTIONS, ZEROES] {
            let what = format!("{} {options:?}", kind.name);
            let directory = tempfile::tempdir().unwrap();
            let bytes = with_holes(kind, directory.path());
            let file = MemoryStorage::from_bytes(&bytes);
            let dry = compacted(&file, CompactOptions { dry_run: true, ..options }).unwrap();
            assert!(file.to_bytes() == bytes, "{what}: a dry run writes nothing");
            let report = compacted(&file, options).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_same(&bytes, &file, directory.path(), &what);
            let checked = checked(&file);
            assert!(checked.is_clean() && checked.check_errors == 0, "{what}: {checked:?}");
            assert_eq!(checked.image_end_offset, report.length_after, "{what}");
            assert_eq!(report.zeroes_freed, dry.zeroes_freed, "{what}");
            println!("{what}: {} -> {} ({})", report.length_before, report.length_after, dry.length_after);
            let again = compacted(&file, options).unwrap();
            assert_eq!((again.moved_bytes, again.leaks_freed), (0, 0), "{what}");
            assert_eq!(again.length_after, report.length_after, "{what}");
            // What is expected is reached, but for the last compressed clusters, which are packed anew.
            let slack = report.length_before / 50;
            assert!(report.length_after <= dry.length_after + slack, "{what}: {report:?}, {dry:?}");
            if options.detect_zeroes && kind.name != "data-file" {
                assert!(report.length_after < report.length_before, "{what}: {report:?}");
            }
        }
    }
}

/// Somebody stops the machine, or the disk is full: what was written until then is what the image is made of.
#[test]
fn a_failure_at_any_write_leaves_the_disk_as_it_was() {
    for kind in kinds() {
        let directory = tempfile::tempdir().unwrap();
        let bytes = with_holes(kind, directory.path());
        let expected = content(&MemoryStorage::from_bytes(&bytes), directory.path());
        let mut left = 0;
        loop {
            let what = format!("{} after {left} changes", kind.name);
            let file = Faulty::new(MemoryStorage::from_bytes(&bytes), left);
            let done = compacted(&file, ZEROES);
            let image = file.inner;
            let report = checked(&image);
            assert_eq!((report.corruptions, report.check_errors), (0, 0), "{what}: {report:?}");
            assert!(content(&image, directory.path()) == expected, "{what}: the disk changed");
            let again = compacted(&image, ZEROES).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(checked(&image).is_clean(), "{what}");
            assert!(again.length_after <= bytes.len() as u64, "{what}");
            if left % 17 == 3 {
                assert_same(&bytes, &image, directory.path(), &what);
            }
            if done.is_ok() {
                break;
            }
            // Each of the first, and then one of several: small clusters take hundreds.
            left += 1 + left / 24;
        }
        println!("{}: {left} changes", kind.name);
    }
}

/// Clients write, discard, compress, take snapshots and go back to them, and then the image is compacted.
#[test]
fn images_of_any_history_stay_what_they_were() {
    const NAMES: [&str; 8] = [
        "c512_snapshotted",
        "c1k_v2_snapshotted_on_raw",
        "c4k_on_qcow2",
        "c4k_packs",
        "c4k_packs_few_references",
        "c4k_compressed_snapshotted",
        "c4k_bitmap",
        "c16k_subclusters_snapshotted",
    ];
    for name in NAMES {
        let target = Qcow2Target::new(config(name));
        for seed in 0..4 * scale() {
            let workload = Shape::new(target.abilities(), 120, 2).generate(seed);
            let ran = run_workload(&target, &workload, &Setup::shuffled(seed));
            let ran = ran.unwrap_or_else(|failure| panic!("{failure}"));
            let world = ran.world.copy(seed);
            let before = contents(&target, &world);
            let options = CompactOptions { detect_zeroes: seed % 2 == 1, dry_run: false };
            let report = harness::compacting::compact(&world, options);
            assert!(contents(&target, &world) == before, "{name}, seed {seed}: {report:?}");
            let disks: Vec<_> = (0..world.disks()).map(|disk| world.current(disk)).collect();
            target.asked_of_qemu(&disks).unwrap_or_else(|error| panic!("{name}, seed {seed}: {error}"));
            let again = harness::compacting::compact(&world, options);
            assert_eq!((again.moved_bytes, again.leaks_freed), (0, 0), "{name}, seed {seed}: {again:?}");
            assert!(again.length_before <= report.length_before, "{name}, seed {seed}: {report:?}");
        }
    }
}

#[test]
fn who_watches_may_end_it() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = with_holes(&KINDS[0], directory.path());
    let file = MemoryStorage::from_bytes(&bytes);
    let mut seen = Vec::new();
    let ended = run(compact(&file, OPTIONS, &mut |progress| {
        seen.push(progress);
        ControlFlow::Break(())
    }));
    assert!(matches!(ended, Err(CompactError::Interrupted)), "{ended:?}");
    assert!(matches!(seen[..], [progress] if progress.done_bytes > 0));
    assert_same(&bytes, &file, directory.path(), "interrupted");
}

#[test]
fn nothing_moves_in_an_image_that_contradicts_itself() {
    let directory = tempfile::tempdir().unwrap();
    let good = with_holes(&KINDS[0], directory.path());
    // The refcount table leads nowhere.
    let mut bytes = good.clone();
    let table = usize::try_from(common::broken::word(&bytes, 48)).unwrap();
    common::broken::set_word(&mut bytes, table, 0);
    let file = MemoryStorage::from_bytes(&bytes);
    assert!(matches!(compacted(&file, OPTIONS), Err(CompactError::NotSound { .. })));
    assert!(file.to_bytes() == bytes);
    // Somebody marked it.
    let mut bytes = good;
    let marked = common::broken::word(&bytes, 72) | 2;
    common::broken::set_word(&mut bytes, 72, marked);
    let file = MemoryStorage::from_bytes(&bytes);
    assert!(matches!(compacted(&file, OPTIONS), Err(CompactError::MarkedCorrupt)));
    assert!(file.to_bytes() == bytes);
}

/// Of a LUKS image each cluster is encrypted for its place: moved, it would read as noise.
#[test]
fn encrypted_images_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let create = [
        "create",
        "-q",
        "-f",
        "qcow2",
        "--object",
        "secret,id=s,data=hunter2",
        "-o",
        "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10",
        "luks.qcow2",
        "4M",
    ];
    qemu_img(directory.path(), &create);
    let file = load(&directory.path().join("luks.qcow2"));
    assert!(matches!(compacted(&file, OPTIONS), Err(CompactError::Encrypted)));
}
