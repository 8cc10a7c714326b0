//! Disks change under their clients: snapshots, streams, commits, mirrors, backups. A client writes all the time, and finds what it wrote.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use black_box::bytes::are_all;
use black_box::peer::{assert_clean, assert_leaks_at_most, converted, qemu_img, qemu_io_ok};
use black_box::qmp::Qmp;
use black_box::random::Random;
use black_box::server::Start;
use black_box::{Client, Scratch};
use serde_json::{Value, json};

use super::{Steered, create, qcow2};

/// Bytes that a client writes at a time.
pub(super) const BLOCK: u64 = 4096;
/// How long a job may take: loading a machine fully must not fail a test.
const PATIENCE: Duration = Duration::from_secs(120);

/// A client that writes and reads all the time.
pub(super) struct Load {
    done: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    thread: JoinHandle<BTreeMap<u64, u8>>,
}

impl Load {
    /// On `blocks` blocks of the export, from the first on.
    pub(super) fn on(socket: &Path, export: &str, blocks: u64) -> Self {
        let mut client = Client::connect(socket, export).expect("it serves");
        let (done, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (end, count) = (Arc::clone(&done), Arc::clone(&written));
        let thread = std::thread::spawn(move || {
            let (mut held, mut random) = (BTreeMap::new(), Random::new(7));
            while !end.load(Ordering::Relaxed) {
                let (block, value) = (random.below(blocks), random.below(250) as u8 + 1);
                client.write(block * BLOCK, &[value; BLOCK as usize]).expect("a write");
                held.insert(block, value);
                let (block, value) = held.iter().nth(random.below(held.len() as u64) as usize).expect("some");
                let found = client.read(block * BLOCK, BLOCK as u32).expect("a read");
                assert!(are_all(&found, *value), "block {block} is not what was written");
                count.fetch_add(1, Ordering::Relaxed);
            }
            client.flush().expect("a flush");
            for (block, value) in &held {
                let found = client.read(block * BLOCK, BLOCK as u32).expect("a read");
                assert!(are_all(&found, *value), "block {block} is not what was written");
            }
            held
        });
        let load = Self { done, written, thread };
        load.goes_on();
        load
    }

    /// Waits until something more was written.
    pub(super) fn goes_on(&self) {
        let (before, start) = (self.written.load(Ordering::Relaxed), Instant::now());
        while self.written.load(Ordering::Relaxed) < before + 10 {
            assert!(start.elapsed() < PATIENCE && !self.thread.is_finished(), "the client does not get on");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What each block holds.
    pub(super) fn end(self) -> BTreeMap<u64, u8> {
        self.done.store(true, Ordering::Relaxed);
        self.thread.join().expect("the client found what it wrote")
    }
}

/// Waits for the event of `job` that has this name; those of other jobs stay for who waits for them.
pub(super) fn reported(qmp: &mut Qmp, name: &str, job: &str) -> Value {
    qmp.event_where(name, |data| data["device"] == job || data["id"] == job)["data"].take()
}

/// Waits until `job` has this status.
pub(super) fn status(qmp: &mut Qmp, job: &str, status: &str) {
    while reported(qmp, "JOB_STATUS_CHANGE", job)["status"] != status {}
}

pub(super) fn completed(qmp: &mut Qmp, job: &str) {
    let data = reported(qmp, "BLOCK_JOB_COMPLETED", job);
    assert_eq!(data["error"], Value::Null, "{data}");
}

/// An image is clean, and holds what a client wrote over a disk of this value.
pub(super) fn holds(image: &str, held: &BTreeMap<u64, u8>, scratch: &Scratch) {
    let info = qemu_img(["info", "--output=json", image]).json();
    let format = info["format"].as_str().expect("a format");
    if format == "qcow2" {
        assert_clean(image.as_ref());
    }
    let bytes = converted(image, format, &[], &scratch.file("converted"));
    for (block, value) in held {
        let at = (block * BLOCK) as usize;
        assert!(are_all(&bytes[at..at + BLOCK as usize], *value), "{image}: block {block}");
    }
}

pub(super) fn snapshot(qmp: &mut Qmp, device: &str, scratch: &Scratch, name: &str) -> String {
    let path = scratch.name(name);
    qmp.ok(
        "blockdev-snapshot-sync",
        json!({ "device": device, "snapshot-file": path, "snapshot-node-name": name }),
    );
    path
}

pub(super) fn exported(qmp: &mut Qmp) -> Value {
    qmp.ok("query-block-exports", json!({}))[0]["node-name"].clone()
}

pub(super) fn backing_of(image: &str) -> Option<String> {
    let info = qemu_img(["info", "-U", "--output=json", image]).json();
    info["backing-filename"].as_str().map(str::to_owned)
}

#[test]
fn a_chain_is_made_streamed_and_committed_under_a_client_that_writes() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    let base = scratch.name("a.qcow2");
    let load = Load::on(steered.server.socket(), "a", 2048);
    let mut paths = Vec::new();
    for name in ["s1", "s2", "s3", "s4"] {
        paths.push(snapshot(&mut qmp, "a", scratch, name));
        load.goes_on();
    }
    assert_eq!(exported(&mut qmp), "s4");
    // An intermediate image: s2 goes into s1, and s3 is backed by s1.
    qmp.ok("block-commit", json!({ "job-id": "j", "device": "s4", "top-node": "s2", "base-node": "s1" }));
    completed(&mut qmp, "j");
    assert_eq!(backing_of(&paths[2]), Some(paths[0].clone()));
    load.goes_on();
    // The uppermost takes over what is above the lowest.
    qmp.ok("block-stream", json!({ "job-id": "j", "device": "s4", "base-node": "a" }));
    completed(&mut qmp, "j");
    assert_eq!(backing_of(&paths[3]), Some(base.clone()));
    load.goes_on();
    // And goes into it.
    qmp.ok("block-commit", json!({ "job-id": "j", "device": "s4" }));
    reported(&mut qmp, "BLOCK_JOB_READY", "j");
    load.goes_on();
    qmp.ok("job-complete", json!({ "id": "j" }));
    completed(&mut qmp, "j");
    assert_eq!(exported(&mut qmp), "a");
    load.goes_on();
    let held = load.end();
    assert_eq!(qmp.ok("query-jobs", json!({})), json!([]));
    steered.server.stop();
    assert_eq!(backing_of(&base), None);
    holds(&base, &held, &steered.scratch);
    paths.iter().for_each(|path| assert_clean(path.as_ref()));
}

#[test]
fn a_stream_of_everything_leaves_no_backing_file() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let load = Load::on(steered.server.socket(), "a", 2048);
    let top = snapshot(&mut qmp, "a", &steered.scratch, "top");
    load.goes_on();
    qmp.ok("block-stream", json!({ "device": "top" }));
    completed(&mut qmp, "top");
    load.goes_on();
    let held = load.end();
    // What was taken out is a name that managers remove, and its file is free.
    qemu_io_ok(&["-f", "qcow2"], &steered.scratch.name("a.qcow2"), &["write 0 512"]);
    qmp.ok("blockdev-del", json!({ "node-name": "a" }));
    steered.server.stop();
    assert_eq!(backing_of(&top), None);
    holds(&top, &held, &steered.scratch);
}

/// Stale data in the target, writes while the mirror starts, and a switch-over.
#[test]
fn a_mirror_is_what_the_disk_is_and_takes_its_place() {
    for (mode, format) in [("background", "qcow2"), ("write-blocking", "raw")] {
        let steered = Steered::new();
        let mut qmp = steered.talk();
        let target = steered.scratch.name("t");
        qemu_img(["create", "-q", "-f", format, &target, "64M"]).ok();
        qemu_io_ok(&["-f", format], &target, &["write -P 99 0 64M"]);
        let load = Load::on(steered.server.socket(), "a", 2048);
        let mut options = qcow2("t", &target);
        options["driver"] = json!(format);
        qmp.ok("blockdev-add", options);
        let mirror =
            json!({ "job-id": "m", "device": "a", "target": "t", "sync": "full", "copy-mode": mode });
        qmp.ok("blockdev-mirror", mirror);
        reported(&mut qmp, "BLOCK_JOB_READY", "m");
        load.goes_on();
        // Zeroes smaller than the unit in which changes are tracked.
        let mut other = steered.server.client("a");
        other.write_zeroes(60 << 20, 1024, 0).expect("zeroes");
        other.write((60 << 20) + 2048, &[5; 512]).expect("a write");
        qmp.ok("block-job-complete", json!({ "device": "m" }));
        completed(&mut qmp, "m");
        assert_eq!(exported(&mut qmp), "t");
        load.goes_on();
        let held = load.end();
        drop(other);
        qmp.ok("blockdev-del", json!({ "node-name": "a" }));
        steered.server.stop();
        holds(&target, &held, &steered.scratch);
        let bytes = std::fs::read(steered.scratch.file("converted")).expect("a copy");
        assert!(are_all(&bytes[32 << 20..60 << 20], 0), "stale data in a hole of the target");
        assert!(are_all(&bytes[(60 << 20) + 2048..(60 << 20) + 2560], 5));
    }
}

#[test]
fn a_mirror_that_is_ready_and_cancelled_leaves_a_whole_copy() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let target = create(&steered.scratch, "t", "64M");
    let load = Load::on(steered.server.socket(), "a", 512);
    qmp.ok("blockdev-add", qcow2("t", &target));
    qmp.ok("blockdev-mirror", json!({ "job-id": "m", "device": "a", "target": "t", "sync": "full" }));
    reported(&mut qmp, "BLOCK_JOB_READY", "m");
    let held = load.end();
    let jobs = qmp.ok("query-block-jobs", json!({}));
    assert_eq!(
        (&jobs[0]["ready"], &jobs[0]["type"], &jobs[0]["io-status"]),
        (&json!(true), &json!("mirror"), &json!("ok"))
    );
    // What guests wrote meanwhile is copied, then it waits.
    let rests = (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        qmp.ok("query-block-jobs", json!({}))[0]["busy"] == false
    });
    assert!(rests, "{jobs}");
    qmp.ok("job-pause", json!({ "id": "m" }));
    status(&mut qmp, "m", "standby");
    qmp.ok("job-resume", json!({ "id": "m" }));
    status(&mut qmp, "m", "ready");
    qmp.ok("block-job-cancel", json!({ "device": "m" }));
    completed(&mut qmp, "m");
    assert_eq!(qmp.events_left("BLOCK_JOB_READY"), 0, "it became ready once");
    assert_eq!(exported(&mut qmp), "a");
    qmp.ok("blockdev-del", json!({ "node-name": "t" }));
    holds(&target, &held, &steered.scratch);
    steered.server.stop();
}

