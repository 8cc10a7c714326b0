//! Backups that follow bitmaps: full, then what changed since; each chain is read by QEMU's tools.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use black_box::Scratch;
use black_box::bytes::are_all;
use black_box::peer::{assert_clean, converted, dirty_by_qemu, qemu_img, qemu_io_ok};
use black_box::qmp::Qmp;
use serde_json::{Value, json};

use super::jobs::{Load, completed, holds, reported, status};
use super::{Steered, create, qcow2};

/// The arguments of a job, with more of them.
fn with(mut arguments: Value, more: Value) -> Value {
    arguments.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
    arguments
}

/// A bitmap of the node "a".
fn bitmap(qmp: &mut Qmp, name: &str) -> Value {
    let node = super::node(qmp, "a");
    let bitmaps = node.expect("it is there")["dirty-bitmaps"].as_array().cloned().unwrap_or_default();
    bitmaps.into_iter().find(|bitmap| bitmap["name"] == name).expect("a bitmap")
}

/// An overlay over a point of a backup, as a node without what lies below it.
fn increment(qmp: &mut Qmp, scratch: &Scratch, name: &str, below: &str) -> String {
    let path = scratch.name(name);
    qemu_img(["create", "-q", "-f", "qcow2", "-b", below, "-F", "qcow2", &path, "64M"]).ok();
    qmp.ok("blockdev-add", with(qcow2(name, &path), json!({ "backing": null })));
    path
}

#[test]
fn a_full_backup_and_increments_are_read_by_qemu_while_a_client_writes() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    qmp.ok("block-dirty-bitmap-add", json!({ "node": "a", "name": "b", "persistent": true }));
    let load = Load::on(steered.server.socket(), "a", 2048);
    let full = create(scratch, "full", "64M");
    qmp.ok("blockdev-add", qcow2("full", &full));
    let arguments = json!({ "job-id": "j", "device": "a", "target": "full", "sync": "full", "bitmap": "b", "bitmap-mode": "on-success" });
    qmp.ok("blockdev-backup", arguments);
    completed(&mut qmp, "j");
    qmp.ok("blockdev-del", json!({ "node-name": "full" }));
    load.goes_on();
    let one = increment(&mut qmp, scratch, "one", &full);
    let arguments =
        json!({ "job-id": "j", "device": "a", "target": "one", "sync": "incremental", "bitmap": "b" });
    qmp.ok("blockdev-backup", arguments);
    completed(&mut qmp, "j");
    qmp.ok("blockdev-del", json!({ "node-name": "one" }));
    load.goes_on();
    let held = load.end();
    let two = increment(&mut qmp, scratch, "two", &one);
    let arguments = json!({ "job-id": "j", "device": "a", "target": "two", "sync": "bitmap", "bitmap": "b", "bitmap-mode": "on-success" });
    qmp.ok("blockdev-backup", arguments);
    completed(&mut qmp, "j");
    assert_eq!(bitmap(&mut qmp, "b")["count"], 0);
    qmp.ok("blockdev-del", json!({ "node-name": "two" }));
    let source = scratch.name("a.qcow2");
    steered.server.stop();
    holds(&two, &held, scratch);
    assert_eq!(dirty_by_qemu(&source, "b"), []);
    qemu_img(["compare", "-q", &two, &source]).ok();
    for path in [&full, &one, &two] {
        assert_clean(path.as_ref());
    }
}

/// 8 MiB of 1, then a bitmap that records, then 2 MiB of 2.
fn changed(steered: &Steered, qmp: &mut Qmp) {
    let mut client = steered.server.client("a");
    client.write(0, &[1; 8 << 20]).expect("a write");
    qmp.ok("block-dirty-bitmap-add", json!({ "node": "a", "name": "b" }));
    client.write(2 << 20, &[2; 2 << 20]).expect("a write");
}

const CHANGED: u64 = 2 << 20;

