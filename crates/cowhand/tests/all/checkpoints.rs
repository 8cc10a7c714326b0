//! Checkpoints without a server: the guest goes on while they are taken, forked, rolled back, compared and merged, and QEMU reads every layer.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cowhand::{
    Backup, Checkpoint, Collect, Commit, Difference, Differences, Disk, ErrorKind, Existing, Forget, Format,
    NewCheckpoint, NewImage, OpenOptions, Removal, Says, Stream, create,
};

use crate::peers::{qemu_img, text};
use crate::scratch::{SIZE_BYTES, Scratch, bytes_at};

#[path = "../../examples/checkpoints.rs"]
#[expect(dead_code, reason = "an example has a main of its own")]
mod example;

/// Bytes of a part of the disk that is written at once.
const PART: u64 = 1 << 16;

fn fill(disk: &Disk, part: u64, byte: u8) {
    disk.write(part * PART, vec![byte; PART as usize]).wait().unwrap();
}

/// The first byte of each of the first three parts.
fn parts(disk: &Disk) -> [u8; 3] {
    [0, 1, 2].map(|part| bytes_at(disk, part * PART, 1)[0])
}

fn take(disk: &Disk, name: &str) -> String {
    disk.checkpoint(NewCheckpoint::named(name)).wait().unwrap()
}

fn list(disk: &Disk) -> Vec<Checkpoint> {
    disk.checkpoints().wait().unwrap()
}

/// Names of checkpoints that are not deleted; the id of one without.
fn names(disk: &Disk) -> Vec<String> {
    let all = list(disk).into_iter().filter(|one| !one.deleted);
    all.map(|one| one.name.unwrap_or(one.id)).collect()
}

fn layer(scratch: &Scratch, id: &str) -> PathBuf {
    scratch.file(&format!("layers/{id}.qcow2"))
}

fn is_whole(path: &Path) {
    assert!(qemu_img(&["check", text(path)]).contains("No errors were found"), "{}", path.display());
}

fn kind<T>(result: Result<T, cowhand::Error>) -> ErrorKind {
    result.map(drop).unwrap_err().kind()
}

#[test]
fn the_example_of_checkpoints_runs() {
    let scratch = Scratch::new();
    let directory = scratch.file("of-the-example");
    std::fs::create_dir(&directory).unwrap();
    example::run(&directory).unwrap();
}

/// As root a commit wrote into a checkpoint, and its forks were lost.
#[test]
fn nothing_is_written_into_a_sealed_layer() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    fill(&disk, 0, 1);
    let layer = layer(&scratch, &take(&disk, "one"));
    let content = std::fs::read(&layer).unwrap();
    fill(&disk, 0, 2);
    let refused = disk.commit(Commit::default()).wait().unwrap_err().to_string();
    assert!(refused.contains("sealed layer"), "{refused}");
    assert_eq!(kind(Disk::open(&layer).wait()), ErrorKind::ReadOnly);
    let replaced = NewImage { existing: Existing::Replace, ..NewImage::qcow2(SIZE_BYTES) };
    assert!(create(&layer, replaced).wait().is_err());
    OpenOptions::new(&layer).read_only(true).open().wait().unwrap().close().wait().unwrap();
    disk.close().wait().unwrap();
    assert!(std::fs::read(&layer).unwrap() == content);
}

/// A writer counts in each part of the disk; a checkpoint may fall between two writes, never lose one that completed before it, nor have one that came after.
#[test]
fn a_checkpoint_has_what_completed_before_it_while_writes_go_on() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    fill(&disk, 0, 1);
    let is_over = AtomicBool::new(false);
    let ids: Vec<String> = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut round = 0u64;
            while !is_over.load(Ordering::Relaxed) {
                round += 1;
                disk.write(PART, round.to_le_bytes().to_vec()).wait().unwrap();
                disk.write(2 * PART, round.to_le_bytes().to_vec()).wait().unwrap();
            }
            round
        });
        let ids = (0..10).map(|number| take(&disk, &format!("c{number}"))).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(writer.join().unwrap() > 0);
        ids
    });
    assert_eq!(disk.info().unwrap().chain.len(), 11);
    disk.close().wait().unwrap();
    let mut last = 0;
    for id in &ids {
        let path = layer(&scratch, id);
        is_whole(&path);
        let sealed = OpenOptions::new(&path).read_only(true).open().wait().unwrap();
        let round = |part: u64| u64::from_le_bytes(bytes_at(&sealed, part * PART, 8).try_into().unwrap());
        let (first, second) = (round(1), round(2));
        assert!(first == second || first == second + 1, "{first} then {second}");
        assert!(first >= last);
        last = first;
        sealed.close().wait().unwrap();
    }
    is_whole(&scratch.path());
    let info = qemu_img(&["info", "--backing-chain", text(&scratch.path())]);
    assert!(ids.iter().all(|id| info.contains(id.as_str())), "{info}");
}

