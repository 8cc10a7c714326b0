//! x-blockdev-amend: who may open an encrypted disk changes while it is used, as in QEMU's storage daemon.

use black_box::peer::qemu_img;
use black_box::qmp::Qmp;
use black_box::{Run, Scratch, cowhand};
use serde_json::{Value, json};

use super::backups::Daemon;
use super::creation::concluded;
use super::{Steered, create};

/// Passwords by id.
const SECRETS: [(&str, &str); 3] = [("old", "of iron"), ("new", "of gold"), ("other", "of tin")];

/// An encrypted image of 4 MiB that `old` opens.
fn encrypted(scratch: &Scratch, format: &str, name: &str) -> String {
    let path = scratch.name(name);
    let options = match format {
        "qcow2" => "encrypt.format=luks,encrypt.key-secret=old,encrypt.iter-time=10",
        _ => "key-secret=old,iter-time=10",
    };
    let secret = ["create", "-q", "--object", "secret,id=old,data=of iron", "-f", format, "-o", options];
    qemu_img(secret).args([&path, "4M"]).ok();
    path
}

fn node(format: &str, path: &str) -> Value {
    let mut node =
        json!({ "driver": format, "node-name": "n", "file": { "driver": "file", "filename": path } });
    match format {
        "qcow2" => node["encrypt"] = json!({ "format": "luks", "key-secret": "old" }),
        _ => node["key-secret"] = json!("old"),
    }
    node
}

/// Has the keys of the node changed, and gives the statuses of the job and its error.
fn amended(qmp: &mut Qmp, format: &str, keys: &Value, force: bool) -> (Vec<String>, Value) {
    let mut options = keys.clone();
    if format == "qcow2" {
        options["format"] = json!("luks");
        options = json!({ "encrypt": options });
    }
    options["driver"] = json!(format);
    let arguments = json!({ "job-id": "keys", "node-name": "n", "options": options, "force": force });
    qmp.ok("x-blockdev-amend", arguments);
    let statuses = concluded(qmp, "keys");
    let mut jobs = qmp.ok("query-jobs", json!({}));
    assert_eq!(jobs[0]["type"], "amend");
    qmp.ok("job-dismiss", json!({ "id": "keys" }));
    assert_eq!(qmp.event("JOB_STATUS_CHANGE")["data"]["status"], "null");
    (statuses, jobs[0]["error"].take())
}

/// Which passwords open it.
fn opened_by(format: &str, path: &str) -> Vec<&'static str> {
    let key = if format == "luks" { "key-secret" } else { "encrypt.format=luks,encrypt.key-secret" };
    let image = format!("driver={format},{key}=key,file.filename={path}");
    let opens = |password: &str| {
        let secret = format!("secret,id=key,data={password}");
        let outcome = Run::new("qemu-io").args(["--object", &secret, "--image-opts", &image, "-c", "quit"]);
        outcome.outcome().status.success()
    };
    SECRETS.iter().filter(|(_, password)| opens(password)).map(|(id, _)| *id).collect()
}

/// The same changes, asked of both.
#[test]
fn keys_change_as_in_qemus_storage_daemon() {
    let steered = Steered::new();
    let scratch = &steered.scratch;
    let (_daemon, mut theirs) = Daemon::with(&scratch.file("daemon"), &create(scratch, "b.qcow2", "64M"));
    let mut ours = steered.talk();
    for (id, password) in SECRETS {
        for qmp in [&mut ours, &mut theirs] {
            qmp.ok("object-add", json!({ "qom-type": "secret", "id": id, "data": password }));
        }
    }
    let add = |id: &str| json!({ "state": "active", "new-secret": id, "iter-time": 10 });
    let remove = |id: &str| json!({ "state": "inactive", "old-secret": id });
    let slot = |slot: u64| json!({ "state": "inactive", "keyslot": slot });
    let into =
        |slot: u64| json!({ "state": "active", "new-secret": "other", "iter-time": 10, "keyslot": slot });
    // What is asked, by force or not, and whether that is done; the table is asked of QEMU, too.
    let table = [
        (add("new"), false, true),
        (add("nobody"), false, false),
        (into(1), false, false),
        (into(5), false, true),
        (into(8), false, false),
        (slot(2), false, false),
        (slot(5), false, true),
        (remove("other"), false, false),
        (json!({ "state": "active", "new-secret": "other", "secret": "new", "iter-time": 10 }), false, true),
        (remove("other"), false, true),
        (slot(1), false, true),
        (remove("old"), false, false),
        (remove("old"), true, true),
    ];
    for format in ["qcow2", "luks"] {
        let mut seen = [Vec::new(), Vec::new()];
        for ((qmp, side), seen) in [(&mut ours, "ours"), (&mut theirs, "theirs")].into_iter().zip(&mut seen) {
            let path = encrypted(scratch, format, &format!("{side}.{format}"));
            qmp.ok("blockdev-add", node(format, &path));
            for (keys, force, is_done) in &table {
                let (statuses, error) = amended(qmp, format, keys, *force);
                assert_eq!(error.is_null(), *is_done, "{side}: {format}: {keys}: {error}");
                seen.push(statuses);
            }
            qmp.ok("blockdev-del", json!({ "node-name": "n" }));
            assert_eq!(opened_by(format, &path), [""; 0]);
            if format == "qcow2" {
                // Without a key qemu-img does not look at it.
                cowhand(["check", "-q", &path]).ok();
            }
        }
        assert_eq!(seen[0], seen[1]);
    }
}

