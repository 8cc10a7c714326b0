//! Faults of live operations that others have shipped, each with its test. Those without one of their own here are elsewhere:
//!
//! | fault | tests |
//! |---|---|
//! | a discard beside an allocating write frees the cluster that the write links | the interleavings of `qcow2`; with jobs `sim_jobs::beside_guests` |
//! | a mirror loses writes made while it starts, or between its end and the switch | `a_mirror_is_what_the_disk_is_and_takes_its_place`, `job_mirror` |
//! | zeroes smaller than the unit of a write-blocking mirror | `a_mirror_is_what_the_disk_is_and_takes_its_place`, `job_mirror_write_blocking` |
//! | stale data in the holes of a target | `a_mirror_is_what_the_disk_is_and_takes_its_place`, `job_mirror`, `job_backup` (targets full of it) |
//! | cancelling a mirror whose target is dead | `a_mirror_whose_target_dies_rests_and_can_be_cancelled` |
//! | the end of the program beside the end of a mirror | `a_server_ends_in_order_beside_a_mirror_that_is_ready_resting_or_completed` |
//! | a stream beside queries of nodes | `a_stream_and_queries_of_nodes_do_not_disturb_each_other` |
//! | a stream under a throttle filter, limits changed meanwhile | `streams_and_snapshots_under_a_throttle_filter_end` |
//! | what is known of holes is asked in two ways and mixed up | `what_was_asked_of_holes_does_not_make_a_copy_full` |
//! | a stream or commit copies data of a backing file over zeroes | `zeroes_of_an_overlay_stay_zeroes_in_streams_and_commits`, `job_stream`, `job_commit_of_a_middle_image` |
//! | the end of a disk that is no whole cluster | `the_end_of_a_disk_that_is_no_whole_cluster_is_copied` |
//! | the moment of a backup is not one moment | `a_backup_that_starts_beside_writes_is_of_one_moment` |
//! | a read that comes back short goes on at a wrong place | `a_table_that_is_read_short_is_no_table_of_zeroes`, short transfers in `sim_faults.rs` and `sim_jobs::failing` |
//! | zeroing devices with sectors of 4 KiB; stale data of a device that is not zeroed first | `tests/media` |
//! | bitmaps after kill -9 | `kill_9_in_the_middle_of_jobs_leaves_the_disk_and_true_bitmaps` and `tests/kill/bitmaps.rs` |
//! | a discard in an image of version 2 shows old data | `a_discard_never_shows_what_the_backing_file_has_below_newer_data` |
//! | a client that leaves ends the server | `a_client_that_vanishes_in_the_middle_of_a_write_leaves_a_sound_disk` |

use std::sync::atomic::{AtomicBool, Ordering};

use black_box::at_end::SetAtEnd;
use black_box::bytes::are_all;
use black_box::peer::{assert_clean, converted, qemu_img, qemu_io_ok};
use black_box::{Run, Scratch};
use serde_json::json;

use super::jobs::{Load, backing_of, completed, holds, reported, snapshot, status};
use super::{Steered, begin_with_nothing, create, qcow2};

#[test]
fn a_server_ends_in_order_beside_a_mirror_that_is_ready_resting_or_completed() {
    for verb in [None, Some("job-pause"), Some("job-complete")] {
        let steered = Steered::new();
        let mut qmp = steered.talk();
        let (target, disk) = (create(&steered.scratch, "t", "64M"), steered.scratch.name("a.qcow2"));
        let held = Load::on(steered.server.socket(), "a", 512).end();
        qmp.ok("blockdev-add", qcow2("t", &target));
        qmp.ok("blockdev-mirror", json!({ "job-id": "m", "device": "a", "target": "t", "sync": "full" }));
        reported(&mut qmp, "BLOCK_JOB_READY", "m");
        if let Some(verb) = verb {
            qmp.ok(verb, json!({ "id": "m" }));
        }
        steered.server.stop();
        holds(&disk, &held, &steered.scratch);
        assert_clean(target.as_ref());
    }
}