#[test]
fn a_bitmap_forgets_what_was_copied_as_its_mode_says() {
    // Mode; whether the job succeeds; bits afterwards, with 64 KiB that are written meanwhile.
    let table = [
        ("on-success", true, 64 << 10),
        ("on-success", false, CHANGED + (64 << 10)),
        ("never", true, CHANGED + (64 << 10)),
        ("never", false, CHANGED + (64 << 10)),
        ("always", true, 64 << 10),
        // One megabyte and a half was copied, or a little more.
        ("always", false, 0),
    ];
    for (mode, succeeds, expected) in table {
        let steered = Steered::new();
        let mut qmp = steered.talk();
        changed(&steered, &mut qmp);
        let target = create(&steered.scratch, "t", "64M");
        qmp.ok("blockdev-add", qcow2("t", &target));
        let arguments = json!({ "job-id": "j", "device": "a", "target": "t", "sync": "bitmap", "bitmap": "b",
            "bitmap-mode": mode, "speed": 1 << 20, "x-perf": { "max-workers": 1, "max-chunk": 1 << 19 } });
        qmp.ok("blockdev-backup", arguments);
        assert_eq!(bitmap(&mut qmp, "b")["busy"], true);
        let refused = qmp.refused("block-dirty-bitmap-clear", json!({ "node": "a", "name": "b" }));
        assert!(refused.contains("job \"j\""), "{refused}");
        steered.server.client("a").write(32 << 20, &[3; 512]).expect("a write");
        let start = Instant::now();
        while qmp.ok("query-block-jobs", json!({}))[0]["offset"].as_u64() < Some(512 << 10) {
            assert!(start.elapsed() < Duration::from_secs(30), "the job does not get on");
        }
        if succeeds {
            qmp.ok("block-job-set-speed", json!({ "device": "j", "speed": 0 }));
            completed(&mut qmp, "j");
        } else {
            qmp.ok("job-cancel", json!({ "id": "j" }));
            reported(&mut qmp, "BLOCK_JOB_CANCELLED", "j");
        }
        let found = bitmap(&mut qmp, "b");
        let count = found["count"].as_u64().expect("a number");
        if (mode, succeeds) == ("always", false) {
            assert!((64 << 10) < count && count <= (3 << 19) + (64 << 10), "{mode} {succeeds}: {count}");
        } else {
            assert_eq!(count, expected, "{mode} {succeeds}");
        }
        assert_eq!((&found["busy"], &found["recording"]), (&json!(false), &json!(true)));
        if succeeds {
            qmp.ok("blockdev-del", json!({ "node-name": "t" }));
            // What the bitmap did not have was not copied.
            qemu_io_ok(&["-f", "qcow2"], &target, &["read -P 0 0 2M", "read -P 2 2M 2M", "read -P 0 4M 60M"]);
        }
        steered.server.stop();
    }
}

#[test]
fn a_mirror_copies_what_a_bitmap_has_and_clears_it() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    changed(&steered, &mut qmp);
    let target = create(&steered.scratch, "t", "64M");
    qmp.ok("blockdev-add", qcow2("t", &target));
    let arguments =
        json!({ "job-id": "m", "device": "a", "target": "t", "sync": "incremental", "bitmap": "b" });
    qmp.ok("blockdev-mirror", arguments);
    reported(&mut qmp, "BLOCK_JOB_READY", "m");
    steered.server.client("a").write(32 << 20, &[3; 512]).expect("a write");
    qmp.ok("block-job-cancel", json!({ "device": "m" }));
    completed(&mut qmp, "m");
    assert_eq!(bitmap(&mut qmp, "b")["count"], 0);
    qmp.ok("blockdev-del", json!({ "node-name": "t" }));
    qemu_io_ok(&["-f", "qcow2"], &target, &["read -P 0 0 2M", "read -P 2 2M 2M", "read -P 3 32M 512"]);
    steered.server.stop();
}

