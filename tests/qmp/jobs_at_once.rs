//! Several jobs on one disk, jobs on backing images, and copies that are not to converge.
//!
//! Which pairs QEMU permits was asked of its storage daemon: a job has the images that it works on for itself, and others may work on the
//! rest of the chain. docs/reference/compat.md has what differs.

use std::time::{Duration, Instant};

use black_box::client::Request;
use black_box::peer::{converted, qemu_img, qemu_io_ok};
use black_box::qmp::Qmp;
use serde_json::{Value, json};

use super::jobs::{Load, backing_of, completed, exported, holds, reported, snapshot, status};
use super::{Steered, create, qcow2};

/// A chain over `a`: `s1`, `s2` and so on, each with data of a client's; gives their paths.
fn chain(steered: &Steered, qmp: &mut Qmp, load: &Load, names: &[&str]) -> Vec<String> {
    let mut device = "a";
    let mut paths = Vec::new();
    for name in names {
        // A third of the clusters that clients write to: what is below an image is not all hidden.
        (0..4).for_each(|_| load.goes_on());
        paths.push(snapshot(qmp, device, &steered.scratch, name));
        device = name;
    }
    load.goes_on();
    paths
}

fn is_busy(qmp: &mut Qmp, command: &str, arguments: Value, node: &str, job: &str) {
    let (class, words) = qmp.ask(command, arguments).expect_err("it is in use");
    assert_eq!(class, "GenericError");
    assert_eq!(words, format!("node {node:?} is in use by job {job:?}"));
}

/// Has a slow job that waits to be finalized go on to its end.
fn ends(qmp: &mut Qmp, job: &str) {
    // One that had little to do may be there already.
    let _ = qmp.ask("block-job-set-speed", json!({ "device": job, "speed": 0 }));
    status(qmp, job, "pending");
    qmp.ok("job-finalize", json!({ "id": job }));
    completed(qmp, job);
}

#[test]
fn jobs_work_side_by_side_on_images_of_their_own() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let load = Load::on(steered.server.socket(), "a", 2048);
    let paths = chain(&steered, &mut qmp, &load, &["s1", "s2", "s3", "s4", "s5"]);
    let target = create(&steered.scratch, "t", "64M");
    qmp.ok("blockdev-add", qcow2("t", &target));
    let slow = 65536;
    let backup = json!({ "job-id": "b", "device": "s5", "target": "t", "sync": "full", "speed": slow });
    qmp.ok("blockdev-backup", backup);
    let low = json!({ "job-id": "low", "device": "s5", "top-node": "s1", "base-node": "a", "speed": 1 });
    qmp.ok("block-commit", low);
    // The commit has its images.
    is_busy(&mut qmp, "block-stream", json!({ "job-id": "x", "device": "s2" }), "s1", "low");
    is_busy(&mut qmp, "block-stream", json!({ "job-id": "x", "device": "s1" }), "s1", "low");
    let commit = json!({ "job-id": "x", "device": "s5", "top-node": "s4", "base-node": "s3" });
    is_busy(&mut qmp, "block-commit", commit, "s5", "b");
    is_busy(&mut qmp, "block-stream", json!({ "job-id": "x", "device": "s5" }), "s5", "b");
    let mirror = json!({ "job-id": "x", "device": "s5", "target": "t", "sync": "full" });
    is_busy(&mut qmp, "blockdev-mirror", mirror, "s5", "b");
    assert!(qmp.refused("job-cancel", json!({ "id": "x" })).contains("no job"));
    // Between the two there is work for a third.
    qmp.ok("block-stream", json!({ "job-id": "mid", "device": "s4", "base-node": "s3" }));
    completed(&mut qmp, "mid");
    assert_eq!(qmp.ok("query-jobs", json!({})).as_array().map(Vec::len), Some(2));
    load.goes_on();
    for job in ["low", "b"] {
        qmp.ok("block-job-set-speed", json!({ "device": job, "speed": 0 }));
    }
    completed(&mut qmp, "low");
    completed(&mut qmp, "b");
    assert_eq!(backing_of(&paths[1]), Some(steered.scratch.name("a.qcow2")));
    assert_eq!(exported(&mut qmp), "s5");
    load.goes_on();
    let held = load.end();
    steered.server.stop();
    holds(&paths[4], &held, &steered.scratch);
}

