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
use harness::{Qcow2Target, config};
use luks::Secret;
use on_reactor::{Loop, reactor_run};
use qcow2::{
    CheckReport, CompactError, CompactOptions, CompactReport, Files, Host, Options, Progress, Qcow2, Repair,
    check, compact, plain_text,
};
use qcow2_layout::L1Entry;
use sim::campaign::{Setup, run_workload};
use sim::{Content, Durability, Op, Shape, Step, Target, Workload};
use storage::{Hints, IoBuf, MemoryStorage, Storage};

const OPTIONS: CompactOptions = CompactOptions { detect_zeroes: false, defragment: false, dry_run: false };
const ORDERED: CompactOptions = CompactOptions { detect_zeroes: false, defragment: true, dry_run: false };
const ALL: CompactOptions = CompactOptions { detect_zeroes: true, defragment: true, dry_run: false };
const ZEROES: CompactOptions = CompactOptions { detect_zeroes: true, defragment: false, dry_run: false };

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
    run(compact(file, None, options, &mut |_| ControlFlow::Continue(())))
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
        let (read, bytes) = image.read(0, IoBuf::uninit(size), Hints::NONE).await;
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
        for options in [OPTIONS, ZEROES, ALL] {
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

/// The machine stops, or the disk is full: what was written until then is what the image is made of.
#[test]
fn a_failure_at_any_write_leaves_the_disk_as_it_was() {
    for kind in kinds() {
        let directory = tempfile::tempdir().unwrap();
        let bytes = with_holes(kind, directory.path());
        let expected = content(&MemoryStorage::from_bytes(&bytes), directory.path());
        let (mut left, mut options) = (0, ZEROES);
        loop {
            let what = format!("{} after {left} changes", kind.name);
            let file = Faulty::new(MemoryStorage::from_bytes(&bytes), left);
            let done = compacted(&file, options);
            let image = file.inner;
            let report = checked(&image);
            assert_eq!((report.corruptions, report.check_errors), (0, 0), "{what}: {report:?}");
            assert!(content(&image, directory.path()) == expected, "{what}: the disk changed");
            let again = compacted(&image, options).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(checked(&image).is_clean(), "{what}");
            assert!(again.length_after <= bytes.len() as u64, "{what}");
            if left % 17 == 3 {
                assert_same(&bytes, &image, directory.path(), &what);
            }
            if done.is_ok() && options == ALL {
                break;
            }
            if done.is_ok() {
                (left, options) = (0, ALL);
            }
            // Each of the first, and then one of several: small clusters take hundreds.
            left += 1 + left / 12;
        }
        println!("{}: {left} changes", kind.name);
    }
}

/// Where the L2 tables of the disk are, in the guest's order.
fn tables(file: &Content) -> Vec<u64> {
    let header = harness::judge::header(file).unwrap();
    let mut l1 = vec![0; header.l1_size as usize * 8];
    file.read(header.l1_table_offset.0, &mut l1);
    let entries = l1
        .as_chunks::<8>()
        .0
        .iter()
        .map(|entry| L1Entry::decode(u64::from_be_bytes(*entry), &header.geometry().unwrap()));
    entries.filter_map(|entry| Some(entry.unwrap().table?.0)).collect()
}

/// Tables that the guest's writes allocated from the end of the disk to its start: a scan of the disk read them backwards, also after
/// defragmenting.
#[test]
fn l2_tables_are_put_in_the_guests_order() {
    let target = Qcow2Target::new(config("c4k"));
    let write = |at: u64| Op::Write { at: at << 20, len: 512, durability: Durability::AtFlush };
    // A table leads to 2 MiB; the base has the first one.
    let steps = [write(4), Op::Flush, write(2), Op::Flush].map(Step::of).to_vec();
    let ran = run_workload(&target, &Workload { steps }, &Setup::shuffled(1));
    let world = ran.unwrap_or_else(|failure| panic!("{failure}")).world.copy(1);
    let (before, places) = (contents(&target, &world), tables(&world.current(0)));
    assert!(places.len() == 3 && !places.is_sorted(), "{places:?}");
    let report = harness::compacting::compact(&world, ORDERED);
    let now = tables(&world.current(0));
    assert!(report.moved_bytes > 0 && now.is_sorted(), "{now:?} {report:?}");
    assert!(contents(&target, &world) == before);
    assert_eq!(harness::compacting::compact(&world, ORDERED).moved_bytes, 0);
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
        for seed in 0..sim::scaled(4).max(4) {
            let workload = Shape::new(target.abilities(), 120, 2).generate(seed);
            let ran = run_workload(&target, &workload, &Setup::shuffled(seed));
            let ran = ran.unwrap_or_else(|failure| panic!("{failure}"));
            let world = ran.world.copy(seed);
            let before = contents(&target, &world);
            let options =
                CompactOptions { detect_zeroes: seed % 2 == 1, defragment: seed % 4 > 1, dry_run: false };
            let report = harness::compacting::compact(&world, options);
            assert!(contents(&target, &world) == before, "{name}, seed {seed}: {report:?}");
            if options.defragment {
                assert!(tables(&world.current(0)).is_sorted(), "{name}, seed {seed}: tables are in no order");
            }
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
    let ended = run(compact(&file, None, OPTIONS, &mut |progress| {
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
    // It is marked.
    let mut bytes = good;
    let marked = common::broken::word(&bytes, 72) | 2;
    common::broken::set_word(&mut bytes, 72, marked);
    let file = MemoryStorage::from_bytes(&bytes);
    assert!(matches!(compacted(&file, OPTIONS), Err(CompactError::MarkedCorrupt)));
    assert!(file.to_bytes() == bytes);
}

/// An encrypted image with free clusters before others.
fn encrypted(directory: &Path) -> Vec<u8> {
    let key = ["--object", "secret,id=s,data=hunter2"];
    let created = "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10,cluster_size=4k";
    let create = ["create", "-q", "-f", "qcow2", key[0], key[1], "-o", created, "luks.qcow2", "4M"];
    qemu_img(directory, &create);
    let image = "driver=qcow2,file.filename=luks.qcow2,encrypt.key-secret=s";
    let writes = ["write -P 3 2M 64k", "write -P 1 0 100k", "write -P 0 1M 64k", "write -P 2 3M 41k"];
    let mut commands = vec![key[0], key[1], "-d", "unmap", "--image-opts", image];
    commands.extend(writes.iter().flat_map(|write| ["-c", write]));
    commands.extend(["-c", "discard 0 40k"]);
    let done = qemu(directory, "qemu-io", &commands);
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && !said.contains("rror"), "{said}");
    std::fs::read(directory.join("luks.qcow2")).unwrap()
}

/// Each cluster of a LUKS image is encrypted for its place: moved as it is, it would read as noise.
#[test]
fn encrypted_data_is_encrypted_anew_for_its_new_place() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = encrypted(directory.path());
    for options in [OPTIONS, ALL] {
        let file: Arc<dyn Storage> = Arc::new(MemoryStorage::from_bytes(&bytes));
        assert!(matches!(compacted(&*file, options), Err(CompactError::Encrypted)));
        let password = Secret::new(b"hunter2".to_vec());
        let host: Arc<dyn Host> = Arc::new(Loop);
        let report = reactor_run(async {
            let plain = plain_text(&file, Some(&password), &host).await.unwrap().unwrap();
            compact(&*file, Some(&*plain), options, &mut |_| ControlFlow::Continue(())).await.unwrap()
        });
        assert!(report.moved_bytes > 0 && report.length_after < report.length_before, "{report:?}");
        let mut after = vec![0; usize::try_from(file.length()).unwrap()];
        assert!(file.try_read(0, &mut after, Hints::NONE));
        std::fs::write(directory.path().join("after.qcow2"), after).unwrap();
        let names = ["luks.qcow2", "after.qcow2"]
            .map(|name| format!("driver=qcow2,file.filename={name},encrypt.key-secret=s"));
        let secret = "secret,id=s,data=hunter2";
        let compare = ["compare", "--object", secret, "--image-opts", &names[0], &names[1]];
        qemu_img(directory.path(), &compare);
        qemu_img(directory.path(), &["check", "--object", secret, "--image-opts", &names[1]]);
    }
}

/// Written backwards, in pieces: each cluster lies before the one that the guest has before it.
#[test]
fn data_is_in_the_guests_order_afterwards() {
    for options in ["cluster_size=4k", "cluster_size=512", "cluster_size=16k,extended_l2=on"] {
        let directory = tempfile::tempdir().unwrap();
        qemu_img(directory.path(), &["create", "-q", "-f", "qcow2", "-o", options, "image.qcow2", "4M"]);
        let writes: Vec<String> =
            (0..60u64).map(|index| format!("write -P {} {}k 16k", index + 1, (59 - index) * 17)).collect();
        let writes: Vec<&str> = writes.iter().map(String::as_str).collect();
        common::qemu_io(directory.path(), "image.qcow2", &writes);
        let bytes = std::fs::read(directory.path().join("image.qcow2")).unwrap();
        let file = MemoryStorage::from_bytes(&bytes);
        let report = compacted(&file, ORDERED).unwrap();
        assert_same(&bytes, &file, directory.path(), options);
        let after = checked(&file);
        assert!(report.fragmented_before > 40 && report.fragmented_after == after.fragmented_clusters);
        // Around metadata, which stays: some tables and blocks, of small clusters more.
        let metadata = after.image_end_offset / u64::from(1u32 << bytes[23]) - after.allocated_clusters;
        assert!(after.fragmented_clusters <= metadata, "{options}: {report:?}, {metadata}");
        let again = compacted(&file, ORDERED).unwrap();
        assert_eq!((again.moved_bytes, again.length_after), (0, report.length_after), "{options}");
    }
}

/// An L1 table of 32 clusters at the end of a file in which only single clusters were free kept the file as long as it was.
#[test]
fn a_table_of_several_clusters_finds_room_where_single_clusters_are_free() {
    let directory = tempfile::tempdir().unwrap();
    let name = "image.qcow2";
    qemu_img(directory.path(), &["create", "-q", "-f", "qcow2", "-o", "cluster_size=512", name, "256k"]);
    common::qemu_io(directory.path(), name, &["write -P 5 0 256k"]);
    qemu_img(directory.path(), &["resize", "-q", name, "64M"]);
    let mut holes = vec!["-f", "qcow2", "-d", "unmap"];
    let discards: Vec<String> = (0..200).map(|index| format!("discard {} 512", index * 1024)).collect();
    holes.extend(discards.iter().flat_map(|discard| ["-c", discard]));
    holes.push(name);
    assert!(qemu(directory.path(), "qemu-io", &holes).status.success());
    let bytes = std::fs::read(directory.path().join(name)).unwrap();
    let file = MemoryStorage::from_bytes(&bytes);
    let l1_before = common::broken::word(&bytes, 40);
    let dry = compacted(&file, CompactOptions { dry_run: true, ..OPTIONS }).unwrap();
    let report = compacted(&file, OPTIONS).unwrap();
    assert_same(&bytes, &file, directory.path(), "64M");
    assert!(report.length_after <= dry.length_after, "{report:?}, {dry:?}");
    let l1_after = common::broken::word(&file.to_bytes(), 40);
    assert!(l1_before > report.length_after && l1_after < l1_before, "{l1_before:#x} {l1_after:#x}");
    assert_eq!(compacted(&file, OPTIONS).unwrap().moved_bytes, 0);
}
