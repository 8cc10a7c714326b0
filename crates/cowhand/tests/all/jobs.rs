//! Jobs without a server: what a monitor commits, streams, mirrors and backs up, QEMU reads.

use std::path::{Path, PathBuf};

use cowhand::{
    Backup, Commit, Copied, Disk, ErrorKind, Existing, Format, JobStatus, Mirror, NewImage, OpenOptions,
    Stream, create,
};

use crate::peers::{qemu_img, text};
use crate::scratch::{SIZE_BYTES, Scratch, bytes_at};

#[path = "../../examples/jobs.rs"]
#[expect(dead_code, reason = "an example has a main of its own")]
mod example;

/// Bytes of a part of the disk that is written at once.
const PART: usize = 1 << 20;

/// A chain of three images, each with a part of its own and one that hides a lower one's.
struct Chain {
    scratch: Scratch,
    /// The lowest first.
    paths: Vec<PathBuf>,
}

impl Chain {
    fn new() -> Self {
        let scratch = Scratch::new();
        let mut paths = vec![scratch.path()];
        for name in ["middle.qcow2", "top.qcow2"] {
            let below = paths.last().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
            let path = scratch.file(name);
            create(&path, NewImage::overlay(SIZE_BYTES, below, Format::Qcow2)).wait().unwrap();
            paths.push(path);
        }
        for (number, path) in (1u8..).zip(&paths) {
            let disk = Disk::open(path).wait().unwrap();
            for at in [0, u64::from(number)] {
                disk.write(at * PART as u64, vec![number; PART]).wait().unwrap();
            }
            disk.close().wait().unwrap();
        }
        Self { scratch, paths }
    }

    fn open(&self) -> Disk {
        Disk::open(self.paths.last().unwrap()).wait().unwrap()
    }

    /// An empty image for a copy.
    fn target(&self, name: &str, image: NewImage) -> PathBuf {
        let path = self.scratch.file(name);
        create(&path, image).wait().unwrap();
        path
    }
}

/// The first byte of each of the first four parts.
fn parts(disk: &Disk) -> [u8; 4] {
    [0, 1, 2, 3].map(|at| bytes_at(disk, at * PART as u64, 1)[0])
}

/// Names of the files of the disk's chain.
fn chain(disk: &Disk) -> Vec<String> {
    let names = disk.info().unwrap().chain;
    let name = |path: &String| Path::new(path).file_name().unwrap().to_str().unwrap().to_owned();
    names.iter().map(name).collect()
}

fn is_whole(path: &Path) {
    assert!(qemu_img(&["check", text(path)]).contains("No errors were found"));
}

/// The bytes of an image, as QEMU reads them.
fn qemu_reads(scratch: &Scratch, path: &Path) -> Vec<u8> {
    let raw = scratch.file("read.raw");
    qemu_img(&["convert", "-O", "raw", text(path), text(&raw)]);
    std::fs::read(raw).unwrap()
}

#[test]
fn the_example_with_jobs_runs() {
    let directory = tempfile::tempdir().unwrap();
    example::run(directory.path()).unwrap();
    let read = qemu_reads_from(directory.path(), "backup.qcow2");
    assert_eq!(read[..PART], vec![1; PART]);
    let read = qemu_reads_from(directory.path(), "copy.qcow2");
    assert_eq!((read[0], read[PART], read[PART + 4096]), (2, 3, 0));
}

fn qemu_reads_from(directory: &Path, name: &str) -> Vec<u8> {
    let (path, raw) = (directory.join(name), directory.join("read.raw"));
    qemu_img(&["convert", "-O", "raw", text(&path), text(&raw)]);
    std::fs::read(raw).unwrap()
}

#[test]
fn a_commit_of_the_uppermost_image_is_ready_and_switches_when_it_is_completed() {
    let chain_of = Chain::new();
    let disk = chain_of.open();
    let job = disk.commit(Commit::default()).wait().unwrap();
    job.ready().wait().unwrap();
    let info = job.info().wait().unwrap();
    assert_eq!((info.status, info.done_bytes), (JobStatus::Ready, info.total_bytes));
    disk.write(0, vec![9; PART]).wait().unwrap();
    job.complete().wait().unwrap();
    job.ended().wait().unwrap();
    assert_eq!(job.info().wait().unwrap().status, JobStatus::Null);
    assert_eq!((chain(&disk), parts(&disk)), (vec!["disk.qcow2".to_owned()], [9, 1, 2, 3]));
    disk.close().wait().unwrap();
    is_whole(&chain_of.paths[0]);
    let read = qemu_reads(&chain_of.scratch, &chain_of.paths[0]);
    assert_eq!([0, 1, 2, 3].map(|at| read[at * PART]), [9, 1, 2, 3]);
}