/// What a stream leaves below its images is no job's own: another stream may work on it. They were refused, though QEMU permits them.
#[test]
fn streams_work_side_by_side_in_one_chain() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let load = Load::on(steered.server.socket(), "a", 2048);
    let paths = chain(&steered, &mut qmp, &load, &["s1", "s2", "s3", "s4", "s5", "s6"]);
    let jobs = [
        ("s2", json!({ "base-node": "a" })),
        ("s4", json!({ "bottom": "s3" })),
        ("s6", json!({ "base-node": "s4" })),
    ];
    for (image, more) in &jobs {
        let mut stream =
            json!({ "job-id": format!("j{image}"), "device": image, "speed": 65536, "auto-finalize": false });
        stream.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        qmp.ok("block-stream", stream);
        load.goes_on();
    }
    is_busy(
        &mut qmp,
        "block-stream",
        json!({ "job-id": "x", "device": "s5", "base-node": "s4" }),
        "s5",
        "js6",
    );
    let commit = json!({ "job-id": "x", "device": "s6", "top-node": "s2", "base-node": "a" });
    is_busy(&mut qmp, "block-commit", commit, "s3", "js4");
    // The middle one ends first, then the lowest.
    for job in ["js4", "js2", "js6"] {
        ends(&mut qmp, job);
        load.goes_on();
    }
    assert_eq!(qmp.ok("query-jobs", json!({})), json!([]));
    assert_eq!(backing_of(&paths[5]), Some(paths[3].clone()));
    assert_eq!(backing_of(&paths[3]), Some(paths[1].clone()));
    assert_eq!(backing_of(&paths[1]), Some(steered.scratch.name("a.qcow2")));
    // All but the uppermost are for reading again: QEMU's tools take their locks beside ours.
    for path in [&paths[1], &paths[3]] {
        qemu_img(["check", path]).ok();
    }
    let held = load.end();
    steered.server.stop();
    holds(&paths[5], &held, &steered.scratch);
}

/// A stream whose base is the filter of a commit gets what the commit leaves there, whichever ends first.
#[test]
fn a_stream_above_a_commit_ends_before_it_or_after_it() {
    for order in [["stream", "commit"], ["commit", "stream"]] {
        let steered = Steered::new();
        let mut qmp = steered.talk();
        let load = Load::on(steered.server.socket(), "a", 2048);
        let paths = chain(&steered, &mut qmp, &load, &["s1", "s2", "s3", "s4", "s5"]);
        let commit = json!({
            "job-id": "commit", "device": "s5", "top-node": "s2", "base-node": "s1", "filter-node-name": "f", "speed": 1, "auto-finalize": false
        });
        qmp.ok("block-commit", commit);
        // The base by its own name would be taken out under the stream.
        let by_name = json!({ "job-id": "stream", "device": "s4", "base-node": "s2" });
        is_busy(&mut qmp, "block-stream", by_name, "s2", "commit");
        let stream = json!({ "job-id": "stream", "device": "s4", "base-node": "f", "speed": 65536, "auto-finalize": false });
        qmp.ok("block-stream", stream);
        for job in order {
            load.goes_on();
            ends(&mut qmp, job);
        }
        load.goes_on();
        assert_eq!(backing_of(&paths[4]), Some(paths[3].clone()));
        assert_eq!(backing_of(&paths[3]), Some(paths[0].clone()), "{order:?}");
        for path in [&paths[0], &paths[3]] {
            qemu_img(["check", path]).ok();
        }
        let held = load.end();
        steered.server.stop();
        holds(&paths[4], &held, &steered.scratch);
    }
}

