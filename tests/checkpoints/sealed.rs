//! Sealed layers stay as they are also for root, whom their mode does not stop: the tests are root.

use black_box::cowhand;
use black_box::qmp::Qmp;
use serde_json::json;

use super::Lineage;

/// A disk over two layers, the path of the upper one and its content.
fn scene() -> (Lineage, String, Vec<u8>) {
    let lineage = Lineage::new();
    cowhand(["io", "-c", "write -P 7 0 64k", &lineage.name("d.qcow2")]).ok();
    cowhand(["checkpoint", "-q", &lineage.name("d.qcow2"), "second"]).ok();
    let log = lineage.log();
    let id = log["disks"][0]["layers"][0].as_str().expect("an id").to_owned();
    let layer = lineage.name(&format!("layers/{id}.qcow2"));
    let content = std::fs::read(&layer).expect("a layer");
    (lineage, layer, content)
}

/// `commit` as root wrote into a checkpoint: every fork of it read what was never in it.
#[test]
fn no_tool_writes_into_a_sealed_layer_and_each_says_what_to_do_instead() {
    let (lineage, layer, content) = scene();
    let disk = lineage.name("d.qcow2");
    cowhand(["io", "-c", "write -P 8 0 64k", &disk]).ok();
    let link = lineage.name("link.qcow2");
    std::os::unix::fs::symlink(&layer, &link).expect("a link");
    let tools: [&[&str]; 11] = [
        &["commit", &disk],
        &["rebase", "-b", "", &layer],
        &["rebase", "-u", "-b", "", &layer],
        &["amend", "-o", "lazy_refcounts=on", &layer],
        &["resize", &layer, "128M"],
        &["snapshot", "-c", "s", &layer],
        &["bitmap", "--add", &layer, "b"],
        &["io", "-c", "write 0 4k", &link],
        &["check", "-r", "all", &layer],
        &["convert", "-O", "qcow2", &disk, &layer],
        &["serve", &layer],
    ];
    for words in tools {
        let said = cowhand(words).fails();
        assert!(said.contains("sealed layer") && said.contains("cowhand fork"), "{words:?}: {said}");
    }
    assert!(std::fs::read(&layer).expect("a layer") == content);
    lineage.reads("d.qcow2", &["read -P 8 0 64k"]);
    // What reads goes on, and so do merges of the lineage.
    cowhand(["check", &layer]).ok();
    cowhand(["forget", "-q", &disk]).ok();
    lineage.is_sound();
}

#[test]
fn no_job_of_a_server_writes_into_a_sealed_layer() {
    let (lineage, layer, content) = scene();
    let server = lineage.serve();
    let mut qmp = Qmp::connect(lineage.name("qmp").as_ref());
    let said = qmp.refused("block-commit", json!({ "device": "d", "job-id": "j" }));
    assert!(said.contains("sealed layer"), "{said}");
    let file = json!({ "driver": "file", "filename": layer });
    let node = json!({ "driver": "qcow2", "node-name": "n", "file": file });
    let said = qmp.refused("blockdev-add", node);
    assert!(said.contains("sealed layer"), "{said}");
    server.stop();
    assert!(std::fs::read(&layer).expect("a layer") == content);
    lineage.is_sound();
}