/// A target that is opened without what lies below it reads as zeroes where it has nothing. Zeroes that were left out for that brought the
/// old data back when the chain was read.
#[test]
fn zeroes_of_an_increment_and_of_a_mirrored_overlay_hide_what_is_below() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    let mut client = steered.server.client("a");
    client.write(0, &[1; 8 << 20]).expect("a write");
    let full = create(scratch, "full", "64M");
    qmp.ok("blockdev-add", qcow2("full", &full));
    qmp.ok("block-dirty-bitmap-add", json!({ "node": "a", "name": "b" }));
    qmp.ok("blockdev-backup", json!({ "job-id": "j", "device": "a", "target": "full", "sync": "full" }));
    completed(&mut qmp, "j");
    qmp.ok("blockdev-del", json!({ "node-name": "full" }));
    let change = |client: &mut black_box::Client| {
        client.write_zeroes(1 << 20, 1 << 20, 0).expect("zeroes");
        client.write_zeroes(3 << 20, 1 << 20, 2).expect("zeroes without a hole");
        client.write(5 << 20, &[0; 1 << 20]).expect("a write");
    };
    let reads =
        ["read -P 1 0 1M", "read -P 0 1M 1M", "read -P 1 2M 1M", "read -P 0 3M 1M", "read -P 0 5M 1M"];
    change(&mut client);
    let one = increment(&mut qmp, scratch, "one", &full);
    let arguments =
        json!({ "job-id": "j", "device": "a", "target": "one", "sync": "incremental", "bitmap": "b" });
    qmp.ok("blockdev-backup", arguments);
    completed(&mut qmp, "j");
    qmp.ok("blockdev-del", json!({ "node-name": "one" }));
    qemu_io_ok(&["-f", "qcow2"], &one, &reads);
    assert_clean(one.as_ref());
    // The disk has data again, and an overlay over it that zeroes it.
    client.write(0, &[1; 8 << 20]).expect("a write");
    let over = scratch.name("over");
    qmp.ok(
        "blockdev-snapshot-sync",
        json!({ "device": "a", "snapshot-file": over, "snapshot-node-name": "over" }),
    );
    change(&mut client);
    let target = create(scratch, "t", "64M");
    qmp.ok("blockdev-add", qcow2("t", &target));
    qmp.ok("blockdev-mirror", json!({ "job-id": "m", "device": "over", "target": "t", "sync": "top" }));
    reported(&mut qmp, "BLOCK_JOB_READY", "m");
    qmp.ok("job-complete", json!({ "id": "m" }));
    completed(&mut qmp, "m");
    for (at, value) in [(0, 1), (1, 0), (2, 1), (3, 0), (4, 1), (5, 0)] {
        let read = client.read(at << 20, 1 << 20).expect("a read");
        assert!(are_all(&read, value), "MiB {at}");
    }
    drop(client);
    steered.server.stop();
    assert_clean(target.as_ref());
}

#[test]
fn a_compressed_backup_is_smaller_and_the_same() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let mut client = steered.server.client("a");
    client.write(0, &[7; 16 << 20]).expect("a write");
    let arguments = json!({ "job-id": "j", "device": "a", "target": steered.scratch.name("t"), "sync": "full",
        "compress": true, "x-perf": { "max-workers": 4, "max-chunk": 1 << 20, "use-copy-range": false } });
    qmp.ok("drive-backup", arguments);
    completed(&mut qmp, "j");
    assert!(super::node(&mut qmp, "target-a").is_none(), "it was the job's");
    drop(client);
    let (target, source) = (steered.scratch.name("t"), steered.scratch.name("a.qcow2"));
    steered.server.stop();
    assert_clean(target.as_ref());
    assert!(std::fs::metadata(&target).expect("a file").len() < 2 << 20);
    qemu_img(["compare", "-q", &target, &source]).ok();
}