/// Likewise, where the layers end early and the base is longer: what it has behind their end belongs to no layer, and must not show.
#[test]
fn a_stream_above_a_commit_of_shorter_layers_shows_nothing_of_a_longer_base() {
    for order in [["stream", "commit"], ["commit", "stream"]] {
        let steered = Steered::new();
        let mut qmp = steered.talk();
        let sizes = [("base", "4M"), ("mid", "1M"), ("n3", "2M"), ("top", "4M")];
        let mut below: Option<String> = None;
        for (name, size) in sizes {
            let path = steered.scratch.name(name);
            let backing = below.iter().flat_map(|below| ["-b", below, "-F", "qcow2"]);
            qemu_img(["create", "-q", "-f", "qcow2"]).args(backing).args([&path, size]).ok();
            below = Some(path);
        }
        let [base, mid, n3, top] = sizes.map(|(name, _)| steered.scratch.name(name));
        qemu_io_ok(&["-f", "qcow2"], &base, &["write -P 1 0 4M"]);
        qemu_io_ok(&["-f", "qcow2"], &mid, &["write -P 2 512k 256k"]);
        qemu_io_ok(&["-f", "qcow2"], &n3, &["write -P 3 1536k 64k"]);
        qemu_io_ok(&["-f", "qcow2"], &top, &["write -P 4 3M 64k"]);
        let before = converted(&top, "qcow2", &[], &steered.scratch.file("before"));
        let mut node = qcow2("base", &base);
        for (name, path) in [("mid", &mid), ("n3", &n3), ("top", &top)] {
            let mut over = qcow2(name, path);
            over["backing"] = node;
            node = over;
        }
        qmp.ok("blockdev-add", node);
        let commit = json!({
            "job-id": "commit", "device": "top", "top-node": "mid", "base-node": "base", "filter-node-name": "f",
            "auto-finalize": false
        });
        qmp.ok("block-commit", commit);
        let stream = json!({ "job-id": "stream", "device": "top", "base-node": "f", "auto-finalize": false });
        qmp.ok("block-stream", stream);
        for job in ["commit", "stream"] {
            status(&mut qmp, job, "pending");
        }
        for job in order {
            qmp.ok("job-finalize", json!({ "id": job }));
            completed(&mut qmp, job);
        }
        qmp.ok("blockdev-del", json!({ "node-name": "top" }));
        steered.server.stop();
        assert_eq!(backing_of(&top), Some(base), "{order:?}");
        assert!(converted(&top, "qcow2", &[], &steered.scratch.file("after")) == before, "{order:?}");
    }
}

/// The image above a commit's layers may be the base of another commit: both write to it.
#[test]
fn commits_work_side_by_side_on_both_sides_of_an_image() {
    for order in [["low", "high"], ["high", "low"]] {
        let steered = Steered::new();
        let mut qmp = steered.talk();
        let load = Load::on(steered.server.socket(), "a", 2048);
        let paths = chain(&steered, &mut qmp, &load, &["s1", "s2", "s3", "s4", "s5"]);
        let commit = |job: &str, top: &str, base: &str| json!({ "job-id": job, "device": "s5", "top-node": top, "base-node": base, "speed": 1, "auto-finalize": false });
        qmp.ok("block-commit", commit("low", "s2", "s1"));
        qmp.ok("block-commit", commit("high", "s4", "s3"));
        is_busy(&mut qmp, "block-commit", commit("x", "s3", "s2"), "s4", "high");
        for job in order {
            load.goes_on();
            ends(&mut qmp, job);
        }
        load.goes_on();
        assert_eq!(backing_of(&paths[4]), Some(paths[2].clone()));
        assert_eq!(backing_of(&paths[2]), Some(paths[0].clone()), "{order:?}");
        for path in [&paths[0], &paths[2]] {
            qemu_img(["check", path]).ok();
        }
        let held = load.end();
        steered.server.stop();
        holds(&paths[4], &held, &steered.scratch);
    }
}

