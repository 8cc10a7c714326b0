//! What a job copies and what it copies to, and the children of one filter, are not backed by each other.
//!
//! A backup and a mirror to a filter over their own source were begun. A write to the target was one to the source and waited for the copy, which
//! waited for the write: neither the job nor the server ended, and what clients of other disks had not flushed was lost with the kill. A snapshot whose
//! old data went to a filter over the disk itself kept nothing.

use black_box::peer::qemu_io_ok;
use serde_json::{Value, json};

use super::jobs::{completed, reported};
use super::{Steered, create, qcow2};

fn filter(driver: &str, name: &str, file: &str) -> Value {
    json!({ "driver": driver, "node-name": name, "file": file })
}

#[test]
fn no_job_copies_between_disks_of_which_one_stands_on_the_other() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    for driver in ["copy-on-read", "compress"] {
        qmp.ok("blockdev-add", filter(driver, "x", "a"));
        qmp.ok("blockdev-add", filter("copy-on-read", "xx", "x"));
        for job in ["blockdev-backup", "blockdev-mirror"] {
            for (device, target) in [("a", "x"), ("x", "a"), ("a", "xx"), ("xx", "a"), ("x", "xx")] {
                let copy = json!({ "job-id": "j", "device": device, "target": target, "sync": "full" });
                let words = qmp.refused(job, copy);
                assert!(
                    words.starts_with("source and target are one disk"),
                    "{job} {device} {target}: {words}"
                );
            }
        }
        qmp.ok("blockdev-del", json!({ "node-name": "xx" }));
        qmp.ok("blockdev-del", json!({ "node-name": "x" }));
    }
    steered.server.stop();
}

#[test]
fn no_filter_of_a_job_s_disk_is_put_over_its_other_disk() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let target = create(&steered.scratch, "t", "64M");
    qmp.ok("blockdev-add", qcow2("t", &target));
    qmp.ok("blockdev-add", filter("copy-on-read", "y", "t"));
    qmp.ok("blockdev-add", filter("copy-on-read", "z", "y"));
    qmp.ok("blockdev-mirror", json!({ "job-id": "j", "device": "a", "target": "z", "sync": "full" }));
    for over in ["y", "z"] {
        let words = qmp.refused("blockdev-reopen", json!({ "options": [filter("copy-on-read", over, "a")] }));
        assert!(words.contains("is in use by job \"j\""), "{words}");
    }
    reported(&mut qmp, "BLOCK_JOB_READY", "j");
    qmp.ok("job-cancel", json!({ "id": "j" }));
    completed(&mut qmp, "j");
    steered.server.stop();
}

#[test]
fn no_filter_has_children_of_which_one_stands_on_another() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let target = create(&steered.scratch, "t", "64M");
    qmp.ok("blockdev-add", qcow2("t", &target));
    qmp.ok("blockdev-add", filter("copy-on-read", "x", "a"));
    let over = |driver: &str, one: (&str, &str), two: (&str, &str)| json!({ "driver": driver, "node-name": "f", one.0: one.1, two.0: two.1 });
    for filter in [
        over("copy-before-write", ("file", "a"), ("target", "x")),
        over("copy-before-write", ("file", "x"), ("target", "a")),
        over("blkverify", ("test", "a"), ("raw", "x")),
        json!({ "driver": "quorum", "node-name": "f", "vote-threshold": 1, "children": ["t", "x", "a"] }),
    ] {
        let words = qmp.refused("blockdev-add", filter);
        assert!(words.contains("one of them is backed by the other"), "{words}");
    }
    // Nor is it made so later.
    qmp.ok("blockdev-add", filter("copy-on-read", "y", "t"));
    qmp.ok("blockdev-add", over("copy-before-write", ("file", "a"), ("target", "y")));
    let words = qmp.refused("blockdev-reopen", json!({ "options": [filter("copy-on-read", "y", "a")] }));
    assert!(words.contains("one of them is backed by the other"), "{words}");
    steered.server.stop();
}

/// A snapshot has no image of its own. The server panicked when such a disk was mirrored or committed.
#[test]
fn a_snapshot_is_mirrored_and_has_nothing_to_commit() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    let (old, copy) = (create(scratch, "old", "64M"), create(scratch, "copy", "64M"));
    for (name, path) in [("old", &old), ("copy", &copy)] {
        qmp.ok("blockdev-add", qcow2(name, path));
    }
    let mut client = steered.server.client("a");
    client.write(1 << 20, &[7; 65536]).expect("a write");
    // The filter needs its disk alone.
    drop(client);
    qmp.ok("block-export-del", json!({ "id": "a", "mode": "hard" }));
    qmp.event("BLOCK_EXPORT_DELETED");
    let cbw = json!({ "driver": "copy-before-write", "node-name": "cbw", "file": "a", "target": "old" });
    qmp.ok("blockdev-add", cbw);
    qmp.ok("blockdev-add", filter("snapshot-access", "snap", "cbw"));
    let export = json!({ "type": "nbd", "id": "e", "node-name": "cbw", "name": "e", "writable": true });
    qmp.ok("block-export-add", export);
    let mut client = steered.server.client("e");
    client.write(1 << 20, &[9; 4096]).expect("a write");
    client.write(40 << 20, &[9; 4096]).expect("a write");
    drop(client);
    let words = qmp.refused("block-commit", json!({ "job-id": "j", "device": "snap" }));
    assert!(words.contains("nothing to commit"), "{words}");
    let mirror = json!({ "job-id": "j", "device": "snap", "target": "copy", "sync": "full" });
    qmp.ok("blockdev-mirror", mirror);
    reported(&mut qmp, "BLOCK_JOB_READY", "j");
    qmp.ok("block-job-cancel", json!({ "device": "j" }));
    completed(&mut qmp, "j");
    // And the disk becomes again what it was.
    let back = json!({ "job-id": "k", "device": "snap", "target": "cbw", "sync": "full" });
    qmp.ok("blockdev-backup", back);
    completed(&mut qmp, "k");
    steered.server.stop();
    for path in [&copy, &scratch.name("a.qcow2")] {
        qemu_io_ok(&["-f", "qcow2"], path, &["read -P 0 0 1M", "read -P 7 1M 64k", "read -P 0 2M 62M"]);
    }
}