/// The node of a target stayed when its job had ended: the next one of the same disk was refused, and the file was locked.
#[test]
fn a_target_that_a_command_opened_goes_with_its_job_and_is_free_when_that_is_reported() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let mut client = steered.server.client("a");
    client.write(0, &[7; 1 << 20]).expect("a write");
    // The file is looked at behind the server.
    client.flush().expect("a flush");
    let backup = |name: &str| json!({ "job-id": "j", "device": "a", "target": steered.scratch.name(name), "sync": "full" });
    for name in ["one", "two"] {
        qmp.ok("drive-backup", backup(name));
        completed(&mut qmp, "j");
        assert_clean(steered.scratch.file(name).as_ref());
        qemu_img(["compare", "-q", "-U", &steered.scratch.name(name), &steered.scratch.name("a.qcow2")]).ok();
    }
    // Of a transaction that fails neither node nor file stays.
    let abort = json!({ "type": "abort", "data": {} });
    let actions = json!([{ "type": "drive-backup", "data": backup("three") }, abort]);
    qmp.refused("transaction", json!({ "actions": actions }));
    assert!(!steered.scratch.file("three").exists(), "nothing was done");
    // A mirror that is given up, and one that is completed: its target is the disk then.
    let mirror = |name: &str| json!({ "job-id": "j", "device": "a", "target": steered.scratch.name(name), "sync": "full" });
    for name in ["left", "taken"] {
        qmp.ok("drive-mirror", mirror(name));
        reported(&mut qmp, "BLOCK_JOB_READY", "j");
        qmp.ok(if name == "left" { "job-cancel" } else { "job-complete" }, json!({ "id": "j" }));
        completed(&mut qmp, "j");
        assert!(super::node(&mut qmp, "target-a").is_some() == (name == "taken"));
    }
    steered.server.stop();
    for name in ["left", "taken"] {
        qemu_img(["compare", "-q", &steered.scratch.name(name), &steered.scratch.name("a.qcow2")]).ok();
    }
}

/// A target that is there has the format of its first bytes. A raw one for which a guess was needed takes no header of another format.
#[test]
fn the_format_of_a_target_that_is_there_is_found_out() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let header = std::fs::read(create(&steered.scratch, "small.qcow2", "1M")).expect("an image");
    let mut client = steered.server.client("a");
    client.write(1 << 20, &[7; 1 << 20]).expect("a write");
    client.flush().expect("a flush");
    create(&steered.scratch, "there.qcow2", "64M");
    qemu_img(["create", "-q", "-f", "raw", &steered.scratch.name("there.raw"), "64M"]).ok();
    let copy = |name: &str| json!({ "job-id": "j", "device": "a", "target": steered.scratch.name(name), "sync": "full", "mode": "existing" });
    for (name, format) in [("there.qcow2", "qcow2"), ("there.raw", "raw")] {
        qmp.ok("drive-backup", copy(name));
        completed(&mut qmp, "j");
        let (copy, disk) = (steered.scratch.name(name), steered.scratch.name("a.qcow2"));
        qemu_img(["compare", "-q", "-U", "-f", format, "-F", "qcow2", &copy, &disk]).ok();
    }
    // The disk holds an image: copied to where its format is a guess it would be opened as that image.
    client.write(0, &header[..512]).expect("a write");
    qmp.ok("drive-backup", copy("there.raw"));
    let reported = qmp.event_where("BLOCK_JOB_COMPLETED", |data| data["device"] == "j");
    assert!(reported["data"]["error"].is_string(), "{reported}");
    let raw = std::fs::read(steered.scratch.file("there.raw")).expect("a file");
    assert!(raw[..512].iter().all(|byte| *byte == 0) && raw[1 << 20] == 7);
    qmp.ok("drive-backup", with(copy("there.raw"), json!({ "format": "raw" })));
    completed(&mut qmp, "j");
    assert_eq!(std::fs::read(steered.scratch.file("there.raw")).expect("a file")[..512], header[..512]);
    assert!(qmp.refused("drive-backup", copy("none")).contains("argument 'format' is not given"));
}

