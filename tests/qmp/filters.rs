//! Filters are put over disks at work: a disk is read as it was while a client writes on, images keep what was read below them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use black_box::client::Failed;
use black_box::peer::{assert_clean, qemu_img, qemu_io_ok};
use black_box::qmp::Qmp;
use black_box::{Client, Run, cowhand};
use serde_json::{Value, json};

use super::{Steered, create, qcow2};

/// Bytes of a block that a client writes.
const BLOCK: usize = 4096;
/// Bytes from one block to the next: each is a unit of its own.
const STRIDE: u64 = 64 << 10;
/// Blocks that a client writes one after the other, again and again.
const BLOCKS: u64 = 100;

/// A client that writes blocks in their order, again and again, each with the number of its write.
pub(super) struct Counting {
    done: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    thread: JoinHandle<u64>,
}

impl Counting {
    pub(super) fn on(socket: &Path, export: &str) -> Self {
        let mut client = Client::connect(socket, export).expect("it serves");
        let (done, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (end, count) = (Arc::clone(&done), Arc::clone(&written));
        let thread = std::thread::spawn(move || {
            let mut number = 0;
            while !end.load(Ordering::Relaxed) {
                number += 1;
                client.write(number % BLOCKS * STRIDE, &stamp(number)).expect("a write");
                count.store(number, Ordering::Relaxed);
            }
            client.flush().expect("a flush");
            number
        });
        let counting = Self { done, written, thread };
        counting.goes_round();
        counting
    }

    /// Waits until each block was written once more.
    pub(super) fn goes_round(&self) {
        let (before, start) = (self.written.load(Ordering::Relaxed), Instant::now());
        while self.written.load(Ordering::Relaxed) < before + BLOCKS + 1 {
            let waits = start.elapsed() < Duration::from_secs(60) && !self.thread.is_finished();
            assert!(waits, "the client does not get on");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The number of the last write.
    pub(super) fn end(self) -> u64 {
        self.done.store(true, Ordering::Relaxed);
        self.thread.join().expect("the client wrote on")
    }
}

fn stamp(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK / 8)
}

/// The number of the last write that a disk has, which has all writes up to that and none after.
fn moment(socket: &Path, export: &str) -> u64 {
    let mut client = Client::connect(socket, export).expect("it serves");
    let mut read = |block: u64| {
        let bytes = client.read(block * STRIDE, BLOCK as u32).expect("a read");
        let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        assert!(bytes == stamp(number), "block {block} is torn");
        number
    };
    let numbers: Vec<u64> = (0..BLOCKS).map(&mut read).collect();
    let last = *numbers.iter().max().expect("some");
    for (block, number) in (0..).zip(&numbers) {
        let behind = (last % BLOCKS + BLOCKS - block) % BLOCKS;
        assert_eq!(*number, last - behind, "block {block} is of another moment than write {last}");
    }
    last
}

fn export(qmp: &mut Qmp, node: &str, writable: bool) {
    let export = json!({ "type": "nbd", "id": node, "node-name": node, "name": node, "writable": writable });
    qmp.ok("block-export-add", export);
}

fn no_export(qmp: &mut Qmp, node: &str) {
    qmp.ok("block-export-del", json!({ "id": node, "mode": "hard" }));
    qmp.event_of("BLOCK_EXPORT_DELETED", "id", node);
}

fn copy_before_write(name: &str, file: &str, target: Value) -> Value {
    json!({ "driver": "copy-before-write", "node-name": name, "file": file, "target": target })
}

fn raw(name: &str, file: Value) -> Value {
    json!({ "driver": "raw", "node-name": name, "file": file })
}

/// Backup software reads the disk as it was at one moment, while the guest writes on: the filter comes under a running export and goes.
#[test]
fn a_disk_is_read_as_it_was_at_one_moment_while_a_client_writes_on() {
    let steered = Steered::new();
    let (scratch, socket, mut qmp) = (&steered.scratch, steered.server.socket(), steered.talk());
    let (disk, target) = (create(scratch, "d", "64M"), create(scratch, "t", "64M"));
    qmp.ok("blockdev-add", qcow2("d", &disk));
    let mut top = json!({ "driver": "copy-on-read", "node-name": "top", "file": "d" });
    qmp.ok("blockdev-add", top.clone());
    export(&mut qmp, "top", true);
    let load = Counting::on(socket, "top");
    for round in ["first", "second"] {
        qmp.ok("blockdev-add", qcow2("t", &target));
        qmp.ok("blockdev-add", copy_before_write("cbw", "d", json!("t")));
        let early = json!({ "driver": "snapshot-access", "node-name": "snap", "file": "cbw" });
        // What is written beside the filter would be missing in the snapshot.
        let refused = qmp.refused("blockdev-add", early.clone());
        assert!(refused.contains("\"d\" is in use by node \"top\""), "{refused}");
        top["file"] = json!("cbw");
        qmp.ok("blockdev-reopen", json!({ "options": [top] }));
        load.goes_round();
        qmp.ok("blockdev-add", early);
        export(&mut qmp, "snap", false);
        let writable = json!({ "type": "nbd", "id": "x", "node-name": "d", "writable": true });
        let refused = qmp.refused("block-export-add", writable);
        assert!(refused.contains("\"d\" is in use by node \"cbw\""), "{refused}");
        export(&mut qmp, "d", false);
        no_export(&mut qmp, "d");
        let refused = qmp.refused("block_resize", json!({ "node-name": "d", "size": 32 << 20 }));
        assert!(refused.contains("in use by node"), "{refused}");
        assert!(qmp.refused("blockdev-del", json!({ "node-name": "t" })).contains("in use by node \"cbw\""));
        let node = super::node(&mut qmp, "top").expect("it is there");
        assert_eq!(
            (&node["drv"], &node["children"]),
            (&json!("copy-on-read"), &json!([{ "child": "file", "node-name": "cbw" }])),
            "{node}"
        );
        assert_eq!(
            (&node["image"]["format"], &node["backing_file_depth"]),
            (&json!("qcow2"), &json!(0)),
            "{node}"
        );
        let then = moment(socket, "snap");
        load.goes_round();
        assert_eq!(moment(socket, "snap"), then, "{round}: the snapshot moved");
        assert!(then < load.written.load(Ordering::Relaxed), "{round}");
        let copy = scratch.name("copy");
        drop(Run::new("qemu-img").args(["convert", "-O", "raw", &steered.server.uri("snap"), &copy]).ok());
        let bytes = std::fs::read(&copy).expect("a copy");
        let at = (then % BLOCKS * STRIDE) as usize;
        assert!(bytes.len() == 64 << 20 && bytes[at..at + BLOCK] == stamp(then), "{round}: qemu-img's copy");
        no_export(&mut qmp, "snap");
        qmp.ok("blockdev-del", json!({ "node-name": "snap" }));
        top["file"] = json!("d");
        qmp.ok("blockdev-reopen", json!({ "options": [top] }));
        for node in ["cbw", "t"] {
            qmp.ok("blockdev-del", json!({ "node-name": node }));
        }
        load.goes_round();
    }
    let last = load.end();
    assert_eq!(moment(socket, "top"), last);
    no_export(&mut qmp, "top");
    for node in ["top", "d"] {
        qmp.ok("blockdev-del", json!({ "node-name": node }));
    }
    assert_clean(disk.as_ref());
    assert_clean(target.as_ref());
    steered.server.stop();
}

/// A target that fails breaks the guest's write or the snapshot, as the user said, and nothing else.
#[test]
fn a_target_that_fails_breaks_what_the_user_said_and_nothing_else() {
    let steered = Steered::new();
    let (scratch, socket, mut qmp) = (&steered.scratch, steered.server.socket(), steered.talk());
    let disk = create(scratch, "d", "1M");
    drop(qemu_io_ok(&["-f", "qcow2"], &disk, &["write -P 1 0 1M"]));
    let full = scratch.write("full", &vec![0; 1 << 20]);
    let full = json!({ "driver": "file", "filename": full });
    let inject = json!([{ "event": "none", "iotype": "write", "errno": 28 }]);
    let fails = raw("t", json!({ "driver": "blkdebug", "image": full, "inject-error": inject }));
    let slow = raw("t", json!({ "driver": "null-aio", "size": 1 << 20, "latency-ns": 5_000_000_000_u64 }));
    for (target, policy, timeout) in
        [(&fails, "break-guest-write", 0), (&fails, "break-snapshot", 0), (&slow, "break-snapshot", 1)]
    {
        qmp.ok("blockdev-add", qcow2("d", &disk));
        let mut filter = copy_before_write("cbw", "d", target.clone());
        (filter["on-cbw-error"], filter["cbw-timeout"]) = (json!(policy), json!(timeout));
        qmp.ok("blockdev-add", filter);
        qmp.ok("blockdev-add", json!({ "driver": "snapshot-access", "node-name": "snap", "file": "cbw" }));
        export(&mut qmp, "cbw", true);
        export(&mut qmp, "snap", false);
        let mut guest = Client::connect(socket, "cbw").expect("it serves");
        let mut backup = Client::connect(socket, "snap").expect("it serves");
        let written = guest.write(4096, &[2; BLOCK]);
        let (read, old) = (guest.read(4096, BLOCK as u32).expect("a read"), backup.read(4096, BLOCK as u32));
        match policy {
            "break-guest-write" => {
                assert!(matches!(written, Err(Failed::Refused(28))), "{written:?}");
                assert!(read == [1; BLOCK] && old.expect("a read") == [1; BLOCK]);
            }
            _ => {
                written.expect("the guest's write goes on");
                assert!(read == [2; BLOCK]);
                assert!(matches!(old, Err(Failed::Refused(_))), "a broken snapshot was read");
                guest.write(4096, &[1; BLOCK]).expect("a write");
            }
        }
        for node in ["snap", "cbw"] {
            no_export(&mut qmp, node);
            qmp.ok("blockdev-del", json!({ "node-name": node }));
        }
        // The target was made for the filter, and went with it.
        qmp.ok("blockdev-del", json!({ "node-name": "d" }));
        assert_eq!(qmp.ok("query-named-block-nodes", json!({})).as_array().map(Vec::len), Some(1));
    }
    assert_clean(disk.as_ref());
    steered.server.stop();
}

#[test]
fn filters_that_do_not_go_together_with_their_disks_are_refused() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    let (disk, small) = (create(scratch, "d", "2M"), create(scratch, "s", "1M"));
    qmp.ok("blockdev-add", qcow2("d", &disk));
    qmp.ok("blockdev-add", qcow2("s", &small));
    let refused = qmp.refused("blockdev-add", copy_before_write("c", "d", json!("s")));
    assert!(refused.contains("the target has 1048576 bytes and the disk 2097152"), "{refused}");
    let access = json!({ "driver": "snapshot-access", "node-name": "c", "file": "d" });
    let refused = qmp.refused("blockdev-add", access);
    assert!(refused.contains("only a copy-before-write filter has a snapshot"), "{refused}");
    let bottom = json!({ "driver": "copy-on-read", "node-name": "c", "file": "d", "bottom": "s" });
    assert!(qmp.refused("blockdev-add", bottom).contains("bottom is \"s\""));
    let mut top = json!({ "driver": "copy-on-read", "node-name": "c", "file": "d" });
    qmp.ok("blockdev-add", top.clone());
    top["file"] = json!("s");
    let refused = qmp.refused("blockdev-reopen", json!({ "options": [top] }));
    assert!(refused.contains("it has 1048576 bytes; needed: 2097152"), "{refused}");
    top["file"] = json!("c");
    assert!(qmp.refused("blockdev-reopen", json!({ "options": [top] })).contains("it is over that itself"));
    (top["file"], top["bottom"]) = (json!("d"), json!("d"));
    assert!(qmp.refused("blockdev-reopen", json!({ "options": [top] })).contains("option bottom"));
    assert!(qmp.refused("blockdev-del", json!({ "node-name": "d" })).contains("in use by node \"c\""));
    steered.server.stop();
    assert_clean(disk.as_ref());
}

/// What a read brought up is in the image: the layers below are not needed for it any more.
#[test]
fn copy_on_read_leaves_in_the_image_what_qemus_leaves() {
    let steered = Steered::new();
    let scratch = &steered.scratch;
    let (base, middle) = (create(scratch, "base", "4M"), scratch.name("middle"));
    drop(qemu_io_ok(&["-f", "qcow2"], &base, &["write -P 1 0 1M", "write -P 2 2M 64k"]));
    qemu_img(["create", "-q", "-f", "qcow2", "-b", &base, "-F", "qcow2", &middle]).ok();
    drop(qemu_io_ok(&["-f", "qcow2"], &middle, &["write -P 3 512k 64k"]));
    let tool = |name: &str, program: &str, args: &[&str], bottom: &str| {
        let top = scratch.name(name);
        qemu_img(["create", "-q", "-f", "qcow2", "-b", &middle, "-F", "qcow2", &top]).ok();
        let drive = format!(
            "driver=copy-on-read,file.driver=qcow2,file.file.driver=file,file.file.filename={top},\
             file.backing.driver=qcow2,file.backing.file.driver=file,file.backing.file.filename={middle},\
             file.backing.node-name=mid{bottom}"
        );
        let reads = ["-c", "read -P 1 4k 4k", "-c", "read -P 3 520k 8k", "-c", "read -P 0 3M 64k"];
        let reads = if bottom.is_empty() {
            reads
        } else {
            ["-c", "read 4k 4k", "-c", "read 520k 8k", "-c", "read 3M 64k"]
        };
        drop(Run::new(program).args(args).args(reads).arg(&drive).ok());
        assert_clean(top.as_ref());
        let map = qemu_img(["map", "--output=json", &top]).json();
        let own = |part: &&Value| part["depth"] == 0;
        let list: Vec<Value> = map.as_array().expect("a list").iter().filter(own).cloned().collect();
        list.into_iter().map(|part| json!([part["start"], part["length"], part["zero"]])).collect::<Vec<_>>()
    };
    for bottom in ["", ",bottom=mid"] {
        let theirs = tool("theirs", "qemu-io", &["--image-opts"], bottom);
        let ours = black_box::program::path().to_str().expect("a path").to_owned();
        let ours = tool("ours", &ours, &["io", "--image-opts"], bottom);
        assert!(!theirs.is_empty());
        assert_eq!(ours, theirs, "{bottom}");
    }
    steered.server.stop();
}

/// Whole clusters are compressed, parts of them are not, and QEMU reads all of it.
#[test]
fn whole_clusters_that_are_written_through_compress_are_compressed() {
    let steered = Steered::new();
    let disk = create(&steered.scratch, "d", "4M");
    let drive = format!("driver=compress,file.driver=qcow2,file.file.filename={disk}");
    let writes = [
        "-c",
        "write -P 5 32k 1M",
        "-c",
        "write -P 6 64k 64k",
        "-c",
        "write -P 7 2M 4k",
        "-c",
        "write -z 192k 64k",
    ];
    drop(cowhand(["io", "--image-opts"]).args(writes).arg(&drive).ok());
    assert_clean(disk.as_ref());
    let reads = [
        "read -P 5 32k 32k",
        "read -P 6 64k 64k",
        "read -P 5 128k 64k",
        "read -P 0 192k 64k",
        "read -P 5 256k 800k",
        "read -P 7 2M 4k",
    ];
    let read = qemu_io_ok(&["-f", "qcow2"], &disk, &reads);
    assert!(!read.contains("verification failed"), "{read}");
    let checked = qemu_img(["check", "--output=json", &disk]).json();
    // Clusters 1 to 15, but for that of zeroes.
    assert_eq!(checked["compressed-clusters"], 14, "{checked}");
    let raw = steered.scratch.write("raw", &[0; 65536]);
    let refused = cowhand(["io", "--image-opts", "-c", "read 0 1k"])
        .arg(format!("driver=compress,file.driver=raw,file.file.filename={}", raw.display()))
        .fails();
    assert!(refused.contains("raw takes no compressed clusters"), "{refused}");
    steered.server.stop();
}

/// A tool's drive shares the limits of an object, and one that names none that is there is refused.
#[test]
fn a_tool_s_drive_may_be_in_a_throttle_group_of_the_command_line() {
    let steered = Steered::new();
    let disk = create(&steered.scratch, "d", "4M");
    let drive = format!("driver=throttle,throttle-group=g,file.driver=qcow2,file.file.filename={disk}");
    let reads = ["-c", "read 0 1k"].repeat(12);
    let object = "throttle-group,id=g,limits.iops-total=10";
    let begun = Instant::now();
    drop(cowhand(["io", "--image-opts", "--object", object]).args(&reads).arg(&drive).ok());
    assert!(begun.elapsed() > Duration::from_millis(500), "{:?}", begun.elapsed());
    let refused = cowhand(["io", "--image-opts"]).args(reads).arg(&drive).fails();
    assert!(refused.contains("throttle-group is \"g\""), "{refused}");
    let checked = cowhand([
        "check",
        &format!("json:{{\"driver\":\"copy-on-read\",\"file\":{{\"filename\":\"{disk}\"}}}}"),
    ])
    .fails();
    assert!(checked.contains("the drive has filters"), "{checked}");
    steered.server.stop();
}

/// A test rig finds where a disk reads otherwise than the raw disk beside it. QEMU's program ends at once; ours fails the read.
#[test]
fn a_read_fails_where_the_disk_under_test_differs_from_the_raw_one() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    let test = create(scratch, "test", "1M");
    let raw_file = scratch.write("raw", &vec![0; 1 << 20]);
    let small = json!({ "driver": "null-co", "size": 512 << 10 });
    let mut filter =
        json!({ "driver": "blkverify", "node-name": "v", "test": qcow2("test", &test), "raw": small });
    let refused = qmp.refused("blockdev-add", filter.clone());
    assert!(refused.contains("it has 524288 bytes and the disk under test 1048576"), "{refused}");
    filter["raw"] = json!({ "driver": "file", "filename": raw_file });
    qmp.ok("blockdev-add", filter);
    export(&mut qmp, "v", true);
    let mut client = Client::connect(steered.server.socket(), "v").expect("it serves");
    client.write(0, &[1; BLOCK]).expect("a write");
    client.write(64 << 10, &[2; BLOCK]).expect("a write");
    client.write_zeroes(512, 512, 0).expect("zeroes");
    client.flush().expect("a flush");
    let found = client.read(0, 128 << 10).expect("a read");
    assert!(found[..512] == [1; 512] && found[512..1024] == [0; 512]);
    assert!(found[64 << 10..][..BLOCK] == [2; BLOCK]);
    drop(client);
    no_export(&mut qmp, "v");
    qmp.ok("blockdev-del", json!({ "node-name": "v" }));
    drop(qemu_io_ok(&["-f", "qcow2"], &test, &["write -P 7 65536 512"]));
    // QEMU finds the first difference at the same place.
    let theirs = format!(
        "driver=blkverify,test.driver=qcow2,test.file.driver=file,test.file.filename={test},\
         raw.driver=file,raw.filename={}",
        raw_file.display()
    );
    let said = Run::new("qemu-io").args(["--image-opts", "-c", "read 0 128k", &theirs]).fails();
    assert!(said.contains("contents mismatch at offset 65536"), "{said}");
    let ours =
        theirs.replace("raw.filename", "raw.file.filename").replace("raw.driver=file", "raw.driver=raw");
    let said = cowhand(["io", "--image-opts", "-c", "read 0 128k"]).arg(&ours).fails();
    assert!(said.contains("byte 65536 reads otherwise than in"), "{said}");
    drop(cowhand(["io", "--image-opts", "-c", "read 0 64k"]).arg(&ours).ok());
    steered.server.stop();
}