#[test]
fn a_commit_below_the_uppermost_image_and_a_stream_end_by_themselves_and_name_what_is_left() {
    let chain_of = Chain::new();
    let disk = chain_of.open();
    disk.commit(Commit { top: 1, ..Commit::default() }).wait().unwrap().ended().wait().unwrap();
    assert_eq!((chain(&disk).len(), parts(&disk)), (2, [3, 1, 2, 3]));
    disk.close().wait().unwrap();
    let shown = qemu_img(&["info", "--backing-chain", text(&chain_of.paths[2])]);
    assert!(shown.contains("disk.qcow2") && !shown.contains("middle.qcow2"), "{shown}");
    let disk = chain_of.open();
    disk.stream(Stream::default()).wait().unwrap().ended().wait().unwrap();
    assert_eq!((chain(&disk), parts(&disk)), (vec!["top.qcow2".to_owned()], [3, 1, 2, 3]));
    disk.close().wait().unwrap();
    chain_of.paths.iter().for_each(|path| is_whole(path));
    let read = qemu_reads(&chain_of.scratch, &chain_of.paths[2]);
    assert_eq!([0, 1, 2, 3].map(|at| read[at * PART]), [3, 1, 2, 3]);
}

#[test]
fn a_mirror_is_completed_or_left_as_a_whole_copy() {
    let chain_of = Chain::new();
    let disk = chain_of.open();
    for (name, image, complete) in [
        ("left.qcow2", NewImage::qcow2(SIZE_BYTES), false),
        ("raw.img", NewImage::raw(SIZE_BYTES), false),
        ("moved.qcow2", NewImage::qcow2(SIZE_BYTES), true),
    ] {
        let path = chain_of.target(name, image);
        let target = || match name {
            "raw.img" => OpenOptions::new(&path).format(Format::Raw),
            _ => OpenOptions::new(&path),
        };
        let job = disk.mirror(target(), Mirror::default()).wait().unwrap();
        job.ready().wait().unwrap();
        disk.write(0, vec![8; PART]).wait().unwrap();
        match complete {
            true => job.complete().wait().unwrap(),
            false => job.cancel().wait().unwrap(),
        }
        job.ended().wait().unwrap();
        disk.write(PART as u64, vec![7; PART]).wait().unwrap();
        assert_eq!(chain(&disk)[0], if complete { name } else { "top.qcow2" });
        if !complete {
            // Another process may use what the job has closed.
            let read = qemu_reads(&chain_of.scratch, &path);
            assert_eq!(read[0], 8, "{name}");
            disk.write(PART as u64, vec![1; PART]).wait().unwrap();
        }
    }
    assert_eq!(parts(&disk), [8, 7, 2, 3]);
    disk.close().wait().unwrap();
    let read = qemu_reads(&chain_of.scratch, &chain_of.scratch.file("moved.qcow2"));
    assert_eq!([0, 1, 2, 3].map(|at| read[at * PART]), [8, 7, 2, 3]);
}

/// What is written after the beginning was in the copy: the copy was of no moment.
#[test]
fn a_backup_has_the_disk_as_it_was_when_it_began() {
    let chain_of = Chain::new();
    let disk = chain_of.open();
    let path = chain_of.target("backup.qcow2", NewImage::qcow2(SIZE_BYTES));
    let slow = Backup { speed_bytes: 1, ..Backup::default() };
    let job = disk.backup(OpenOptions::new(&path), slow).wait().unwrap();
    for at in 0..4 {
        disk.write(at * PART as u64, vec![9; PART]).wait().unwrap();
    }
    job.set_speed(0).wait().unwrap();
    job.ended().wait().unwrap();
    assert_eq!(parts(&disk), [9; 4]);
    let read = qemu_reads(&chain_of.scratch, &path);
    assert_eq!([0, 1, 2, 3].map(|at| read[at * PART]), [3, 1, 2, 3]);
    // The uppermost image alone, for a target over the same backing file.
    let path =
        chain_of.target("top-alone.qcow2", NewImage::overlay(SIZE_BYTES, "middle.qcow2", Format::Qcow2));
    let top = Backup { copied: Copied::Top, ..Backup::default() };
    disk.backup(OpenOptions::new(&path), top).wait().unwrap().ended().wait().unwrap();
    disk.close().wait().unwrap();
    let read = qemu_reads(&chain_of.scratch, &path);
    assert_eq!([0, 1, 2, 3].map(|at| read[at * PART]), [9; 4]);
}