#[test]
fn a_backup_is_of_one_moment_whatever_is_written_later() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let target = create(&steered.scratch, "t", "64M");
    let held = Load::on(steered.server.socket(), "a", 512).end();
    qmp.ok("blockdev-add", qcow2("t", &target));
    let backup = json!({ "job-id": "b", "device": "a", "target": "t", "sync": "full", "speed": 2 << 20,
        "auto-dismiss": false });
    qmp.ok("blockdev-backup", backup);
    let load = Load::on(steered.server.socket(), "a", 512);
    load.goes_on();
    qmp.ok("block-job-set-speed", json!({ "device": "b", "speed": 0 }));
    completed(&mut qmp, "b");
    status(&mut qmp, "b", "concluded");
    assert_eq!(qmp.ok("query-jobs", json!({}))[0]["status"], "concluded");
    qmp.ok("job-dismiss", json!({ "id": "b" }));
    load.end();
    qmp.ok("blockdev-del", json!({ "node-name": "t" }));
    holds(&target, &held, &steered.scratch);
    steered.server.stop();
}

#[test]
fn verbs_are_refused_where_the_state_does_not_take_them() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    steered.server.client("a").write(0, &[1; 1 << 20]).expect("a write");
    let target = create(&steered.scratch, "t", "64M");
    qmp.ok("blockdev-add", qcow2("t", &target));
    let absent = qmp.ask("block-job-pause", json!({ "device": "x" })).expect_err("there is none");
    assert_eq!(absent.0, "DeviceNotActive");
    assert_eq!(qmp.ask("job-pause", json!({ "id": "x" })).expect_err("there is none").0, "GenericError");
    let backup = json!({ "job-id": "b", "device": "a", "target": "t", "sync": "full", "speed": 65536,
        "auto-finalize": false });
    qmp.ok("blockdev-backup", backup);
    assert!(qmp.refused("job-complete", json!({ "id": "b" })).contains("completes by itself"));
    assert!(qmp.refused("job-dismiss", json!({ "id": "b" })).contains("cannot dismiss now"));
    assert!(
        qmp.refused("block_resize", json!({ "node-name": "a", "size": 128 << 20 })).contains("in use by job")
    );
    assert!(qmp.refused("blockdev-del", json!({ "node-name": "t" })).contains("in use by job"));
    qmp.ok("job-pause", json!({ "id": "b" }));
    assert!(qmp.refused("job-pause", json!({ "id": "b" })).contains("paused already"));
    status(&mut qmp, "b", "paused");
    assert!(qmp.refused("block-job-cancel", json!({ "device": "b" })).contains("force"));
    qmp.ok("job-resume", json!({ "id": "b" }));
    qmp.ok("block-job-set-speed", json!({ "device": "b", "speed": 0 }));
    status(&mut qmp, "b", "pending");
    qmp.ok("job-finalize", json!({ "id": "b" }));
    completed(&mut qmp, "b");
    // And one that is cancelled before its end.
    let mirror = json!({ "job-id": "m", "device": "a", "target": "t", "sync": "full", "speed": 65536 });
    qmp.ok("blockdev-mirror", mirror);
    qmp.ok("job-cancel", json!({ "id": "m" }));
    reported(&mut qmp, "BLOCK_JOB_CANCELLED", "m");
    assert_eq!(exported(&mut qmp), "a");
    qmp.ok("blockdev-del", json!({ "node-name": "t" }));
    steered.server.stop();
}