/// What is undone is as it was, bit for bit.
#[test]
fn a_transaction_changes_bitmaps_at_one_moment_or_not_at_all() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    changed(&steered, &mut qmp);
    qmp.ok("block-dirty-bitmap-add", json!({ "node": "a", "name": "p", "persistent": true }));
    let sum = |qmp: &mut Qmp, name: &str| {
        qmp.ok("x-debug-block-dirty-bitmap-sha256", json!({ "node": "a", "name": name }))
    };
    let before = (sum(&mut qmp, "b"), bitmap(&mut qmp, "b"), sum(&mut qmp, "p"), bitmap(&mut qmp, "p"));
    let action = |kind: &str, data: Value| json!({ "type": format!("block-dirty-bitmap-{kind}"), "data": with(json!({ "node": "a" }), data) });
    let actions = vec![
        action("add", json!({ "name": "new" })),
        action("merge", json!({ "target": "p", "bitmaps": ["b"] })),
        action("disable", json!({ "name": "p" })),
        action("clear", json!({ "name": "b" })),
        action("remove", json!({ "name": "b" })),
        json!({ "type": "blockdev-snapshot-internal-sync", "data": { "device": "a", "name": "s" } }),
    ];
    let mut failing = actions.clone();
    failing.push(json!({ "type": "abort", "data": {} }));
    qmp.refused("transaction", json!({ "actions": failing }));
    let after = (sum(&mut qmp, "b"), bitmap(&mut qmp, "b"), sum(&mut qmp, "p"), bitmap(&mut qmp, "p"));
    assert_eq!(before, after);
    assert!(
        qmp.refused("block-dirty-bitmap-clear", json!({ "node": "a", "name": "new" })).contains("no bitmap")
    );
    qmp.ok("transaction", json!({ "actions": actions }));
    assert_eq!(bitmap(&mut qmp, "p")["count"], CHANGED);
    assert_eq!(bitmap(&mut qmp, "new")["count"], 0);
    // What managers do for an increment: the next bitmap begins where the copy ends.
    let target = create(&steered.scratch, "t", "64M");
    qmp.ok("blockdev-add", qcow2("t", &target));
    let backup = json!({ "type": "blockdev-backup", "data": { "job-id": "j", "device": "a", "target": "t",
        "sync": "bitmap", "bitmap": "p", "bitmap-mode": "never" } });
    qmp.ok("transaction", json!({ "actions": [action("clear", json!({ "name": "new" })), backup] }));
    completed(&mut qmp, "j");
    qmp.ok("blockdev-del", json!({ "node-name": "t" }));
    qemu_io_ok(&["-f", "qcow2"], &target, &["read -P 0 0 2M", "read -P 2 2M 2M"]);
    steered.server.stop();
    assert_eq!(dirty_by_qemu(&steered.scratch.name("a.qcow2"), "p"), [(2 << 20, CHANGED)]);
}

/// A backup in a transaction began while later actions were done. When one of them failed, the client was informed that nothing was done, and the backup
/// completed all the same and cleared its bitmap: the next increment missed what was in it.
#[test]
fn a_transaction_that_fails_has_no_job_begun_and_leaves_none() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    changed(&steered, &mut qmp);
    for name in ["t", "o", "p"] {
        qmp.ok("blockdev-add", qcow2(name, &create(scratch, name, "64M")));
    }
    let before = bitmap(&mut qmp, "b");
    let backup = |dismiss: bool| {
        json!({ "type": "blockdev-backup", "data": { "job-id": "j", "device": "a", "target": "t",
        "sync": "incremental", "bitmap": "b", "auto-dismiss": dismiss } })
    };
    // These take their time: files are made.
    let snapshot = |name: &str| {
        json!({ "type": "blockdev-snapshot-sync", "data": { "node-name": name,
        "snapshot-file": scratch.name(&format!("over-{name}")), "snapshot-node-name": format!("over-{name}") } })
    };
    for dismiss in [true, false] {
        let actions = [backup(dismiss), snapshot("o"), snapshot("p"), json!({ "type": "abort", "data": {} })];
        qmp.refused("transaction", json!({ "actions": actions }));
        assert_eq!(qmp.ok("query-jobs", json!({})), json!([]));
        assert_eq!(bitmap(&mut qmp, "b"), before);
        for status in ["created", "aborting", "concluded", "null"] {
            assert_eq!(reported(&mut qmp, "JOB_STATUS_CHANGE", "j")["status"], status);
        }
    }
    qmp.ok("transaction", json!({ "actions": [backup(true), snapshot("o")] }));
    completed(&mut qmp, "j");
    assert_eq!(bitmap(&mut qmp, "b")["count"], 0);
    steered.server.stop();
    qemu_io_ok(&["-f", "qcow2"], &scratch.name("t"), &["read -P 0 0 2M", "read -P 2 2M 2M"]);
}

