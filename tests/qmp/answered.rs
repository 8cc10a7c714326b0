//! What an answer means: the command is done, and a command that failed has changed nothing, or its error says what it changed.

use black_box::QemuNbd;
use serde_json::{Value, json};

use super::jobs::{completed, status};
use super::{Steered, create, node, qcow2};

/// A mirror's target died with its server. `blockdev-del` answered an error, though the node was gone: the manager tried again, and took the
/// second error, that there is no such node, for a fault of its own.
#[test]
fn a_disk_whose_server_is_lost_can_be_removed_and_what_was_not_written_is_said() {
    let steered = Steered::new();
    let (image, socket) = (steered.scratch.write("far", &vec![0; 8 << 20]), steered.scratch.name("far.sock"));
    let mut qmp = steered.talk();
    for cached in [false, true] {
        let mut far = QemuNbd::start(&image, &["-k", &socket]);
        let below =
            json!({ "driver": "nbd", "server": { "type": "unix", "path": socket }, "export": "disk" });
        qmp.ok("blockdev-add", json!({ "driver": "raw", "node-name": "far", "file": below }));
        qmp.ok("block-export-add", json!({ "type": "nbd", "id": "e", "node-name": "far", "writable": true }));
        let mut client = steered.server.client("far");
        client.write(0, &[1; 1 << 20]).expect("a write");
        if !cached {
            client.flush().expect("a flush");
        }
        drop(client);
        qmp.ok("block-export-del", json!({ "id": "e", "mode": "hard" }));
        qmp.event("BLOCK_EXPORT_DELETED");
        far.kill();
        let removed = qmp.ok("blockdev-del", json!({ "node-name": "far" }));
        if cached {
            assert!(removed["x-close-error"].is_string(), "{removed}");
            let reported = qmp.event("BLOCK_IO_ERROR");
            assert_eq!(
                (&reported["data"]["node-name"], &reported["data"]["operation"]),
                (&json!("far"), &json!("write"))
            );
        }
        assert!(node(&mut qmp, "far").is_none());
        std::fs::remove_file(&socket).expect("it was killed, so its socket is there");
    }
    qmp.refused("blockdev-del", json!({ "node-name": "far" }));
    steered.server.stop();
}

/// Two commands in one packet: the second one is done when the first one is.
fn both(steered: &Steered, commands: [(&str, Value); 2]) -> [Value; 2] {
    let mut qmp = steered.talk();
    let line = |(name, arguments): (&str, Value)| {
        format!("{}\n", json!({ "execute": name, "arguments": arguments, "id": name }))
    };
    let [first, second] = commands;
    let names = [first.0, second.0];
    qmp.send(format!("{}{}", line(first), line(second)).as_bytes()).expect("it listens");
    names.map(|name| {
        loop {
            let answer = qmp.line().expect("an answer");
            if answer["id"] == name {
                return answer;
            }
        }
    })
}

/// QEMU has done both when it answers. A client that used the id of a job again at once was informed that the job is there.
#[test]
fn a_job_that_is_dismissed_is_gone_and_one_that_is_finalized_has_concluded_when_that_is_answered() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    qmp.ok("blockdev-add", qcow2("t", &create(&steered.scratch, "t", "64M")));
    let backup = json!({ "job-id": "j", "device": "a", "target": "t", "sync": "full", "auto-finalize": false,
        "auto-dismiss": false });
    qmp.ok("blockdev-backup", backup.clone());
    for _ in 0..10 {
        status(&mut qmp, "j", "pending");
        let [done, jobs] =
            both(&steered, [("job-finalize", json!({ "id": "j" })), ("query-jobs", json!({}))]);
        assert!(done["error"].is_null(), "{done}");
        assert_eq!(jobs["return"][0]["status"], "concluded", "{jobs}");
        completed(&mut qmp, "j");
        let [gone, next] =
            both(&steered, [("job-dismiss", json!({ "id": "j" })), ("blockdev-backup", backup.clone())]);
        assert!(gone["error"].is_null() && next["error"].is_null(), "{gone} {next}");
    }
    status(&mut qmp, "j", "pending");
    qmp.ok("job-cancel", json!({ "id": "j" }));
    status(&mut qmp, "j", "concluded");
    let [_, removed] = both(
        &steered,
        [("job-dismiss", json!({ "id": "j" })), ("blockdev-del", json!({ "node-name": "t" }))],
    );
    assert!(removed["error"].is_null(), "{removed}");
    steered.server.stop();
}

/// Of several nodes those before the one that is refused have their new options.
#[test]
fn a_reopening_that_fails_names_the_nodes_that_have_changed() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let mut options = ["b", "c"].map(|name| qcow2(name, &create(&steered.scratch, name, "1M")));
    for options in &options {
        qmp.ok("blockdev-add", options.clone());
    }
    options[0]["discard"] = json!("unmap");
    options[1]["cache"] = json!({ "no-flush": true });
    let refused = qmp.refused("blockdev-reopen", json!({ "options": options }));
    assert!(
        refused.contains("cache.no-flush") && refused.ends_with("have their new options: b"),
        "{refused}"
    );
    assert_eq!(node(&mut qmp, "b").expect("it is there")["discard"], "unmap");
    options.reverse();
    let refused = qmp.refused("blockdev-reopen", json!({ "options": options }));
    assert!(!refused.contains("new options"), "{refused}");
    steered.server.stop();
}

/// What a client of another session wrote is in flight when the server of NBD is stopped: at its answer the exports are gone, and bitmaps and
/// nodes that they had are free.
#[test]
fn the_exports_of_a_server_that_is_stopped_are_gone_when_that_is_answered() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    qmp.ok("nbd-server-stop", json!({}));
    let socket = steered.scratch.name("n");
    for round in 0..20 {
        qmp.ok("nbd-server-start", json!({ "addr": { "type": "unix", "data": { "path": socket } } }));
        qmp.ok("block-dirty-bitmap-add", json!({ "node": "a", "name": "b", "persistent": true }));
        qmp.ok(
            "block-export-add",
            json!({ "type": "nbd", "id": "e", "node-name": "a", "writable": true, "bitmaps": ["b"] }),
        );
        let mut clients: Vec<_> =
            (0..4).map(|_| black_box::Client::connect(socket.as_ref(), "a").expect("it serves")).collect();
        let data = vec![round; 1 << 20];
        for (at, client) in clients.iter_mut().enumerate() {
            let write = black_box::client::Request::write((at as u64) << 20, &data);
            client.send(&write).expect("it is read");
        }
        let stopped = both(
            &steered,
            [
                ("nbd-server-stop", json!({})),
                ("block-dirty-bitmap-remove", json!({ "node": "a", "name": "b" })),
            ],
        );
        assert!(stopped.iter().all(|answer| answer["error"].is_null()), "round {round}: {stopped:?}");
    }
    steered.server.stop();
}