#[test]
fn a_transaction_does_all_or_nothing() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    let other = create(scratch, "b.qcow2", "64M");
    qmp.ok("blockdev-add", qcow2("b", &other));
    let (one, two) = (scratch.name("one"), scratch.name("two"));
    let action = |device: &str, file: &str, node: &str| json!({ "type": "blockdev-snapshot-sync", "data": { "device": device, "snapshot-file": file, "snapshot-node-name": node } });
    let load = Load::on(steered.server.socket(), "a", 512);
    let abort = json!({ "type": "abort", "data": {} });
    qmp.refused(
        "transaction",
        json!({ "actions": [action("a", &one, "one"), action("b", &two, "two"), abort] }),
    );
    assert_eq!(exported(&mut qmp), "a");
    assert!(!Path::new(&one).exists() && !Path::new(&two).exists());
    load.goes_on();
    qmp.ok("transaction", json!({ "actions": [action("a", &one, "one"), action("b", &two, "two")] }));
    assert_eq!(exported(&mut qmp), "one");
    load.goes_on();
    let held = load.end();
    steered.server.stop();
    assert_clean(scratch.name("a.qcow2").as_ref());
    holds(&one, &held, scratch);
}

#[test]
fn the_order_of_libvirt_for_a_snapshot_and_a_blockcommit_works() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    let (base, top) = (create(scratch, "base.qcow2", "64M"), scratch.name("top.qcow2"));
    qmp.ok("blockdev-add", json!({ "driver": "file", "node-name": "libvirt-1-storage", "filename": base }));
    qmp.ok(
        "blockdev-add",
        json!({ "driver": "qcow2", "node-name": "libvirt-1-format", "file": "libvirt-1-storage" }),
    );
    let export =
        json!({ "type": "nbd", "id": "e", "node-name": "libvirt-1-format", "name": "e", "writable": true });
    qmp.ok("block-export-add", export);
    let load = Load::on(steered.server.socket(), "e", 512);
    qemu_img(["create", "-q", "-f", "qcow2", &top, "64M"]).ok();
    qmp.ok("blockdev-add", json!({ "driver": "file", "node-name": "libvirt-2-storage", "filename": top }));
    qmp.ok("blockdev-add", json!({ "driver": "qcow2", "node-name": "libvirt-2-format", "file": "libvirt-2-storage", "backing": null }));
    let snapshot = json!({ "type": "blockdev-snapshot", "data": { "node": "libvirt-1-format", "overlay": "libvirt-2-format" } });
    qmp.ok("transaction", json!({ "actions": [snapshot] }));
    load.goes_on();
    let commit = json!({ "job-id": "commit-vda", "device": "libvirt-2-format", "top-node": "libvirt-2-format",
        "base-node": "libvirt-1-format", "auto-finalize": true, "auto-dismiss": false });
    qmp.ok("block-commit", commit);
    status(&mut qmp, "commit-vda", "ready");
    qmp.ok("job-complete", json!({ "id": "commit-vda" }));
    status(&mut qmp, "commit-vda", "concluded");
    qmp.ok("job-dismiss", json!({ "id": "commit-vda" }));
    for node in ["libvirt-2-format", "libvirt-2-storage"] {
        qmp.ok("blockdev-del", json!({ "node-name": node }));
    }
    load.goes_on();
    let held = load.end();
    qmp.ok("block-export-del", json!({ "id": "e", "mode": "hard" }));
    qmp.event("BLOCK_EXPORT_DELETED");
    for node in ["libvirt-1-format", "libvirt-1-storage"] {
        qmp.ok("blockdev-del", json!({ "node-name": node }));
    }
    holds(&base, &held, scratch);
    steered.server.stop();
}