#[test]
fn a_stream_and_queries_of_nodes_do_not_disturb_each_other() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let load = Load::on(steered.server.socket(), "a", 2048);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut other = steered.talk();
        let (is_over, end) = (&over, SetAtEnd(&over));
        let queries = scope.spawn(move || {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                let nodes = other.ok("query-named-block-nodes", json!({}));
                assert!(!nodes.as_array().expect("a list").is_empty());
                other.ok("query-block", json!({}));
                count += 1;
            }
            count
        });
        let mut device = "a".to_owned();
        for round in 0..6 {
            let name = format!("s{round}");
            snapshot(&mut qmp, &device, &steered.scratch, &name);
            load.goes_on();
            qmp.ok("block-stream", json!({ "job-id": "j", "device": name }));
            completed(&mut qmp, "j");
            device = name;
        }
        drop(end);
        assert!(queries.join().expect("no query fails") > 6);
    });
    let held = load.end();
    steered.server.stop();
    holds(&steered.scratch.name("s5"), &held, &steered.scratch);
}

#[test]
fn streams_and_snapshots_under_a_throttle_filter_end() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let group = json!({ "qom-type": "throttle-group", "id": "g", "limits": { "iops-total": 2000 } });
    qmp.ok("object-add", group);
    qmp.ok(
        "blockdev-add",
        json!({ "driver": "throttle", "node-name": "f", "throttle-group": "g", "file": "a" }),
    );
    let export = json!({ "type": "nbd", "id": "f", "node-name": "f", "name": "f", "writable": true });
    qmp.ok("block-export-add", export);
    let load = Load::on(steered.server.socket(), "f", 512);
    let mut device = "a".to_owned();
    for (round, limit) in [100_000, 1500, 50_000].into_iter().enumerate() {
        let name = format!("s{round}");
        snapshot(&mut qmp, &device, &steered.scratch, &name);
        qmp.ok("block-stream", json!({ "job-id": "j", "device": name, "speed": 16 << 20 }));
        let limits = json!({ "path": "/objects/g", "property": "limits", "value": { "iops-total": limit } });
        qmp.ok("qom-set", limits);
        load.goes_on();
        completed(&mut qmp, "j");
        device = name;
    }
    let held = load.end();
    steered.server.stop();
    holds(&steered.scratch.name("s2"), &held, &steered.scratch);
}

#[test]
fn what_was_asked_of_holes_does_not_make_a_copy_full() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let target = create(&steered.scratch, "t", "64M");
    let mut client = steered.server.client("a");
    client.write(8 << 20, &[7; 1 << 20]).expect("a write");
    client.write_zeroes(32 << 20, 1 << 20, 0).expect("zeroes");
    let map = || Run::new("nbdinfo").args(["--map", &steered.server.uri("a")]).ok();
    map();
    qmp.ok("blockdev-add", qcow2("t", &target));
    qmp.ok("blockdev-mirror", json!({ "job-id": "m", "device": "a", "target": "t", "sync": "full" }));
    map();
    reported(&mut qmp, "BLOCK_JOB_READY", "m");
    qmp.ok("job-cancel", json!({ "id": "m" }));
    completed(&mut qmp, "m");
    drop(client);
    qmp.ok("blockdev-del", json!({ "node-name": "t" }));
    let size = qemu_img(["info", "--output=json", &target]).json()["actual-size"].as_u64().expect("a number");
    assert!((1 << 20..4 << 20).contains(&size), "the copy of 1 MiB of data takes {size} bytes");
    steered.server.stop();
}