/// One of two that is given up leaves the image above its layers to the other, open for writing.
#[test]
fn a_commit_that_is_cancelled_takes_nothing_from_a_stream_beside_it() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let load = Load::on(steered.server.socket(), "a", 2048);
    let paths = chain(&steered, &mut qmp, &load, &["s1", "s2", "s3", "s4", "s5"]);
    let commit = json!({
        "job-id": "commit", "device": "s5", "top-node": "s1", "base-node": "a", "filter-node-name": "f", "speed": 1, "auto-finalize": false
    });
    qmp.ok("block-commit", commit);
    qmp.ok("block-stream", json!({ "job-id": "stream", "device": "s3", "base-node": "f", "speed": 65536, "auto-finalize": false }));
    qmp.ok("block-stream", json!({ "job-id": "other", "device": "s5", "base-node": "s3", "speed": 65536, "auto-finalize": false }));
    qmp.ok("block-job-cancel", json!({ "device": "commit" }));
    reported(&mut qmp, "BLOCK_JOB_CANCELLED", "commit");
    load.goes_on();
    for job in ["stream", "other"] {
        ends(&mut qmp, job);
    }
    assert_eq!(backing_of(&paths[4]), Some(paths[2].clone()));
    assert_eq!(backing_of(&paths[2]), Some(paths[0].clone()));
    for path in [&paths[0], &paths[2]] {
        qemu_img(["check", path]).ok();
    }
    let held = load.end();
    steered.server.stop();
    holds(&paths[4], &held, &steered.scratch);
}

#[test]
fn an_image_in_the_middle_takes_over_what_lies_below_it() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let load = Load::on(steered.server.socket(), "a", 2048);
    let paths = chain(&steered, &mut qmp, &load, &["s1", "s2", "s3", "s4"]);
    let base = steered.scratch.name("a.qcow2");
    let above = json!({ "job-id": "j", "device": "s3", "base-node": "s4" });
    assert!(qmp.refused("block-stream", above).contains("nothing lies between"));
    // `bottom` is the lowest that is taken over.
    qmp.ok("block-stream", json!({ "job-id": "j", "device": "s3", "bottom": "s2" }));
    completed(&mut qmp, "j");
    assert_eq!(backing_of(&paths[2]), Some(paths[0].clone()));
    load.goes_on();
    qmp.ok("block-stream", json!({ "job-id": "j", "device": "s3", "base-node": "a" }));
    completed(&mut qmp, "j");
    assert_eq!(backing_of(&paths[2]), Some(base));
    // The image is for reading again: QEMU's tools take their lock beside ours.
    qemu_img(["check", &paths[2]]).ok();
    load.goes_on();
    qmp.ok("block-stream", json!({ "job-id": "j", "device": "s3" }));
    completed(&mut qmp, "j");
    assert_eq!(backing_of(&paths[2]), None);
    assert_eq!(exported(&mut qmp), "s4");
    load.goes_on();
    // One that is cancelled leaves the chain as it was, and nothing open for writing.
    let commit = json!({ "job-id": "j", "device": "s4", "top-node": "s4", "base-node": "s3", "speed": 1 });
    qmp.ok("block-commit", commit);
    qmp.ok("block-job-cancel", json!({ "device": "j" }));
    reported(&mut qmp, "BLOCK_JOB_CANCELLED", "j");
    qemu_img(["check", &paths[2]]).ok();
    let held = load.end();
    assert_eq!(qmp.ok("query-jobs", json!({})), json!([]));
    steered.server.stop();
    holds(&paths[3], &held, &steered.scratch);
}

/// A raw file, and an overlay of 2 MiB over it; their paths.
fn over_raw(steered: &Steered, size: &str) -> (String, String) {
    let (base, top) = (steered.scratch.name("base.raw"), steered.scratch.name("top.qcow2"));
    qemu_img(["create", "-q", "-f", "raw", &base, size]).ok();
    qemu_img(["create", "-q", "-f", "qcow2", "-b", &base, "-F", "raw", &top, "2M"]).ok();
    (base, top)
}

/// A commit that cannot begin, because its base is too short and raw, gives the base back.
#[test]
fn a_commit_that_does_not_begin_leaves_no_lock() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let (base, top) = over_raw(&steered, "4M");
    qmp.ok("blockdev-add", qcow2("top", &top));
    assert!(qmp.refused("block-commit", json!({ "job-id": "j", "device": "top" })).contains("resize"));
    // Another reader is admitted, as before.
    qemu_img(["convert", "-f", "raw", "-O", "raw", &base, &steered.scratch.name("copy")]).ok();
    assert_eq!(qmp.ok("query-jobs", json!({})), json!([]));
    qmp.ok("blockdev-del", json!({ "node-name": "top" }));
    steered.server.stop();
}