/// Layers that were opened for reading are written: their locks are raised, and given back.
#[test]
fn a_base_that_was_open_for_reading_is_committed_to_and_grown() {
    let scratch = Scratch::new();
    let base = create(&scratch, "base.qcow2", "32M");
    qemu_io_ok(&["-f", "qcow2"], &base, &["write -P 3 31M 1M"]);
    let top = scratch.name("top.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", "-b", &base, "-F", "qcow2", &top, "64M"]).ok();
    let (server, mut qmp) = super::begin_with_nothing(&scratch);
    let mut lower = qcow2("base", &base);
    lower["read-only"] = json!(true);
    qmp.ok("blockdev-add", lower);
    let mut upper = qcow2("top", &top);
    upper["backing"] = json!("base");
    qmp.ok("blockdev-add", upper);
    let nbd = scratch.name("n");
    qmp.ok("nbd-server-start", json!({ "addr": { "type": "unix", "data": { "path": nbd } } }));
    qmp.ok(
        "block-export-add",
        json!({ "type": "nbd", "id": "e", "node-name": "top", "name": "e", "writable": true }),
    );
    let load = Load::on(nbd.as_ref(), "e", 512);
    qmp.ok("block-commit", json!({ "job-id": "j", "device": "top" }));
    reported(&mut qmp, "BLOCK_JOB_READY", "j");
    qmp.ok("job-complete", json!({ "id": "j" }));
    completed(&mut qmp, "j");
    assert_eq!(exported(&mut qmp), "base");
    load.goes_on();
    let held = load.end();
    qmp.ok("blockdev-del", json!({ "node-name": "top" }));
    // Another client is refused while it is written, and nothing was between the two.
    let refused = black_box::peer::qemu_io(&["-f", "qcow2"], &base, &["write 0 512"]).outcome();
    assert!(refused.stderr.contains("lock"), "{refused}");
    server.stop();
    holds(&base, &held, &scratch);
    qemu_io_ok(&["-f", "qcow2"], &base, &["read -P 3 31M 1M"]);
}

