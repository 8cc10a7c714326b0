//! What an answer means: the command is done, and a command that failed has changed nothing, or its error says what it changed.

use black_box::QemuNbd;
use serde_json::json;

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
            let told = qmp.event("BLOCK_IO_ERROR");
            assert_eq!(
                (&told["data"]["node-name"], &told["data"]["operation"]),
                (&json!("far"), &json!("write"))
            );
        }
        assert!(node(&mut qmp, "far").is_none());
        std::fs::remove_file(&socket).expect("it was killed, so its socket is there");
    }
    qmp.refused("blockdev-del", json!({ "node-name": "far" }));
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
