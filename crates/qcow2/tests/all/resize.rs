//! Resizing real files, with qemu-img as the judge.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use crate::common;
use crate::on_reactor;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Poll;

use crate::harness::{Qcow2Target, config};
use block::{Block, Raw};
use common::{at, qemu_check, qemu_img, qemu_info, qemu_io};
use on_reactor::{Loop, reactor_run};
use qcow2::{ErrorKind, Files, Options, Preallocation, Qcow2, ResizeOptions};
use sim::campaign::{FaultPlan, fail_every_io};
use sim::{
    CrashOptions, Durability, Fault, FaultKind, IoKind, Management, Op, Order, Persistence, Step, Target,
    Workload,
};
use storage::{FileOptions, FileStorage, Hints, IoBuf, IoBytes, IoVec, Storage};

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;
const SHRINK: ResizeOptions =
    ResizeOptions { shrink: true, preallocation: Preallocation::Off, bitmaps: false };

fn file(path: &Path) -> Arc<dyn Storage> {
    Arc::new(FileStorage::open(path, &FileOptions::default()).unwrap())
}

async fn open(path: &Path) -> Qcow2 {
    let beside = |name: &str| path.with_file_name(name).exists().then(|| file(&path.with_file_name(name)));
    let backing = beside("below.raw").map(|below| Arc::new(Raw::new(below)) as Arc<dyn Block>);
    let files = Files { file: file(path), data: beside("data.raw"), backing };
    let options = Options { writable: true, discard: true, ..Options::default() };
    Qcow2::open(files, options, Arc::new(Loop)).await.unwrap()
}

/// An image of qemu-img's, opened; after `work` it is closed and must be clean.
fn with_image(create: &[&str], work: impl AsyncFnOnce(&Qcow2)) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("below"), vec![0xbb; 3 << 20]).unwrap();
    if create.iter().any(|option| option.contains("below.raw")) {
        std::fs::rename(directory.path().join("below"), directory.path().join("below.raw")).unwrap();
    }
    let path = at(&directory, "image.qcow2");
    let all = [&["create", "-q", "-f", "qcow2", "-o"], create];
    qemu_img(directory.path(), &all.concat());
    changed(&path, work);
    (directory, path)
}

fn changed(path: &Path, work: impl AsyncFnOnce(&Qcow2)) {
    reactor_run(async {
        let image = open(path).await;
        work(&image).await;
        image.close().await.unwrap();
    });
    let (code, report) = qemu_check(path, None);
    assert_eq!(code, 0, "{report}");
}

async fn write(image: &Qcow2, at: u64, len: u64, byte: u8) {
    let data = IoVec::from(IoBytes::copy_from(&vec![byte; len as usize]));
    image.write(at, data, Hints::NONE).await.unwrap();
}

async fn reads(image: &Qcow2, at: u64, len: u64, byte: u8) -> bool {
    let (result, bytes) = image.read(at, IoBuf::uninit(len as usize), Hints::NONE).await;
    result.unwrap();
    bytes.iter().all(|&found| found == byte)
}

fn preallocated(preallocation: Preallocation) -> ResizeOptions {
    ResizeOptions { preallocation, ..ResizeOptions::default() }
}

#[test]
fn what_cannot_be_a_size_is_refused_and_nothing_changes() {
    let create = ["cluster_size=4k", "image.qcow2", "4M"];
    with_image(&create, async |image| {
        let kind = async |size, options| image.resize(size, options).await.unwrap_err().kind();
        assert_eq!(kind(M + 1, SHRINK).await, ErrorKind::Invalid);
        assert_eq!(kind(M, ResizeOptions::default()).await, ErrorKind::Invalid);
        let both = ResizeOptions { preallocation: Preallocation::Full, ..SHRINK };
        assert_eq!(kind(M, both).await, ErrorKind::Invalid);
        assert_eq!(kind(1 << 60, ResizeOptions::default()).await, ErrorKind::Invalid);
        assert_eq!(image.size(), 4 * M);
    });
}