/// A disk of 16 MiB over another one: the lower has 3 in its first half, the upper 4 in its third quarter.
fn two_layers(scratch: &Scratch) -> (String, String) {
    let (base, top) = (create(scratch, "base.qcow2", "16M"), scratch.name("top.qcow2"));
    qemu_io_ok(&["-f", "qcow2"], &base, &["write -P 3 0 8M"]);
    qemu_img(["create", "-q", "-f", "qcow2", "-b", &base, "-F", "qcow2", &top]).ok();
    qemu_io_ok(&["-f", "qcow2"], &top, &["write -P 4 6M 6M"]);
    (base, top)
}

/// What is read of the disk of [`two_layers`] by an image that has it all.
fn has_both_layers(image: &str) {
    qemu_io_ok(&["-f", "qcow2"], image, &["read -P 3 0 6M", "read -P 4 6M 6M", "read -P 0 12M 4M"]);
}

/// The server is killed at any moment of a job: the old chain is there, or the new one, and both hold the disk.
#[test]
fn killed_at_any_moment_of_a_job_a_chain_is_the_old_one_or_the_new_one() {
    let jobs = [("block-stream", 0), ("block-commit", 1), ("block-commit", 2)];
    let mut ended = 0;
    for round in 0..9 {
        let scratch = Scratch::new();
        let (_, top) = two_layers(&scratch);
        let qmp = scratch.file("qmp");
        let start = Start::new(["--qmp"]).arg(&qmp).arg("--allow-path").arg(scratch.path()).arg(&top);
        let mut server = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
        server.wait_until(|server| server.stdout().contains("control:").then_some(())).expect("it serves");
        let mut client = Qmp::connect(&qmp);
        let (job, kind) = jobs[round % 3];
        let uppermost = match kind {
            // An image over both, so that the commit is of an intermediate one.
            1 => snapshot(&mut client, "top", &scratch, "over"),
            _ => top.clone(),
        };
        let device = if kind == 1 { "over" } else { "top" };
        let mut arguments = json!({ "job-id": "j", "device": device });
        if kind == 1 {
            arguments["top-node"] = json!("top");
        }
        client.ok(job, arguments);
        if kind == 2 && round > 3 {
            reported(&mut client, "BLOCK_JOB_READY", "j");
            client.ok("job-complete", json!({ "id": "j" }));
        }
        std::thread::sleep(Duration::from_micros(2_000 * round as u64));
        let jobs = client.ok("query-jobs", json!({}));
        ended += usize::from(jobs == json!([]));
        server.kill();
        assert_leaks_at_most(uppermost.as_ref());
        assert_leaks_at_most(scratch.file("base.qcow2").as_ref());
        has_both_layers(&uppermost);
    }
    assert!(ended < 9, "no job was killed");
}