#[test]
fn zeroes_of_an_overlay_stay_zeroes_in_streams_and_commits() {
    for job in ["block-stream", "block-commit"] {
        let scratch = Scratch::new();
        let base = create(&scratch, "base.qcow2", "4M");
        qemu_io_ok(&["-f", "qcow2"], &base, &["write -P 3 0 4M"]);
        let mut below = base.clone();
        for name in ["one", "two", "three"] {
            let path = scratch.name(name);
            qemu_img(["create", "-q", "-f", "qcow2", "-b", &below, "-F", "qcow2", &path]).ok();
            below = path;
        }
        qemu_io_ok(&["-f", "qcow2"], &scratch.name("two"), &["write -z 1M 1M", "write -P 5 3M 64k"]);
        let (server, mut qmp) = begin_with_nothing(&scratch);
        qmp.ok("blockdev-add", qcow2("d", &scratch.name("three")));
        let (one, two) = (scratch.name("one"), scratch.name("two"));
        let arguments = match job {
            // Zeroes of `two` are taken over; what lies below `one` is left there.
            "block-stream" => json!({ "job-id": "j", "device": "d", "base": one }),
            // They go into `one`, which has nothing there.
            _ => json!({ "job-id": "j", "device": "d", "top": two, "base": one }),
        };
        qmp.ok(job, arguments);
        completed(&mut qmp, "j");
        server.stop();
        assert_eq!(backing_of(&scratch.name("three")), Some(one.clone()));
        let bytes = converted(&scratch.name("three"), "qcow2", &[], &scratch.file("converted"));
        let all = |range: std::ops::Range<usize>, value| are_all(&bytes[range], value);
        assert!(all(0..1 << 20, 3) && all(1 << 20..2 << 20, 0) && all(2 << 20..3 << 20, 3), "{job}");
        assert!(all(3 << 20..(3 << 20) + 65536, 5) && all((3 << 20) + 65536..4 << 20, 3), "{job}");
        assert_clean(one.as_ref());
    }
}

#[test]
fn the_end_of_a_disk_that_is_no_whole_cluster_is_copied() {
    let size: u64 = (3 << 20) + 512;
    for job in ["blockdev-mirror", "blockdev-backup"] {
        let scratch = Scratch::new();
        let (disk, target) = (create(&scratch, "d.qcow2", "3146240"), scratch.name("t.raw"));
        qemu_io_ok(&["-f", "qcow2"], &disk, &["write -P 3 3M 512", "write -P 4 0 64k"]);
        std::fs::write(&target, vec![9; size as usize]).expect("room");
        let (server, mut qmp) = begin_with_nothing(&scratch);
        qmp.ok("blockdev-add", qcow2("d", &disk));
        let raw =
            json!({ "driver": "raw", "node-name": "t", "file": { "driver": "file", "filename": target } });
        qmp.ok("blockdev-add", raw);
        qmp.ok(job, json!({ "job-id": "j", "device": "d", "target": "t", "sync": "full" }));
        if job == "blockdev-mirror" {
            reported(&mut qmp, "BLOCK_JOB_READY", "j");
            qmp.ok("job-cancel", json!({ "id": "j" }));
        }
        status(&mut qmp, "j", "null");
        server.stop();
        let bytes = std::fs::read(&target).expect("a copy");
        assert_eq!(bytes.len() as u64, size, "{job}");
        assert!(are_all(&bytes[3 << 20..], 3), "{job}: the end of the disk");
        assert!(are_all(&bytes[..65536], 4) && are_all(&bytes[65536..3 << 20], 0));
    }
}

/// A client writes a number to one end of the disk, and when that is answered to the other: a copy of one moment has it at both ends, or at
/// the first one number ahead.
#[test]
fn a_backup_that_starts_beside_writes_is_of_one_moment() {
    const FAR: u64 = 60 << 20;
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let over = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let mut client = steered.server.client("a");
        let (is_over, end) = (&over, SetAtEnd(&over));
        let writer = scope.spawn(move || {
            let mut number = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                number += 1;
                for at in [0, FAR] {
                    client.write(at, &number.to_le_bytes().repeat(64)).expect("a write");
                }
            }
            number
        });
        for round in 0..5 {
            let name = format!("t{round}");
            let target = create(&steered.scratch, &name, "64M");
            qmp.ok("blockdev-add", qcow2(&name, &target));
            qmp.ok(
                "blockdev-backup",
                json!({ "job-id": "b", "device": "a", "target": name, "sync": "full" }),
            );
            completed(&mut qmp, "b");
            qmp.ok("blockdev-del", json!({ "node-name": name }));
            let bytes = converted(&target, "qcow2", &[], &steered.scratch.file("converted"));
            let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
            let (first, second) = (number(0), number(FAR as usize));
            assert!(first == second || first == second + 1, "round {round}: {first} and {second}");
        }
        drop(end);
        writer.join().expect("no write fails")
    });
    assert!(written > 10, "{written} numbers were written");
    steered.server.stop();
}
