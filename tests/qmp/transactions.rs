//! Transactions that name disks which send requests to each other.

use black_box::peer::{dirty_by_qemu, qemu_io_ok};
use serde_json::{Value, json};

use super::jobs::{BLOCK, Load, completed, reported};
use super::{Steered, create, qcow2};

fn on_bitmap(kind: &str, node: &str, name: &str) -> Value {
    json!({ "type": format!("block-dirty-bitmap-{kind}"), "data": { "node": node, "name": name } })
}

fn abort() -> Value {
    json!({ "type": "abort", "data": {} })
}

/// The upper disk was flushed while the lower one let no request in: the command was never answered, and no other one after it.
#[test]
fn a_transaction_takes_a_disk_and_the_one_below_it() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    let mut client = steered.server.client("a");
    client.write(0, &[1; 2 << 20]).expect("a write");
    let over = json!({ "driver": "copy-on-read", "node-name": "over", "file": "a" });
    qmp.ok("blockdev-add", over);
    let new = || on_bitmap("add", "a", "new");
    let backup = |device: &str, file: &str| {
        let data = json!({ "job-id": file, "device": device, "target": scratch.name(file), "sync": "full" });
        json!({ "type": "drive-backup", "data": data })
    };
    let refused = qmp.refused("transaction", json!({ "actions": [backup("over", "one"), new(), abort()] }));
    assert!(refused.contains("abort"), "{refused}");
    qmp.refused("transaction", json!({ "actions": [new(), backup("over", "two"), abort()] }));
    qmp.ok("transaction", json!({ "actions": [new(), backup("over", "three")] }));
    completed(&mut qmp, "three");
    steered.server.stop();
    qemu_io_ok(&["-f", "qcow2"], &scratch.name("three"), &["read -P 1 0 2M", "read -P 0 2M 2M"]);
}

/// What a client wrote to the lower disk while the actions were done was not in its bitmap once they were undone: the next increment missed it.
#[test]
fn what_is_undone_below_a_filter_forgets_nothing_that_others_wrote() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    qmp.ok("blockdev-add", json!({ "driver": "copy-on-read", "node-name": "over", "file": "a" }));
    let bitmap = json!({ "node": "a", "name": "b", "persistent": true, "granularity": BLOCK });
    qmp.ok("block-dirty-bitmap-add", bitmap);
    let load = Load::on(steered.server.socket(), "a", 8192);
    for round in 0..30 {
        let made = steered.scratch.name(&format!("over-{round}"));
        let actions = [
            on_bitmap("clear", "a", "b"),
            // Takes its time: a file is made.
            json!({ "type": "drive-backup", "data": { "job-id": "j", "device": "over", "target": made, "sync": "none" } }),
            abort(),
        ];
        qmp.refused("transaction", json!({ "actions": actions }));
        load.goes_on();
    }
    let held = load.end();
    steered.server.stop();
    let dirty = dirty_by_qemu(&steered.scratch.name("a.qcow2"), "b");
    for block in held.keys() {
        let at = block * BLOCK;
        assert!(
            dirty.iter().any(|(start, len)| (*start..start + len).contains(&at)),
            "block {block} was written"
        );
    }
}

/// A write to the source waits for one to the target, which waited for the end of the transaction, which waited for the write to the source.
#[test]
fn a_transaction_takes_the_target_of_a_job_and_its_source() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let mut client = steered.server.client("a");
    for mib in [0, 16, 32] {
        client.write(mib << 20, &vec![1; 16 << 20]).expect("a write");
    }
    for name in ["t", "u"] {
        qmp.ok("blockdev-add", qcow2(name, &create(&steered.scratch, name, "64M")));
    }
    let jobs = [
        ("blockdev-backup", json!({ "target": "t", "speed": 1 << 20 })),
        ("blockdev-mirror", json!({ "target": "u", "speed": 1 << 20, "copy-mode": "write-blocking" })),
    ];
    for (command, mut arguments) in jobs {
        let target = arguments["target"].as_str().expect("a name").to_owned();
        for (key, value) in [("job-id", "j"), ("device", "a"), ("sync", "full")] {
            arguments[key] = json!(value);
        }
        qmp.ok(command, arguments);
        let load = Load::on(steered.server.socket(), "a", 8192);
        for _ in 0..20 {
            for (first, second) in [(&*target, "a"), ("a", &*target)] {
                let add = [on_bitmap("add", first, "x"), on_bitmap("add", second, "x")];
                qmp.ok("transaction", json!({ "actions": add }));
                let clear = [on_bitmap("clear", first, "x"), on_bitmap("clear", second, "x"), abort()];
                qmp.refused("transaction", json!({ "actions": clear }));
                load.goes_on();
                let remove = [on_bitmap("remove", first, "x"), on_bitmap("remove", second, "x")];
                qmp.ok("transaction", json!({ "actions": remove }));
            }
        }
        load.end();
        qmp.ok("job-cancel", json!({ "id": "j" }));
        reported(&mut qmp, "BLOCK_JOB_CANCELLED", "j");
    }
    steered.server.stop();
}

/// Each of two copies waits for the other: the second one is refused.
#[test]
fn a_copy_to_what_is_copied_to_its_source_is_refused() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    for name in ["b", "c"] {
        qmp.ok("blockdev-add", qcow2(name, &create(&steered.scratch, name, "64M")));
    }
    for (name, below) in [("over-a", "a"), ("over-b", "b")] {
        qmp.ok("blockdev-add", json!({ "driver": "copy-on-read", "node-name": name, "file": below }));
    }
    let backup = |device: &str, target: &str, id: &str| json!({ "job-id": id, "device": device, "target": target, "sync": "none" });
    qmp.ok("blockdev-backup", backup("a", "over-b", "one"));
    let refused = qmp.refused("blockdev-backup", backup("b", "over-a", "two"));
    assert!(refused.contains("would wait for itself"), "{refused}");
    qmp.ok("blockdev-backup", backup("b", "c", "three"));
    for id in ["one", "three"] {
        qmp.ok("job-cancel", json!({ "id": id }));
        reported(&mut qmp, "BLOCK_JOB_CANCELLED", id);
    }
    steered.server.stop();
}