#[test]
fn a_disk_that_is_rolled_back_reads_as_its_checkpoint_and_goes_forward_again() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    fill(&disk, 0, 1);
    take(&disk, "one");
    let clone = disk.clone();
    fill(&disk, 0, 2);
    fill(&disk, 1, 2);
    let left = disk.rollback("one").wait().unwrap();
    assert_eq!((parts(&disk), parts(&clone)), ([1, 0, 0], [1, 0, 0]));
    fill(&clone, 2, 3);
    assert_eq!(parts(&disk), [1, 0, 3]);
    let other = disk.rollback(left.as_str()).wait().unwrap();
    assert_eq!(parts(&disk), [2, 2, 0]);
    assert_eq!(names(&disk), ["one".to_owned(), left, other.clone()]);
    disk.rollback(other).wait().unwrap();
    disk.flush().wait().unwrap();
    disk.close().wait().unwrap();
    let disk = scratch.open();
    assert_eq!(parts(&disk), [1, 0, 3]);
    disk.close().wait().unwrap();
    is_whole(&scratch.path());
}

#[test]
fn forks_share_a_layer_and_nothing_else() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    fill(&disk, 0, 1);
    let id = disk
        .checkpoint(NewCheckpoint { labels: vec!["build=7".to_owned()], ..NewCheckpoint::named("clean") })
        .wait()
        .unwrap();
    fill(&disk, 1, 2);
    let forks = disk.fork("clean", scratch.file("fork.qcow2"), Some(3)).wait().unwrap();
    assert_eq!(forks, [1, 2, 3].map(|number| scratch.file(&format!("fork-{number}.qcow2"))));
    for (number, path) in (10u8..).zip(&forks) {
        let fork = Disk::open(path).wait().unwrap();
        fill(&fork, 2, number);
        assert_eq!(parts(&fork), [1, 0, number]);
        fork.close().wait().unwrap();
        is_whole(path);
    }
    assert_eq!(parts(&disk), [1, 2, 0]);
    let listed = list(&disk);
    let [only] = &listed[..] else { panic!("{listed:?}") };
    let users = ["disk.qcow2", "fork-1.qcow2", "fork-2.qcow2", "fork-3.qcow2"];
    assert_eq!((&only.id, only.name.as_deref(), only.parent.as_deref()), (&id, Some("clean"), None));
    assert_eq!((only.users.as_slice(), only.size_bytes), (&users.map(str::to_owned)[..], SIZE_BYTES));
    assert_eq!(only.labels, [("build".to_owned(), "7".to_owned())]);
    assert!(only.taken.elapsed().unwrap() < Duration::from_secs(3600) && only.changed.is_none());

    let outside = tempfile::tempdir().unwrap();
    assert_eq!(kind(disk.fork("clean", outside.path().join("f.qcow2"), None).wait()), ErrorKind::Invalid);
    assert_eq!(kind(disk.fork("clean", scratch.file("fork-2.qcow2"), None).wait()), ErrorKind::Exists);
    assert_eq!(kind(disk.fork("clean", scratch.file("f.qcow2"), Some(0)).wait()), ErrorKind::Invalid);
    assert_eq!(kind(disk.fork("none", scratch.file("f.qcow2"), None).wait()), ErrorKind::NotFound);
    assert!(!scratch.file("f.qcow2").exists());
    disk.close().wait().unwrap();
}

#[test]
fn what_has_no_checkpoint_is_refused_and_stays_as_it_is() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    assert_eq!(list(&disk), []);
    assert_eq!(kind(disk.rollback("one").wait()), ErrorKind::NotFound);
    assert_eq!(kind(disk.delete_checkpoints(["one"], Removal::Remove).wait()), ErrorKind::NotFound);
    take(&disk, "one");
    assert_eq!(kind(disk.checkpoint(NewCheckpoint::named("one")).wait()), ErrorKind::Exists);
    assert_eq!(kind(disk.checkpoint(NewCheckpoint::named("a/b")).wait()), ErrorKind::Invalid);
    let labels = NewCheckpoint { labels: vec!["none".to_owned()], ..NewCheckpoint::default() };
    assert_eq!(kind(disk.checkpoint(labels).wait()), ErrorKind::Invalid);
    assert_eq!(kind(disk.rollback("../one").wait()), ErrorKind::Invalid);
    assert_eq!(disk.info().unwrap().chain.len(), 2);

    // A job knows the layers of its disk.
    fill(&disk, 0, 1);
    create(scratch.file("copy.qcow2"), NewImage::qcow2(SIZE_BYTES)).wait().unwrap();
    let slow = Backup { speed_bytes: 1, ..Backup::default() };
    let job = disk.backup(OpenOptions::new(scratch.file("copy.qcow2")), slow).wait().unwrap();
    for refused in
        [kind(disk.checkpoint(NewCheckpoint::named("two")).wait()), kind(disk.rollback("one").wait())]
    {
        assert_eq!(refused, ErrorKind::InUse);
    }
    assert_eq!(kind(disk.forget(Forget::default()).wait()), ErrorKind::InUse);
    job.cancel().wait().unwrap();
    assert_eq!(kind(job.ended().wait()), ErrorKind::Cancelled);
    take(&disk, "two");
    disk.close().wait().unwrap();
    assert_eq!(kind(disk.checkpoint(NewCheckpoint::named("three")).wait()), ErrorKind::Closed);

    let read_only = scratch.options().read_only(true).open().wait().unwrap();
    let error = read_only.checkpoint(NewCheckpoint::named("three")).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
    assert!(error.to_string().contains("disk.qcow2 is read-only"), "{error}");
    // What writes no image is done.
    assert_eq!(
        read_only.fork("two", scratch.file("f.qcow2"), None).wait().unwrap(),
        [scratch.file("f.qcow2")]
    );
    read_only.close().wait().unwrap();
    let raw = scratch.file("disk.raw");
    create(&raw, NewImage::raw(SIZE_BYTES)).wait().unwrap();
    let raw = OpenOptions::new(raw).format(Format::Raw).open().wait().unwrap();
    assert_eq!(kind(raw.checkpoint(NewCheckpoint::default()).wait()), ErrorKind::Unsupported);
    raw.close().wait().unwrap();
}