/// A guest that writes faster than the target takes it: at some time its writes go to both sides, and the mirror becomes ready.
#[test]
fn a_mirror_becomes_ready_however_fast_the_disk_is_written() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let target = create(&steered.scratch, "t", "64M");
    // A second's work for the target: on the busiest machine the guest writes more than this again meanwhile.
    steered.server.client("a").write(0, &[1; 4 << 20]).expect("a write");
    let load = Load::on(steered.server.socket(), "a", 1024);
    qmp.ok("blockdev-add", qcow2("t", &target));
    qmp.ok(
        "object-add",
        json!({ "qom-type": "throttle-group", "id": "slow", "limits": { "bps-total": 4 << 20 } }),
    );
    let filter = json!({ "driver": "throttle", "node-name": "f", "throttle-group": "slow", "file": "t" });
    qmp.ok("blockdev-add", filter);
    let mirror = json!({ "job-id": "m", "device": "a", "target": "t", "sync": "top" });
    qmp.ok("blockdev-mirror", mirror);
    reported(&mut qmp, "BLOCK_JOB_READY", "m");
    load.goes_on();
    let job = qmp.ok("query-block-jobs", json!({}))[0].clone();
    assert!(job["x-written-through"].as_u64().expect("a number") > 0, "{job}");
    let held = load.end();
    qmp.ok("job-cancel", json!({ "id": "m" }));
    completed(&mut qmp, "m");
    qmp.ok("blockdev-del", json!({ "node-name": "f" }));
    qmp.ok("blockdev-del", json!({ "node-name": "t" }));
    holds(&target, &held, &steered.scratch);
    steered.server.stop();
}