#[test]
fn version_2_with_snapshots_and_bitmaps_of_any_version_keep_their_size() {
    let (_directory, path) = with_image(&["compat=0.10", "image.qcow2", "4M"], async |_| {});
    qemu_img(path.parent().unwrap(), &["snapshot", "-c", "one", "image.qcow2"]);
    let refused = async |image: &Qcow2| {
        let error = image.resize(8 * M, ResizeOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    };
    changed(&path, refused);
    let (_directory, path) = with_image(&["compat=1.1", "image.qcow2", "4M"], async |_| {});
    qemu_img(path.parent().unwrap(), &["bitmap", "--add", "image.qcow2", "one"]);
    changed(&path, refused);
}

#[test]
fn every_preallocation_gives_clusters_that_read_as_zeroes_and_have_their_space() {
    for (how, create) in [
        (Preallocation::Metadata, "cluster_size=4k"),
        (Preallocation::Falloc, "cluster_size=64k"),
        (Preallocation::Full, "cluster_size=4k,refcount_bits=64"),
        (Preallocation::Full, "cluster_size=16k,extended_l2=on"),
        (Preallocation::Metadata, "compat=0.10,cluster_size=512"),
        (Preallocation::Falloc, "cluster_size=16k,extended_l2=on,backing_file=below.raw,backing_fmt=raw"),
    ] {
        let (directory, path) = with_image(&[create, "image.qcow2", "1M"], async |image| {
            write(image, 0, M, 7).await;
            // Space that was used before is preallocated again.
            image.discard(0, 512 * K).await.unwrap();
            image.flush().await.unwrap();
            image.resize(5 * M + 512, preallocated(how)).await.unwrap();
            assert!(reads(image, M, 4 * M + 512, 0).await, "{create}");
            write(image, 2 * M, 100, 9).await;
        });
        let map: serde_json::Value =
            serde_json::from_str(&qemu_img(directory.path(), &["map", "--output=json", "image.qcow2"]))
                .unwrap();
        let missing = |part: &&serde_json::Value| {
            part["start"].as_u64().unwrap() >= M && !part["data"].as_bool().unwrap()
        };
        assert_eq!(map.as_array().unwrap().iter().filter(missing).count(), 0, "{create}: {map}");
        assert_eq!(qemu_info(&path)["virtual-size"], 5 * M + 512);
        let name = path.to_str().unwrap();
        qemu_io(directory.path(), name, &["read -P 0 1M 1M", "read -P 9 2M 100", "read -P 0 4M 1M"]);
    }
}

/// The cluster that the disk ended in has the guest's bytes, or those of the backing file, before what is added.
#[test]
fn the_rest_of_the_last_cluster_gets_space_and_what_is_before_it_stays() {
    for how in [Preallocation::Falloc, Preallocation::Full] {
        let create = ["cluster_size=64k,backing_file=below.raw,backing_fmt=raw", "image.qcow2", "1040k"];
        let (directory, _path) = with_image(&create, async |image| {
            image.resize(1056 * K, preallocated(how)).await.unwrap();
            assert!(reads(image, 0, 1040 * K, 0xbb).await && reads(image, 1040 * K, 16 * K, 0).await);
        });
        let map = qemu_img(directory.path(), &["map", "--output=json", "image.qcow2"]);
        let map: serde_json::Value = serde_json::from_str(&map).unwrap();
        let last = map.as_array().unwrap().last().unwrap();
        assert_eq!((&last["depth"], &last["data"]), (&0.into(), &true.into()), "{map}");
    }
}

#[test]
fn a_backing_file_that_is_longer_than_the_disk_never_shows_through() {
    let create = ["cluster_size=4k,backing_file=below.raw,backing_fmt=raw", "image.qcow2", "1000k"];
    let (directory, path) = with_image(&create, async |image| {
        assert!(reads(image, 0, 1000 * K, 0xbb).await);
        image.resize(4 * M, ResizeOptions::default()).await.unwrap();
        assert!(reads(image, 1000 * K, 4 * M - 1000 * K, 0).await);
    });
    let name = path.to_str().unwrap();
    qemu_io(directory.path(), name, &["read -P 0xbb 0 1000k", "read -P 0 1000k 3096k"]);
}

#[test]
fn what_qemu_left_behind_the_end_never_comes_back() {
    let (_directory, path) = with_image(&["cluster_size=64k", "image.qcow2", "4M"], async |image| {
        write(image, 0, 4 * M, 5).await;
    });
    qemu_img(path.parent().unwrap(), &["resize", "-q", "--shrink", "image.qcow2", "1000k"]);
    changed(&path, async |image| {
        image.resize(4 * M, ResizeOptions::default()).await.unwrap();
        assert!(reads(image, 0, 1000 * K, 5).await);
        assert!(reads(image, 1000 * K, 4 * M - 1000 * K, 0).await);
    });
}

#[test]
fn shrinking_gives_the_space_back_and_the_file_becomes_shorter() {
    let (_directory, path) = with_image(&["cluster_size=4k", "image.qcow2", "8M"], async |image| {
        write(image, 0, 8 * M, 5).await;
        image.flush().await.unwrap();
        image.resize(M + 512, SHRINK).await.unwrap();
        assert_eq!(image.size(), M + 512);
        assert!(reads(image, 0, M + 512, 5).await);
        assert!(image.write(M + 512, IoVec::from(IoBytes::zeroed(1)), Hints::NONE).await.is_err());
        assert!(image.file().length() < 2 * M, "{} bytes", image.file().length());
        image.resize(3 * M, ResizeOptions::default()).await.unwrap();
        assert!(reads(image, M + 512, 2 * M - 512, 0).await);
        write(image, 2 * M, 512 * K, 6).await;
    });
    assert!(std::fs::metadata(&path).unwrap().len() < 3 * M);
}

/// Refcount blocks in the middle of the file stayed, though nothing that they count was in use any more.
#[test]
fn shrinking_drops_refcount_blocks_that_count_nothing() {
    let create = ["cluster_size=512,refcount_bits=64", "image.qcow2", "3M"];
    let (_directory, path) = with_image(&create, async |image| {
        // What stays lies behind what goes.
        for part in (0..12).rev() {
            write(image, part * 256 * K, 256 * K, 5).await;
            image.flush().await.unwrap();
        }
        image.resize(M, SHRINK).await.unwrap();
        assert!(reads(image, 0, M, 5).await);
    });
    let bytes = std::fs::read(&path).unwrap();
    let word = |at: u64| u64::from_be_bytes(bytes[at as usize..at as usize + 8].try_into().unwrap());
    let (table, clusters) = (word(48), word(56) >> 32);
    let blocks: Vec<u64> =
        (0..clusters * 64).map(|index| word(table + index * 8)).filter(|&at| at != 0).collect();
    assert!(blocks.len() > 16, "{blocks:x?}");
    for at in blocks {
        let block = &bytes[at as usize..at as usize + 512];
        assert!(block.iter().any(|&byte| byte != 0), "the block at {at:#x} counts nothing");
    }
}

#[test]
fn a_data_file_has_the_size_of_the_disk_as_far_as_it_can_be_read_on_its_own() {
    let create = ["data_file=data.raw,data_file_raw=on", "image.qcow2", "1M"];
    let (directory, _path) = with_image(&create, async |image| {
        write(image, 0, M, 5).await;
        image.resize(3 * M, ResizeOptions::default()).await.unwrap();
        write(image, 2 * M, 4 * K, 6).await;
    });
    let raw = std::fs::read(directory.path().join("data.raw")).unwrap();
    assert_eq!(raw.len() as u64, 3 * M);
    assert!(raw[..M as usize].iter().all(|&byte| byte == 5));
    assert_eq!((raw[M as usize], raw[2 * M as usize]), (0, 6));
    changed(&directory.path().join("image.qcow2"), async |image| image.resize(M, SHRINK).await.unwrap());
    assert_eq!(std::fs::metadata(directory.path().join("data.raw")).unwrap().len(), M);
}

/// A shorter disk leaves its data file as long as it was. What is mapped there anew are zeroes, not the old bytes.
#[test]
fn a_data_file_that_is_longer_than_the_disk_shows_nothing_of_it_when_the_disk_grows() {
    for preallocation in
        [Preallocation::Off, Preallocation::Metadata, Preallocation::Falloc, Preallocation::Full]
    {
        let create = ["data_file=data.raw", "image.qcow2", "2M"];
        let (directory, path) = with_image(&create, async |image| {
            write(image, M, M, 5).await;
            image.resize(M + 4 * K, SHRINK).await.unwrap();
            let options = ResizeOptions { preallocation, ..ResizeOptions::default() };
            image.resize(2 * M, options).await.unwrap();
        });
        let name = path.to_str().unwrap();
        qemu_io(directory.path(), name, &["read -P 5 1M 4k", "read -P 0 1028k 1020k"]);
    }
}

#[test]
fn an_l1_table_that_has_to_move_is_found_by_qemu_where_it_went() {
    let (directory, path) = with_image(&["cluster_size=512", "image.qcow2", "1M"], async |image| {
        for step in 1..=6 {
            write(image, (step - 1) * M, 4 * K, step as u8).await;
            image.resize((step + 1) * M, ResizeOptions::default()).await.unwrap();
        }
    });
    let name = path.to_str().unwrap();
    qemu_io(
        directory.path(),
        name,
        &["read -P 1 0 4k", "read -P 4 3M 4k", "read -P 6 5M 4k", "read -P 0 6M 1M"],
    );
}

/// A shrink that failed half-way left clusters in use behind the end. Shrinking to the same size did nothing, so only a check
/// gave them back.
#[test]
fn shrinking_again_to_the_same_size_gives_back_what_a_failed_attempt_left() {
    let target = Qcow2Target::new(config("c512_resized_prefetch"));
    let (size, mut failures) = (target.config().size / 2, 0);
    for nth in 1..20 {
        let world = target.world(1);
        let failed = sim::run(&world, 1, |_| async {
            let image = target.open_with(&world, target.config().options(0)).await.unwrap();
            world.set_faults(vec![Fault { kind: Some(IoKind::Read), ..Fault::nth(nth, FaultKind::Io) }]);
            let failed = image.resize(size, SHRINK).await.is_err();
            world.set_faults(Vec::new());
            assert_eq!(image.size(), size, "the size changes first");
            image.resize(size, SHRINK).await.unwrap();
            image.close().await.unwrap();
            failed
        });
        failures += u32::from(failed.unwrap());
        let leaks = sim::run(&world, 1, |_| target.check(&world)).unwrap().unwrap();
        assert_eq!(leaks, 0, "after the {nth}th read failed");
    }
    assert!(failures > 10, "{failures} reads failed");
}

/// A shrink forgot the refcount blocks that counted nothing any more, and then the refcount table could not be written. Their
/// clusters were taken for free and guest data written over them, while the table on disk still led there: after a crash,
/// data was read as refcounts.
#[test]
fn a_shrink_that_fails_gives_no_cluster_away_to_which_the_medium_leads() {
    let write = |at, len| Op::Write { at, len, durability: Durability::AtFlush };
    let shrink = Op::Manage(Management::Resize(512 * K));
    let reopen = Op::Reopen { variant: 0 };
    // Before anybody has looked for free clusters; the write takes those of the dropped blocks too.
    let at_once = [shrink, write(64 * K, 200 * K), Op::Flush];
    let again =
        [reopen, shrink, write(64 * K, 200 * K), shrink, write(300 * K, 100 * K), reopen, write(64 * K, K)];
    let target = Qcow2Target::new(config("c512_resized"));
    for (ops, kind, persistence, order) in [
        (&at_once[..], None, Persistence::Once, Order::Immediate),
        (&at_once, Some(IoKind::Flush), Persistence::Times(2), Order::Shuffled),
        (&at_once, Some(IoKind::Write), Persistence::FromThenOn, Order::Immediate),
        (&again, Some(IoKind::Write), Persistence::Times(2), Order::Shuffled),
    ] {
        let workload = Workload { steps: ops.iter().copied().map(Step::of).collect() };
        let crash = CrashOptions { share: (64, 1), samples: 2, tears: 1, seed: 1, exhaustive_atoms_max: 3 };
        let silent = vec![IoKind::Discard, IoKind::Extent, IoKind::Lengthen];
        let plan = FaultPlan {
            kind,
            persistence,
            order,
            crash: Some(crash),
            silent,
            ..FaultPlan::once(FaultKind::Io)
        };
        let counts = fail_every_io(&target, &workload, 1, &plan);
        let counts = counts.unwrap_or_else(|failure| panic!("{failure}"));
        assert!(counts.errors > 0 && counts.crash_states > 0, "{counts:?}");
    }
}

/// Lets the others run.
async fn turn() {
    let mut passed = false;
    std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut passed, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// A write looked at the size, waited while the end was cut off, and went on beyond it: into a table that was being freed.
#[test]
fn a_write_that_waited_while_the_disk_became_smaller_does_not_reach_beyond_its_end() {
    let target = Qcow2Target::new(config("c512_resized_prefetch"));
    let size = target.config().size;
    let (mut written, mut refused) = (0, 0);
    for turns in 0..60 {
        // Another seed for each: a request that the world keeps back waits until nothing else can go on.
        let world = target.world(turns);
        let found = sim::run(&world, turns, |_| async {
            let image = target.open_with(&world, target.config().options(0)).await.unwrap();
            // The first change waits for a barrier of its own.
            write(&image, 0, K, 1).await;
            world.set_order(Order::Shuffled);
            let late = async {
                for _ in 0..turns {
                    turn().await;
                }
                let data = IoVec::from(IoBytes::copy_from(&[9; 512]));
                let result = image.write(size - 40 * K, data, Hints::NONE).await;
                // Whether it came before is settled by the answer.
                (result, image.size())
            };
            let (cut, late) = futures_util::future::join(image.resize(size / 2, SHRINK), late).await;
            cut.unwrap();
            world.set_order(Order::Immediate);
            image.resize(size, ResizeOptions::default()).await.unwrap();
            assert!(
                reads(&image, size - 64 * K, 64 * K, 0).await,
                "turn {turns}: what was cut off came back"
            );
            image.close().await.unwrap();
            late
        });
        match found.unwrap() {
            (Ok(()), _) => written += 1,
            (Err(error), now) => {
                assert_eq!((error.kind(), now), (ErrorKind::PastEnd, size / 2), "{error}");
                refused += 1;
            }
        }
        let leaks = sim::run(&world, 1, |_| target.check(&world)).unwrap();
        assert_eq!(leaks, Ok(0), "turn {turns}");
    }
    assert!(written > 0 && refused > 0, "{written} writes came before the end was cut off, {refused} after");
}