#[test]
fn layers_of_forgotten_checkpoints_are_merged_under_the_disk() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    fill(&disk, 0, 1);
    take(&disk, "kept");
    for number in 2..6 {
        fill(&disk, 1, number);
        disk.checkpoint(NewCheckpoint::default()).wait().unwrap();
    }
    fill(&disk, 2, 9);
    let forget = Forget { keep: Some("last:1".parse().unwrap()), ..Forget::default() };
    let listed = disk.forget(Forget { removal: Removal::List, ..forget.clone() }).wait().unwrap();
    assert!(listed.job.is_none());
    assert_eq!((listed.checkpoints.len(), listed.merges.len(), list(&disk).len()), (3, 1, 5));
    assert_eq!(
        kind(disk.forget(Forget { depth_max: Some(0), ..Forget::default() }).wait()),
        ErrorKind::Invalid
    );

    let forgotten = disk.forget(forget).wait().unwrap();
    assert_eq!(forgotten.checkpoints, listed.checkpoints);
    let job = forgotten.job.unwrap();
    job.ended().wait().unwrap();
    assert_eq!(parts(&disk), [1, 5, 9]);
    assert_eq!((disk.info().unwrap().chain.len(), list(&disk).len()), (3, 2));
    fill(&disk, 0, 7);
    // The disk has jobs and checkpoints as before.
    take(&disk, "after");
    disk.stream(Stream::default()).wait().unwrap().ended().wait().unwrap();
    assert_eq!((parts(&disk), disk.info().unwrap().chain.len()), ([7, 5, 9], 1));
    disk.close().wait().unwrap();
    is_whole(&scratch.path());
}

#[test]
fn a_deleted_checkpoint_goes_with_the_last_that_needs_it() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    fill(&disk, 0, 1);
    let one = take(&disk, "one");
    fill(&disk, 0, 2);
    let left = disk.rollback("one").wait().unwrap();
    let unnamed = Collect { unnamed: true, removal: Removal::List };
    let listed = disk.collect_layers(unnamed).wait().unwrap();
    assert_eq!((listed.layers, layer(&scratch, &left).exists()), (vec![left.clone()], true));
    let removed = disk.collect_layers(Collect { unnamed: true, removal: Removal::Remove }).wait().unwrap();
    assert_eq!((removed.layers, layer(&scratch, &left).exists()), (vec![left], false));
    let removed = disk.delete_checkpoints(["one"], Removal::Remove).wait().unwrap();
    assert_eq!((removed.layers.len(), &removed.needed[0].id), (0, &one));
    assert_eq!(removed.needed[0].users, ["disk.qcow2"]);
    assert!(list(&disk)[0].deleted && names(&disk).is_empty());
    assert_eq!(parts(&disk), [1, 0, 0]);
    disk.close().wait().unwrap();
}

#[test]
fn differences_are_what_was_written_since() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    fill(&disk, 0, 1);
    take(&disk, "one");
    fill(&disk, 1, 2);
    take(&disk, "two");
    disk.write_zeroes(0, PART, cowhand::ZeroOptions::default()).wait().unwrap();
    let part = |part: u64, len: u64, other| Difference {
        offset: part * PART,
        len: len * PART,
        checkpoint: Says::Shared,
        other,
    };
    let of = |other: Option<&str>, offset| {
        disk.differences("one", other.map(str::to_owned), offset).wait().unwrap()
    };
    let all = |ranges: &[Difference]| Differences { ranges: ranges.to_vec(), next: None };
    assert_eq!(of(None, 0), all(&[part(0, 1, Says::Zero), part(1, 1, Says::Data)]));
    assert_eq!(of(Some("two"), 0), all(&[part(1, 1, Says::Data)]));
    assert_eq!(of(None, 2 * PART), all(&[]));
    assert_eq!(kind(disk.differences("one", Some("none".to_owned()), 0).wait()), ErrorKind::NotFound);
    disk.close().wait().unwrap();
}