/// It was refused: a raw base could not become longer while it was open.
#[test]
fn a_raw_base_that_is_shorter_becomes_as_long_as_what_is_committed_to_it() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let (base, top) = over_raw(&steered, "1M");
    qemu_io_ok(&["-f", "qcow2"], &top, &["write -P 5 1M 1M"]);
    qmp.ok("blockdev-add", qcow2("top", &top));
    qmp.ok("block-commit", json!({ "job-id": "j", "device": "top" }));
    reported(&mut qmp, "BLOCK_JOB_READY", "j");
    qmp.ok("job-complete", json!({ "id": "j" }));
    completed(&mut qmp, "j");
    steered.server.stop();
    assert_eq!(std::fs::metadata(&base).expect("the base").len(), 2 << 20);
    qemu_io_ok(&["-f", "raw"], &base, &["read -P 0 0 1M", "read -P 5 1M 1M"]);
}

/// With convergence off guests are never made to write to both sides: the mirror of a disk that is written faster than the target
/// takes it becomes ready when the guest rests.
#[test]
fn a_mirror_that_is_not_to_converge_waits_for_the_guest() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let target = create(&steered.scratch, "t", "64M");
    let load = Load::on(steered.server.socket(), "a", 1024);
    qmp.ok("blockdev-add", qcow2("t", &target));
    let limits = json!({ "bps-total": 2 << 20 });
    qmp.ok("object-add", json!({ "qom-type": "throttle-group", "id": "slow", "limits": limits }));
    let filter = json!({ "driver": "throttle", "node-name": "f", "throttle-group": "slow", "file": "t" });
    qmp.ok("blockdev-add", filter);
    let mirror = json!({ "job-id": "m", "device": "a", "target": "t", "sync": "top", "x-converge-after": 0 });
    qmp.ok("blockdev-mirror", mirror);
    for _ in 0..10 {
        load.goes_on();
        std::thread::sleep(std::time::Duration::from_millis(100));
        let job = qmp.ok("query-block-jobs", json!({}))[0].clone();
        let reported = (&job["status"], &job["x-written-through"], &job["x-write-wait-ns"]);
        assert_eq!(reported, (&json!("running"), &json!(0), &json!(0)), "{job}");
    }
    let held = load.end();
    reported(&mut qmp, "BLOCK_JOB_READY", "m");
    qmp.ok("job-cancel", json!({ "id": "m" }));
    completed(&mut qmp, "m");
    steered.server.stop();
    holds(&target, &held, &steered.scratch);
}

/// A write of a client that left, at work in the copy still, may land there behind what another client writes to the same place. So on a
/// disk with limits, too, a change is given up only while it waits for them.
#[test]
fn clients_that_leave_in_the_middle_of_writes_do_not_break_a_mirror_of_a_limited_disk() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    let copy = create(scratch, "copy.qcow2", "64M");
    qmp.ok(
        "block_set_io_throttle",
        json!({ "id": "a", "bps": 0, "bps_rd": 0, "bps_wr": 0, "iops": 1_000_000, "iops_rd": 0, "iops_wr": 0 }),
    );
    let mut target = qcow2("copy", &copy);
    target["cache"] = json!({ "direct": true });
    qmp.ok("blockdev-add", target);
    let mirror = json!({ "job-id": "j", "device": "a", "target": "copy", "sync": "full", "copy-mode": "write-blocking" });
    qmp.ok("blockdev-mirror", mirror);
    qmp.event("BLOCK_JOB_READY");
    for round in 0..200u64 {
        let mut client = steered.server.client("a");
        let data = vec![round as u8 + 1; 64 << 10];
        for request in 0..16 {
            client.send(&Request::write((round + request) % 1000 * (64 << 10), &data)).expect("it is sent");
        }
        drop(client);
        // What it left behind is carried out.
        let start = Instant::now();
        while qmp.ok("query-block-exports", json!({}))[0]["connections"] != 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "the connection does not end");
        }
    }
    qmp.ok("job-complete", json!({ "id": "j" }));
    let completed = qmp.event("BLOCK_JOB_COMPLETED");
    assert_eq!(completed["data"].get("error"), None, "{completed}");
    let path = scratch.name("a.qcow2");
    steered.server.stop();
    qemu_img(["compare", "-q", &path, &copy]).ok();
}