/// A key is added while a client writes; afterwards both passwords open what was written.
#[test]
fn a_key_is_added_to_a_disk_that_is_written() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    for (id, password) in SECRETS {
        qmp.ok("object-add", json!({ "qom-type": "secret", "id": id, "data": password }));
    }
    for format in ["qcow2", "luks"] {
        let path = encrypted(scratch, format, format);
        qmp.ok("blockdev-add", node(format, &path));
        let export = json!({ "type": "nbd", "id": "e", "node-name": "n", "name": "n", "writable": true });
        qmp.ok("block-export-add", export);
        let mut client = steered.server.client("n");
        let keys = json!({ "state": "active", "new-secret": "new", "iter-time": 200 });
        let (_, error) = std::thread::scope(|scope| {
            let load = scope.spawn(move || {
                for at in 0..1024 {
                    client.write(at * 4096, &[7; 4096]).expect("it is written");
                }
                client.flush().expect("it is durable");
            });
            let done = amended(&mut qmp, format, &keys, false);
            load.join().expect("it writes to the end");
            done
        });
        assert_eq!(error, Value::Null);
        // The server may not have seen yet that the client has left.
        qmp.ok("block-export-del", json!({ "id": "e", "mode": "hard" }));
        qmp.event("BLOCK_EXPORT_DELETED");
        qmp.ok("blockdev-del", json!({ "node-name": "n" }));
        assert_eq!(opened_by(format, &path), ["old", "new"]);
        let key = if format == "luks" { "key-secret" } else { "encrypt.format=luks,encrypt.key-secret" };
        let image = format!("driver={format},{key}=key,file.filename={path}");
        let io = Run::new("qemu-io").args(["--object", "secret,id=key,data=of gold", "--image-opts", &image]);
        let said = io.args(["-c", "read -P 7 0 4M"]).ok();
        assert!(said.contains("read 4194304/4194304") && !said.contains("failed"), "{said}");
    }
}

/// What is wrong with the command itself is reported at once, and what cannot change is reported by the job.
#[test]
fn what_has_no_keys_is_not_amended() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    let keys = json!({ "format": "luks", "state": "active", "new-secret": "new" });
    let ask = |qmp: &mut Qmp, node: &str, options: &Value| {
        let arguments = json!({ "job-id": "keys", "node-name": node, "options": options });
        qmp.ask("x-blockdev-amend", arguments).expect_err("refused").1
    };
    let options = json!({ "driver": "qcow2", "encrypt": keys });
    assert_eq!(ask(&mut qmp, "none", &options), "there is no device or node \"none\"");
    let luks = json!({ "driver": "luks", "state": "active", "new-secret": "new" });
    assert_eq!(ask(&mut qmp, "a", &luks), "argument 'driver' is luks; node \"a\" is qcow2");
    let half = json!({ "driver": "qcow2", "encrypt": { "format": "luks", "state": "active" } });
    assert!(ask(&mut qmp, "a", &half).contains("it takes encrypt.new-secret=ID"));
    for (more, why) in
        [(json!({}), "it is not encrypted"), (json!({ "read-only": true }), "it is open for reading")]
    {
        let path = create(scratch, "plain", "1M");
        let mut node = super::qcow2("n", &path);
        node.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        qmp.ok("blockdev-add", node);
        let (statuses, error) =
            amended(&mut qmp, "qcow2", &json!({ "state": "inactive", "keyslot": 1 }), false);
        assert!(error.as_str().is_some_and(|error| error.contains(why)), "{error}");
        assert!(statuses.contains(&"aborting".to_owned()), "{statuses:?}");
        qmp.ok("blockdev-del", json!({ "node-name": "n" }));
    }
}
