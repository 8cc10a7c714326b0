//! Checkpoints without a server go to a store while the disk is used, and disks begin as one that is there.
//!
//! What a store is, and its credentials, is said by the environment: each test runs in a process of its own that has it.

use std::process::Command;
use std::time::Duration;

use cowhand::{
    Disk, ErrorKind, Format, Job, NewCheckpoint, OpenOptions, Publish, Push, Restore, Stream, restore,
};

use crate::peers::{qemu_img, text};
use crate::scratch::{SIZE_BYTES, Scratch, bytes_at};
use crate::store::Store;

const NAME: &str = "s3://images/vms/d";

/// Runs a test of this file again, in a process with the store.
fn with_store(test: &str, check: impl FnOnce(&Store)) {
    let store = Store::start();
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", &format!("stores::{test}"), "--ignored", "--nocapture"]);
    let output = store.below(&mut again).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    check(&store);
}

fn take(disk: &Disk, name: &str) -> String {
    disk.checkpoint(NewCheckpoint::named(name)).wait().unwrap()
}

fn to(target: &str) -> Publish {
    Publish { target: target.to_owned(), ..Publish::default() }
}

fn of(source: &str) -> Restore {
    Restore { source: source.to_owned(), ..Restore::default() }
}

fn kind<T>(result: Result<T, cowhand::Error>) -> ErrorKind {
    result.map(drop).unwrap_err().kind()
}

#[test]
fn a_checkpoint_goes_to_a_store_and_a_disk_begins_as_it() {
    with_store("published_and_restored", |store| {
        let keys = store.keys();
        assert!(keys.contains(&"images/vms/d.json".to_owned()), "{keys:?}");
        assert!(!keys.iter().any(|key| key.contains("pushing")), "{keys:?}");
    });
}

#[test]
#[ignore = "needs the store of a test above"]
fn published_and_restored() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    disk.write(0, vec![1; 3 << 20]).wait().unwrap();
    let one = take(&disk, "one");
    disk.write(0, vec![2; 4096]).wait().unwrap();
    let published = disk.publish("one", to(NAME)).wait().unwrap();
    assert_eq!((&published.id, published.image), (&one, format!("{NAME}@{one}")));
    // Its layer is sealed: the disk goes on, and so do its checkpoints.
    disk.write(8 << 20, vec![2; 4096]).wait().unwrap();
    take(&disk, "two");
    published.job.ended().wait().unwrap();
    let info = published.job.info().wait().unwrap();
    assert_eq!((info.done_bytes, info.total_bytes), (SIZE_BYTES, SIZE_BYTES));
    disk.publish("two", to(NAME)).wait().unwrap().job.ended().wait().unwrap();
    assert_eq!(bytes_at(&disk, 0, 1), [2]);
    disk.close().wait().unwrap();

    let (first, last) = (scratch.file("first.qcow2"), scratch.file("last.qcow2"));
    let at = Restore { at: Some("one".to_owned()), ..of(NAME) };
    let restored = restore(&first, at).wait().unwrap();
    assert_eq!((restored.size_bytes, &restored.image), (SIZE_BYTES, &format!("{NAME}@{one}")));
    let newer = restore(&last, of(NAME)).wait().unwrap();
    for (path, backing, bytes) in [(&first, &restored.backing, [1, 1, 0]), (&last, &newer.backing, [2, 1, 2])]
    {
        assert_eq!(kind(Disk::open(path).wait()), ErrorKind::Denied);
        let disk = OpenOptions::new(path).allow_name(backing).open().wait().unwrap();
        assert_eq!([0, 1 << 20, 8 << 20].map(|at| bytes_at(&disk, at, 1)[0]), bytes);
        // The rest comes in the background; then the store is not needed.
        disk.stream(Stream::default()).wait().unwrap().ended().wait().unwrap();
        disk.close().wait().unwrap();
        assert!(!qemu_img(&["info", text(path)]).contains("backing file"));
        let disk = Disk::open(path).wait().unwrap();
        assert_eq!([0, 1 << 20, 8 << 20].map(|at| bytes_at(&disk, at, 1)[0]), bytes);
        disk.close().wait().unwrap();
    }
    assert_eq!(kind(restore(&first, of(NAME)).wait()), ErrorKind::Exists);
}

#[test]
fn what_cannot_be_published_or_restored_is_refused_by_its_kind() {
    with_store("refused", |store| assert_eq!(store.keys(), [""; 0]));
}