/// The storage daemon of QEMU with the same disk, under the same name; ended with the test.
pub(super) struct Daemon(std::process::Child);

impl Daemon {
    pub(super) fn with(socket: &Path, disk: &str) -> (Self, Qmp) {
        let chardev = format!("socket,id=c,path={},server=on,wait=off", socket.display());
        let blockdev = qcow2("a", disk).to_string();
        let args = ["--chardev", &chardev, "--monitor", "chardev=c", "--blockdev", &blockdev];
        let child =
            Command::new("qemu-storage-daemon").args(args).stdin(Stdio::null()).spawn().expect("it runs");
        let daemon = Self(child);
        let start = Instant::now();
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            assert!(start.elapsed() < Duration::from_secs(30), "it does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        // The look was its first client, and it takes one at a time.
        std::thread::sleep(Duration::from_millis(50));
        let qmp = Qmp::connect(socket);
        (daemon, qmp)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What QEMU refuses is refused, what it takes is taken.
#[test]
fn arguments_of_backups_are_refused_where_qemu_refuses_them() {
    let steered = Steered::new();
    let scratch = &steered.scratch;
    let other = create(scratch, "other.qcow2", "64M");
    let (_daemon, mut theirs) = Daemon::with(&scratch.file("daemon"), &other);
    let mut ours = steered.talk();
    for (qmp, name) in [(&mut ours, "ours"), (&mut theirs, "theirs")] {
        let target = create(scratch, name, "64M");
        qmp.ok("blockdev-add", qcow2("t", &target));
        qmp.ok("block-dirty-bitmap-add", json!({ "node": "a", "name": "b" }));
    }
    let refused = [
        json!({ "sync": "incremental" }),
        json!({ "sync": "bitmap" }),
        json!({ "sync": "bitmap", "bitmap": "b" }),
        json!({ "sync": "incremental", "bitmap": "b", "bitmap-mode": "never" }),
        json!({ "sync": "incremental", "bitmap": "b", "bitmap-mode": "always" }),
        json!({ "sync": "none", "bitmap": "b", "bitmap-mode": "on-success" }),
        json!({ "sync": "full", "bitmap": "b", "bitmap-mode": "never" }),
        json!({ "sync": "top", "bitmap": "b", "bitmap-mode": "never" }),
        json!({ "sync": "full", "bitmap-mode": "always" }),
        json!({ "sync": "bitmap", "bitmap": "none", "bitmap-mode": "never" }),
        json!({ "sync": "full", "x-perf": { "max-workers": 0 } }),
        json!({ "sync": "full", "x-perf": { "max-chunk": 512 } }),
        json!({ "sync": "most" }),
    ];
    let taken = [
        json!({ "sync": "incremental", "bitmap": "b" }),
        json!({ "sync": "incremental", "bitmap": "b", "bitmap-mode": "on-success" }),
        json!({ "sync": "bitmap", "bitmap": "b", "bitmap-mode": "never" }),
        json!({ "sync": "full", "bitmap": "b", "bitmap-mode": "always" }),
        json!({ "sync": "top", "bitmap": "b", "bitmap-mode": "on-success" }),
        json!({ "sync": "full", "x-perf": { "max-workers": 2, "max-chunk": 0, "use-copy-range": true } }),
        json!({ "sync": "full", "compress": true }),
    ];
    let arguments = |more: &Value| with(json!({ "job-id": "j", "device": "a", "target": "t" }), more.clone());
    for qmp in [&mut ours, &mut theirs] {
        for more in &refused {
            let error = qmp.ask("blockdev-backup", arguments(more)).expect_err("it should be refused");
            assert_eq!(error.0, "GenericError", "{more}: {}", error.1);
        }
        for more in &taken {
            qmp.ok("blockdev-backup", arguments(more));
            status(qmp, "j", "concluded");
            completed(qmp, "j");
            status(qmp, "j", "null");
        }
        qmp.ok("blockdev-del", json!({ "node-name": "t" }));
    }
    drop(theirs);
    steered.server.stop();
    assert_eq!(converted(&scratch.name("ours"), "qcow2", &[], &scratch.file("c")).len(), 64 << 20);
}

/// The older commands for exports do what the newer ones do, for us and for QEMU.
#[test]
fn exports_come_and_go_by_the_older_commands() {
    let steered = Steered::new();
    let scratch = &steered.scratch;
    let other = create(scratch, "other.qcow2", "64M");
    let (_daemon, mut theirs) = Daemon::with(&scratch.file("daemon"), &other);
    let listen = json!({ "addr": { "type": "unix", "data": { "path": scratch.name("nbd") } } });
    theirs.ok("nbd-server-start", listen);
    let mut ours = steered.talk();
    ours.ok("block-export-del", json!({ "id": "a", "mode": "hard" }));
    ours.event("BLOCK_EXPORT_DELETED");
    for qmp in [&mut ours, &mut theirs] {
        qmp.ok("block-dirty-bitmap-add", json!({ "node": "a", "name": "b" }));
        qmp.refused("nbd-server-add", json!({ "device": "none" }));
        qmp.refused("nbd-server-add", json!({ "device": "a", "bitmap": "none" }));
        let add = json!({ "device": "a", "name": "x", "description": "words", "writable": true });
        qmp.ok("nbd-server-add", add.clone());
        qmp.refused("nbd-server-add", add);
        let exports = qmp.ok("query-block-exports", json!({}));
        assert_eq!((&exports[0]["id"], &exports[0]["node-name"]), (&json!("x"), &json!("a")));
        qmp.refused("nbd-server-remove", json!({ "name": "y" }));
        qmp.ok("nbd-server-remove", json!({ "name": "x" }));
        qmp.event("BLOCK_EXPORT_DELETED");
        qmp.ok("nbd-server-add", json!({ "device": "a" }));
        qmp.ok("nbd-server-remove", json!({ "name": "a", "mode": "hard" }));
        qmp.event("BLOCK_EXPORT_DELETED");
    }
    steered.server.stop();
}

/// What libvirt documents for `virsh backup-begin` with a checkpoint: a bitmap for each checkpoint, of which the last one records; a pull
/// backup is a fleecing image under an export that shows the merged bitmaps of the checkpoints since. A client of the export copies what they have.
#[test]
fn the_order_of_libvirt_for_checkpoints_and_an_incremental_pull_backup_works() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    let mut client = steered.server.client("a");
    client.write(0, &[1; 4 << 20]).expect("a write");
    let checkpoint = |name: &str| {
        let data = json!({ "node": "a", "name": name, "persistent": true, "granularity": 65536 });
        json!({ "type": "block-dirty-bitmap-add", "data": data })
    };
    let disable =
        |name: &str| json!({ "type": "block-dirty-bitmap-disable", "data": { "node": "a", "name": name } });
    qmp.ok("transaction", json!({ "actions": [checkpoint("one")] }));
    client.write(1 << 20, &[2; 64 << 10]).expect("a write");
    qmp.ok("transaction", json!({ "actions": [checkpoint("two"), disable("one")] }));
    client.write(2 << 20, &[3; 64 << 10]).expect("a write");
    // backup-begin with <incremental>one</incremental> and a new checkpoint.
    let path = scratch.name("scratch.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", &path, "64M"]).ok();
    qmp.ok("blockdev-add", json!({ "driver": "file", "node-name": "libvirt-3-storage", "filename": path }));
    let format = json!({ "driver": "qcow2", "node-name": "libvirt-3-format", "file": "libvirt-3-storage", "backing": "a" });
    qmp.ok("blockdev-add", format);
    let mirror = json!({ "job-id": "m", "device": "a", "target": "libvirt-3-format", "sync": "full" });
    let itself = qmp.refused("blockdev-mirror", mirror);
    assert!(itself.contains("is backed by a disk that is written"), "{itself}");
    let overlay = json!({ "node": "a", "overlay": "libvirt-3-format" });
    let itself = qmp.refused("blockdev-snapshot", overlay);
    assert!(itself.contains("below itself"), "{itself}");
    qmp.ok("nbd-server-stop", json!({}));
    let pull = scratch.name("pull.sock");
    let address = json!({ "type": "unix", "data": { "path": pull } });
    qmp.ok("nbd-server-start", json!({ "addr": address, "max-connections": 0 }));
    qmp.ok(
        "block-export-add",
        json!({ "type": "nbd", "id": "a", "node-name": "a", "name": "a", "writable": true }),
    );
    let merged = json!({ "node": "a", "name": "backup-vda", "disabled": true, "granularity": 65536 });
    let merge = json!({ "node": "a", "target": "backup-vda", "bitmaps": [
        { "node": "a", "name": "one" }, { "node": "a", "name": "two" }] });
    let backup = json!({ "job-id": "backup-vda", "device": "a", "target": "libvirt-3-format", "sync": "none",
        "auto-finalize": true, "auto-dismiss": false });
    qmp.ok(
        "transaction",
        json!({ "actions": [
        { "type": "block-dirty-bitmap-add", "data": merged },
        { "type": "block-dirty-bitmap-merge", "data": merge },
        checkpoint("three"), disable("two"),
        { "type": "blockdev-backup", "data": backup },
    ] }),
    );
    let export = json!({ "type": "nbd", "id": "libvirt-3-format", "node-name": "libvirt-3-format", "name": "vda",
        "writable": false, "bitmaps": [{ "node": "a", "name": "backup-vda" }] });
    qmp.ok("block-export-add", export);
    // A guest overwrites what is backed up, while a vendor's program reads.
    drop(client);
    let mut client = black_box::Client::connect(pull.as_ref(), "a").expect("it serves");
    client.write(0, &[9; 8 << 20]).expect("a write");
    let uri = format!("nbd+unix:///vda?socket={pull}");
    let map =
        black_box::Run::new("nbdinfo").args(["--json", "--map=qemu:dirty-bitmap:backup-vda", &uri]).json();
    assert_eq!(black_box::peer::dirty(&map), [(1 << 20, 64 << 10), (2 << 20, 64 << 10)]);
    let mut vendor = black_box::Client::connect(pull.as_ref(), "vda").expect("it serves");
    for (offset, value) in [(0, 1), (1 << 20, 2), (2 << 20, 3), (3 << 20, 1), (6 << 20, 0)] {
        let found = vendor.read(offset, 64 << 10).expect("a read");
        assert!(are_all(&found, value), "the backup has other bytes at {offset}");
    }
    drop(vendor);
    // virsh domjobabort, as it is done when the vendor is ready.
    qmp.ok("block-export-del", json!({ "id": "libvirt-3-format", "mode": "hard" }));
    qmp.event("BLOCK_EXPORT_DELETED");
    qmp.ok("job-cancel", json!({ "id": "backup-vda" }));
    status(&mut qmp, "backup-vda", "concluded");
    qmp.ok("job-dismiss", json!({ "id": "backup-vda" }));
    qmp.ok("block-dirty-bitmap-remove", json!({ "node": "a", "name": "backup-vda" }));
    drop(client);
    qmp.ok("block-export-del", json!({ "id": "a", "mode": "hard" }));
    qmp.event("BLOCK_EXPORT_DELETED");
    let used = qmp.refused("blockdev-del", json!({ "node-name": "a" }));
    assert!(used.contains("\"libvirt-3-format\""), "{used}");
    for node in ["libvirt-3-format", "libvirt-3-storage"] {
        qmp.ok("blockdev-del", json!({ "node-name": node }));
    }
    let image = scratch.name("a.qcow2");
    steered.server.stop();
    assert_clean(image.as_ref());
    for (name, expected) in [
        ("one", vec![(1 << 20, 64 << 10)]),
        ("two", vec![(2 << 20, 64 << 10)]),
        ("three", vec![(0, 8 << 20)]),
    ] {
        assert_eq!(dirty_by_qemu(&image, name), expected, "{name}");
    }
}
