//! blockdev-reopen with another `backing`: what an image is over changes while clients read it.

use black_box::Client;
use black_box::bytes::are_all;
use black_box::peer::qemu_io_ok;
use black_box::qmp::Qmp;
use serde_json::{Value, json};

use super::{Steered, create, node, qcow2};

const MIB: u64 = 1 << 20;

/// Three images of 3 MiB, each with its own number in a MiB of its own; opened and exported as `d0` to `d2`, with nothing below.
fn three(steered: &Steered, qmp: &mut Qmp) -> [Value; 3] {
    [0, 1, 2].map(|number| {
        let name = format!("d{number}");
        let path = create(&steered.scratch, &name, "3M");
        qemu_io_ok(&["-f", "qcow2"], &path, &[&format!("write -P {} {number}M 1M", number + 1)]);
        let mut options = qcow2(&name, &path);
        options["backing"] = Value::Null;
        qmp.ok("blockdev-add", options.clone());
        qmp.ok(
            "block-export-add",
            json!({ "type": "nbd", "id": name, "node-name": name, "writable": number == 0 }),
        );
        options
    })
}

fn over(options: &Value, backing: impl Into<Value>) -> Value {
    let mut options = options.clone();
    options["backing"] = backing.into();
    json!({ "options": [options] })
}

fn reads(client: &mut Client, values: [u8; 3]) {
    for (number, value) in (0..).zip(values) {
        let found = client.read(number * MIB, MIB as u32).expect("a read");
        assert!(are_all(&found, value), "MiB {number} is not {value}");
    }
}

/// It was refused.
#[test]
fn an_image_is_over_another_one_from_one_request_to_the_next() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let options = three(&steered, &mut qmp);
    let [mut d0, mut d1, mut d2] =
        ["d0", "d1", "d2"].map(|name| Client::connect(steered.server.socket(), name).expect("it serves"));
    reads(&mut d0, [1, 0, 0]);
    qmp.ok("blockdev-reopen", over(&options[0], "d1"));
    reads(&mut d0, [1, 2, 0]);
    qmp.ok("blockdev-reopen", over(&options[2], "d1"));
    reads(&mut d2, [0, 2, 3]);
    qmp.ok("blockdev-reopen", over(&options[0], "d2"));
    reads(&mut d0, [1, 2, 3]);
    // The same again is no change.
    qmp.ok("blockdev-reopen", over(&options[0], "d2"));
    reads(&mut d0, [1, 2, 3]);
    let circle = qmp.refused("blockdev-reopen", over(&options[1], "d0"));
    assert!(circle.contains("it is over that itself"), "{circle}");
    for own in ["d1", "nothing", ""] {
        qmp.refused("blockdev-reopen", over(&options[1], own));
    }
    assert!(qmp.refused("blockdev-del", json!({ "node-name": "d2" })).contains("in use"));
    // What is written stays where it was written.
    d0.write(2 * MIB, &[9; 4096]).expect("a write");
    qmp.ok("blockdev-reopen", over(&options[0], Value::Null));
    let rest = d0.read(2 * MIB + 65536, 65536).expect("a read");
    assert!(are_all(&rest, 0), "nothing is below");
    // The rest of the cluster was copied from below at that time.
    let found = d0.read(2 * MIB, 65536).expect("a read");
    assert!(are_all(&found[..4096], 9) && are_all(&found[4096..], 3));
    reads(&mut d1, [0, 2, 0]);
    reads(&mut d2, [0, 2, 3]);
    qmp.ok("blockdev-reopen", over(&options[2], Value::Null));
    drop((d0, d1, d2));
    for name in ["d0", "d1", "d2"] {
        qmp.ok("block-export-del", json!({ "id": name, "mode": "hard" }));
        qmp.event_of("BLOCK_EXPORT_DELETED", "id", name);
        qmp.ok("blockdev-del", json!({ "node-name": name }));
    }
    steered.server.stop();
}

/// Images that were described with the disk go with their names, and a layer further down may come up.
#[test]
fn images_that_are_left_are_closed_and_their_names_free() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let mut options: Vec<Value> = Vec::new();
    for number in 0..3 {
        let name = format!("d{number}");
        let path = create(&steered.scratch, &name, "3M");
        qemu_io_ok(&["-f", "qcow2"], &path, &[&format!("write -P {} {number}M 1M", number + 1)]);
        let mut image = qcow2(&name, &path);
        image["file"]["node-name"] = json!(format!("{name}-file"));
        image["backing"] = options.last().cloned().unwrap_or_default();
        options.push(image);
    }
    qmp.ok("blockdev-add", options[2].clone());
    qmp.ok("block-export-add", json!({ "type": "nbd", "id": "x", "name": "x", "node-name": "d2" }));
    let mut client = Client::connect(steered.server.socket(), "x").expect("it serves");
    reads(&mut client, [1, 2, 3]);
    // A file by its own name is the one that is there.
    let mut named = options[2].clone();
    (named["file"], named["backing"]) = (json!("d2-file"), json!("d1"));
    qmp.ok("blockdev-reopen", json!({ "options": [named] }));
    reads(&mut client, [1, 2, 3]);
    named["backing"] = json!("d0");
    qmp.ok("blockdev-reopen", json!({ "options": [named] }));
    reads(&mut client, [1, 0, 3]);
    assert!(node(&mut qmp, "d1").is_none());
    let mut again = options[1].clone();
    again["backing"] = Value::Null;
    qmp.ok("blockdev-add", again);
    named["backing"] = Value::Null;
    qmp.ok("blockdev-reopen", json!({ "options": [named] }));
    reads(&mut client, [0, 0, 3]);
    named["backing"] = json!("d1");
    qmp.ok("blockdev-reopen", json!({ "options": [named] }));
    reads(&mut client, [0, 2, 3]);
    drop(client);
    steered.server.stop();
}

/// A job knows the layers that it began with.
#[test]
fn a_disk_that_a_job_works_on_keeps_what_it_is_over() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let options = three(&steered, &mut qmp);
    qmp.ok("blockdev-reopen", over(&options[0], "d1"));
    qmp.ok("block-export-del", json!({ "id": "d1", "mode": "hard" }));
    qmp.event_of("BLOCK_EXPORT_DELETED", "id", "d1");
    qmp.ok("block-stream", json!({ "job-id": "j", "device": "d0", "auto-finalize": false }));
    let refused = qmp.refused("blockdev-reopen", over(&options[0], "d2"));
    assert!(refused.contains("in use by job \"j\""), "{refused}");
    qmp.ok("job-cancel", json!({ "id": "j" }));
    steered.server.stop();
}
