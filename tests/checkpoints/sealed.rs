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

/// A server, and every checkpoint after it, went on over a layer that had been written.
#[test]
fn a_disk_over_a_layer_that_has_changed_is_neither_served_nor_sealed() {
    use std::os::unix::fs::PermissionsExt;

    let (lineage, ..) = scene();
    let log = lineage.log();
    let lowest = log["disks"][0]["layers"][1].as_str().expect("an id");
    let lowest = lineage.name(&format!("layers/{lowest}.qcow2"));
    let disk = lineage.name("d.qcow2");
    let sealed = std::fs::metadata(&lowest).and_then(|found| found.modified()).expect("a layer");
    let set = |time| {
        let mode = |mode| std::fs::set_permissions(&lowest, std::fs::Permissions::from_mode(mode));
        mode(0o644).expect("a layer");
        let file = std::fs::File::options().write(true).open(&lowest).expect("a layer");
        file.set_modified(time).expect("a time");
        mode(0o444).expect("a layer");
    };
    set(sealed + std::time::Duration::from_secs(1));
    for words in [
        &["checkpoint", &disk][..],
        &["fork", &format!("{disk}@second"), &lineage.name("f.qcow2")],
        &["serve", "--socket", &lineage.name("n"), &disk],
    ] {
        let said = cowhand(words).fails();
        assert!(
            said.contains("has changed since it was sealed") && said.contains("cp -a"),
            "{words:?}: {said}"
        );
    }
    // A copy of the lineage keeps the time.
    set(sealed);
    cowhand(["checkpoint", "-q", &disk, "third"]).ok();
    lineage.serve().stop();
    lineage.is_sound();
}

/// The directory of the layers was left by a user who could not seal one, and was that user's.
#[test]
fn for_a_disk_that_cannot_be_sealed_nothing_is_made() {
    let scratch = black_box::Scratch::new();
    let disk = scratch.name("d.qcow2");
    cowhand(["create", "-q", "-f", "qcow2", &disk, "1M"]).ok();
    std::fs::hard_link(&disk, scratch.name("other")).expect("a link");
    let said = cowhand(["checkpoint", &disk]).fails();
    assert!(said.contains("2 names") && !scratch.file("layers").exists(), "{said}");
}

/// "No file with a path of its own", it said, and not which path.
#[test]
fn a_disk_whose_directory_moved_is_named_by_the_path_that_it_had() {
    let lineage = Lineage::new();
    let home = lineage.scratch.file("home");
    std::fs::create_dir(&home).expect("a directory");
    let disk = home.join("m.qcow2");
    let disk = disk.to_str().expect("text");
    cowhand(["create", "-q", "-f", "qcow2", disk, "1M"]).ok();
    let server = lineage.serve_disk(disk);
    std::fs::rename(&home, lineage.scratch.file("away")).expect("a move");
    let said = cowhand(["checkpoint", &lineage.name("qmp")]).fails();
    assert!(said.contains(disk) && said.contains("moved"), "{said}");
    server.stop();
}