#[test]
#[ignore = "needs the store of a test above"]
fn refused() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    take(&disk, "one");
    let publish = |name: &str, publish: Publish| disk.publish(name, publish).wait();
    assert_eq!(kind(publish("none", to(NAME))), ErrorKind::NotFound);
    assert_eq!(kind(publish("one", to("/tmp/here"))), ErrorKind::Invalid);
    assert_eq!(kind(publish("one", Publish { chunk_bytes: Some(5), ..to(NAME) })), ErrorKind::Invalid);
    let no_key = Publish { key_secret: Some("none".to_owned()), ..to(NAME) };
    assert_eq!(kind(publish("one", no_key)), ErrorKind::Invalid);
    let parent = Publish { parent: Some("s3://other/a".to_owned()), ..to(NAME) };
    let job = publish("one", parent).unwrap().job;
    assert_eq!(kind(job.ended().wait()), ErrorKind::Invalid);
    let new = scratch.file("new.qcow2");
    assert_eq!(kind(restore(&new, of(NAME)).wait()), ErrorKind::NotFound);
    assert!(!new.exists());
    disk.close().wait().unwrap();
}

/// The limit is low enough that an upload is at work when it is ended.
#[test]
fn an_upload_rests_and_ends_as_it_is_asked_and_the_next_one_finds_what_was_sent() {
    with_store("ended", |store| assert!(store.keys().contains(&"images/vms/d.json".to_owned())));
}

#[test]
#[ignore = "needs the store of a test above"]
fn ended() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    for chunk in 0..48u64 {
        disk.write(chunk << 20, vec![chunk as u8 + 1; 1 << 20]).wait().unwrap();
    }
    take(&disk, "one");
    let slow = || Publish { speed_bytes: 1 << 20, ..to(NAME) };
    let at_work = |job: &Job| {
        while job.info().wait().unwrap().done_bytes < 17 << 20 {
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let job = disk.publish("one", slow()).wait().unwrap().job;
    at_work(&job);
    job.pause().wait().unwrap();
    job.resume().wait().unwrap();
    job.cancel().wait().unwrap();
    assert_eq!(kind(job.ended().wait()), ErrorKind::Cancelled);
    assert_eq!(kind(restore(scratch.file("n.qcow2"), of(NAME)).wait()), ErrorKind::NotFound);
    // A disk that closes ends its uploads.
    let job = disk.publish("one", slow()).wait().unwrap().job;
    at_work(&job);
    disk.close().wait().unwrap();
    assert_eq!(kind(job.ended().wait()), ErrorKind::Cancelled);
    let disk = scratch.open();
    disk.publish("one", to(NAME)).wait().unwrap().job.ended().wait().unwrap();
    disk.close().wait().unwrap();
}

/// A disk without checkpoints had to be closed to be uploaded.
#[test]
fn a_disk_at_work_is_pushed_as_it_was_when_the_job_began() {
    with_store("pushed", |store| {
        let keys = store.keys();
        assert!(keys.contains(&"images/vms/d.json".to_owned()), "{keys:?}");
        assert!(!keys.iter().any(|key| key.contains("pushing")), "{keys:?}");
    });
}

#[test]
#[ignore = "needs the store of a test above"]
fn pushed() {
    let scratch = Scratch::new();
    let disk = scratch.open();
    let slow = || Push { target: NAME.to_owned(), speed_bytes: 1, ..Push::default() };
    let chunk = |chunk: u64| chunk << 20;
    (0..4).for_each(|at| drop(disk.write(chunk(at), vec![1; 1 << 20]).wait().unwrap()));
    let job = disk.push(slow()).wait().unwrap();
    (0..4).for_each(|at| drop(disk.write(chunk(at) + 4096, vec![2; 4096]).wait().unwrap()));
    disk.write(chunk(9), vec![2; 4096]).wait().unwrap();
    assert_eq!(kind(disk.push(slow()).wait()), ErrorKind::InUse);
    job.set_speed(0).wait().unwrap();
    job.ended().wait().unwrap();
    assert_eq!(bytes_at(&disk, 4096, 1), [2]);
    let drive = format!("chunked:{NAME}");
    let image = OpenOptions::drive(&drive).format(Format::Raw).read_only(true).open().wait().unwrap();
    for at in 0..4 {
        assert!(bytes_at(&image, chunk(at), 1 << 20).iter().all(|byte| *byte == 1));
    }
    assert_eq!(bytes_at(&image, chunk(9), 1), [0]);
    image.close().wait().unwrap();
    // A cancelled one leaves the image, and a disk that closes ends its own.
    for closes in [false, true] {
        let job = disk.push(slow()).wait().unwrap();
        disk.write(0, vec![3; 4096]).wait().unwrap();
        match closes {
            true => disk.close().wait().unwrap(),
            false => job.cancel().wait().unwrap(),
        }
        assert_eq!(kind(job.ended().wait()), ErrorKind::Cancelled);
    }
    let disk = scratch.open();
    assert_eq!(bytes_at(&disk, 0, 1), [3]);
    for (push, expected) in [
        (Push { target: "/tmp/here".to_owned(), ..Push::default() }, ErrorKind::Invalid),
        (Push { bitmap: Some("none".to_owned()), ..slow() }, ErrorKind::NotFound),
        (Push { chunk_bytes: Some(5), ..slow() }, ErrorKind::Invalid),
    ] {
        assert_eq!(kind(disk.push(push).wait()), expected);
    }
    disk.close().wait().unwrap();
}
