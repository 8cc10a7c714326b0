//! The filter of a job has the node name that was asked for, while the job is at work, as in QEMU.

use black_box::peer::{qemu_img, qemu_io_ok};
use black_box::qmp::Qmp;
use black_box::{Client, Scratch};
use serde_json::{Value, json};

use super::backups::Daemon;
use super::jobs::{completed, reported};
use super::{Steered, create, qcow2};

/// Three images over each other, each with data of its own, as nodes `base`, `mid` and `top`, and a target `t`. All names begin with `begin`.
fn add_chain(qmp: &mut Qmp, scratch: &Scratch, begin: &str) {
    let mut options = Value::Null;
    let mut below: Option<String> = None;
    for (name, at) in [("base", "0"), ("mid", "4M"), ("top", "8M")] {
        let path = match &below {
            None => create(scratch, &format!("{begin}-{name}"), "64M"),
            Some(below) => {
                let path = scratch.name(&format!("{begin}-{name}"));
                qemu_img(["create", "-q", "-f", "qcow2", "-b", below, "-F", "qcow2", &path]).ok();
                path
            }
        };
        qemu_io_ok(&["-f", "qcow2"], &path, &[&format!("write -P 1 {at} 4M")]);
        let mut image = qcow2(name, &path);
        if below.is_some() {
            image["backing"] = options;
        }
        (options, below) = (image, Some(path));
    }
    qmp.ok("blockdev-add", options);
    qmp.ok("blockdev-add", qcow2("t", &create(scratch, &format!("{begin}-t"), "64M")));
}

/// The driver that the node is asked to have.
fn driver_of(qmp: &mut Qmp, name: &str) -> Option<Value> {
    super::node(qmp, name).map(|node| node["drv"].clone())
}

/// What is seen of each job's filter.
fn seen(qmp: &mut Qmp, scratch: &Scratch, begin: &str) -> Vec<(String, Value)> {
    add_chain(qmp, scratch, begin);
    let new = scratch.name(&format!("{begin}-new"));
    let jobs = [
        ("blockdev-mirror", json!({ "device": "top", "target": "t", "sync": "full" })),
        ("blockdev-backup", json!({ "device": "top", "target": "t", "sync": "full" })),
        ("drive-backup", json!({ "device": "top", "target": new, "sync": "full", "format": "qcow2" })),
        ("block-commit", json!({ "device": "top", "top-node": "mid", "base-node": "base" })),
        ("block-commit", json!({ "device": "top", "base-node": "mid" })),
        ("block-stream", json!({ "device": "top", "base-node": "base" })),
    ];
    let file = |name: &str| json!({ "driver": "null-co", "node-name": name, "size": 1 << 20 });
    let mut seen = Vec::new();
    for (command, mut arguments) in jobs {
        (arguments["job-id"], arguments["speed"]) = (json!("j"), json!(1));
        for (name, why) in [("t", "taken"), ("0f", "no name")] {
            arguments["filter-node-name"] = json!(name);
            let refused = qmp.ask(command, arguments.clone());
            assert_eq!(refused.expect_err(why).0, "GenericError", "{command}: {name}");
        }
        arguments["filter-node-name"] = json!("f");
        qmp.ok(command, arguments);
        let driver = driver_of(qmp, "f").unwrap_or_else(|| panic!("{command}: it is not there"));
        seen.push((command.to_owned(), driver));
        assert_eq!(qmp.ask("blockdev-add", file("f")).expect_err("taken").0, "GenericError");
        assert_eq!(
            qmp.ask("blockdev-del", json!({ "node-name": "f" })).expect_err("in use").0,
            "GenericError"
        );
        qmp.ok("block-job-cancel", json!({ "device": "j", "force": true }));
        reported(qmp, "BLOCK_JOB_CANCELLED", "j");
        assert_eq!(driver_of(qmp, "f"), None, "{command}");
        qmp.ok("blockdev-add", file("f"));
        qmp.ok("blockdev-del", json!({ "node-name": "f" }));
    }
    seen
}

#[test]
fn a_job_s_filter_has_its_name_while_the_job_is_at_work_and_the_name_is_free_afterwards() {
    let steered = Steered::new();
    let scratch = &steered.scratch;
    let other = create(scratch, "other.qcow2", "64M");
    let (_daemon, mut theirs) = Daemon::with(&scratch.file("daemon"), &other);
    let theirs = seen(&mut theirs, scratch, "theirs");
    let ours = seen(&mut steered.talk(), scratch, "ours");
    assert_eq!(ours, theirs);
    steered.server.stop();
}

/// Backup software exports the filter that it named; the export goes on when the filter has gone.
#[test]
fn an_export_of_a_job_s_filter_is_one_of_the_disk_and_outlives_it() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    add_chain(&mut qmp, scratch, "x");
    let mirror =
        json!({ "job-id": "j", "device": "top", "target": "t", "sync": "full", "filter-node-name": "f" });
    qmp.ok("blockdev-mirror", mirror);
    reported(&mut qmp, "BLOCK_JOB_READY", "j");
    let add = json!({ "type": "nbd", "id": "e", "node-name": "f", "name": "e", "writable": true });
    qmp.ok("block-export-add", add);
    let mut client = Client::connect(steered.server.socket(), "e").expect("it serves");
    client.write(0, &[7; 4096]).expect("a write");
    qmp.ok("job-complete", json!({ "id": "j" }));
    completed(&mut qmp, "j");
    assert_eq!(driver_of(&mut qmp, "f"), None);
    assert!(client.read(0, 4096).expect("a read") == [7; 4096]);
    client.write(4096, &[8; 4096]).expect("a write");
    client.flush().expect("a flush");
    drop(client);
    steered.server.stop();
    qemu_io_ok(&["-f", "qcow2"], &scratch.name("x-t"), &["read -P 7 0 4k", "read -P 8 4k 4k"]);
}