/// The server of the target goes away: the job rests, as it was asked to, and can be cancelled; the disk works on.
#[test]
fn a_mirror_whose_target_dies_rests_and_can_be_cancelled() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let target = create(&steered.scratch, "t", "64M");
    let start = Start::new([&target]).socket(steered.scratch.file("far.sock"));
    let far = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
    let address = json!({ "type": "unix", "path": far.socket() });
    let nbd = json!({ "driver": "nbd", "server": address, "export": "t" });
    qmp.ok("blockdev-add", json!({ "driver": "raw", "node-name": "t", "file": nbd }));
    let load = Load::on(steered.server.socket(), "a", 1024);
    let mirror =
        json!({ "job-id": "m", "device": "a", "target": "t", "sync": "full", "on-target-error": "stop" });
    qmp.ok("blockdev-mirror", mirror);
    reported(&mut qmp, "BLOCK_JOB_READY", "m");
    far.kill();
    let error = reported(&mut qmp, "BLOCK_JOB_ERROR", "m");
    assert_eq!(error, json!({ "device": "m", "operation": "write", "action": "stop" }));
    status(&mut qmp, "m", "standby");
    let job = qmp.ok("query-block-jobs", json!({}))[0].clone();
    assert_eq!((&job["paused"], &job["io-status"]), (&json!(true), &json!("failed")), "{job}");
    load.goes_on();
    qmp.ok("block-job-cancel", json!({ "device": "m", "force": true }));
    reported(&mut qmp, "BLOCK_JOB_CANCELLED", "m");
    assert_eq!(exported(&mut qmp), "a");
    load.goes_on();
    let held = load.end();
    // What it holds cannot be made durable any more; its node goes all the same.
    let removed = qmp.ok("blockdev-del", json!({ "node-name": "t" }));
    assert!(removed["x-close-error"].is_string(), "{removed}");
    let path = steered.scratch.name("a.qcow2");
    steered.server.stop();
    holds(&path, &held, &steered.scratch);
}

/// A program that ends in the middle of jobs ends in order.
#[test]
fn a_server_that_is_reported_to_end_ends_its_jobs_first() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let target = create(&steered.scratch, "t", "64M");
    qmp.ok("blockdev-add", qcow2("t", &target));
    let load = Load::on(steered.server.socket(), "a", 512);
    qmp.ok(
        "blockdev-backup",
        json!({ "job-id": "b", "device": "a", "target": "t", "sync": "full", "speed": 65536 }),
    );
    load.goes_on();
    let held = load.end();
    let path = steered.scratch.name("a.qcow2");
    steered.server.stop();
    holds(&path, &held, &steered.scratch);
    assert_clean(target.as_ref());
}