#[test]
fn a_job_that_is_cancelled_leaves_the_disk_as_it_was_and_says_so() {
    let chain_of = Chain::new();
    let disk = chain_of.open();
    let before = chain(&disk);
    for kind in 0..3 {
        let path = chain_of.scratch.file("target.qcow2");
        let image = NewImage { existing: Existing::Replace, ..NewImage::qcow2(SIZE_BYTES) };
        create(&path, image).wait().unwrap();
        let target = OpenOptions::new(&path);
        let begun = match kind {
            0 => disk.commit(Commit { speed_bytes: 1, ..Commit::default() }),
            1 => disk.stream(Stream { speed_bytes: 1, ..Stream::default() }),
            _ => disk.mirror(target, Mirror { speed_bytes: 1, ..Mirror::default() }),
        };
        let job = begun.wait().unwrap();
        let second = disk.stream(Stream::default()).wait().unwrap_err();
        assert_eq!(second.kind(), ErrorKind::InUse, "{second}");
        job.pause().wait().unwrap();
        assert_eq!(job.pause().wait().unwrap_err().kind(), ErrorKind::Invalid);
        job.resume().wait().unwrap();
        assert_eq!(job.complete().wait().unwrap_err().kind(), ErrorKind::Invalid);
        job.cancel().wait().unwrap();
        assert_eq!(job.ended().wait().unwrap_err().kind(), ErrorKind::Cancelled, "{kind}");
        assert_eq!(job.ready().wait().unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(job.cancel().wait().unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!((chain(&disk), parts(&disk)), (before.clone(), [3, 1, 2, 3]), "{kind}");
    }
    disk.close().wait().unwrap();
    chain_of.paths.iter().for_each(|path| is_whole(path));
}

#[test]
fn a_disk_that_closes_ends_its_job_and_gives_every_lock_back() {
    let chain_of = Chain::new();
    let disk = chain_of.open();
    let path = chain_of.target("target.qcow2", NewImage::qcow2(SIZE_BYTES));
    let slow = Mirror { speed_bytes: 1, ..Mirror::default() };
    let job = disk.mirror(OpenOptions::new(&path), slow).wait().unwrap();
    job.pause().wait().unwrap();
    disk.close().wait().unwrap();
    assert_eq!(job.ended().wait().unwrap_err().kind(), ErrorKind::Cancelled);
    for path in chain_of.paths.iter().chain([&path]) {
        is_whole(path);
    }
    assert_eq!(disk.stream(Stream::default()).wait().unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn what_cannot_begin_says_why_and_leaves_nothing_open() {
    let chain_of = Chain::new();
    let disk = chain_of.open();
    let small = chain_of.target("small.qcow2", NewImage::qcow2(1 << 20));
    let missing = chain_of.scratch.file("missing.qcow2");
    let mirror = |path: &Path| disk.mirror(OpenOptions::new(path), Mirror::default()).wait().unwrap_err();
    let commit = |top, base| disk.commit(Commit { top, base, ..Commit::default() }).wait().unwrap_err();
    let stream = |base| disk.stream(Stream { base, ..Stream::default() }).wait().unwrap_err();
    for (error, kind, words) in [
        (mirror(&small), ErrorKind::Invalid, "the target has 1048576 bytes, the disk 67108864"),
        (mirror(&missing), ErrorKind::NotFound, "missing.qcow2"),
        (mirror(&chain_of.paths[2]), ErrorKind::InUse, "top.qcow2"),
        (commit(1, Some(1)), ErrorKind::Invalid, "images 1 to 1 of a chain of 3"),
        (commit(0, Some(3)), ErrorKind::Invalid, "images 0 to 3 of a chain of 3"),
        (stream(Some(0)), ErrorKind::Invalid, "the disk's own image"),
        (stream(Some(7)), ErrorKind::Invalid, "image 7 of a chain of 3"),
    ] {
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    qemu_img(&["check", text(&small)]);
    assert_eq!((chain(&disk).len(), parts(&disk)), (3, [3, 1, 2, 3]));
    disk.close().wait().unwrap();
}
