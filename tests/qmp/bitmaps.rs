//! A persistent bitmap that misses writes says so before it is used.

use black_box::peer::qemu_img;
use black_box::{Run, Server, cowhand};
use serde_json::{Value, json};

use super::{Steered, create, qcow2};

/// The bitmaps of an image that nobody has open, as QEMU shows them: names and flags.
fn shown_by_qemu(path: &str) -> Vec<(String, Vec<String>)> {
    let info = qemu_img(["info", "--output=json", path]).json();
    let bitmaps = info["format-specific"]["data"]["bitmaps"].as_array().cloned().unwrap_or_default();
    bitmaps.iter().map(name_and_flags).collect()
}

fn name_and_flags(bitmap: &Value) -> (String, Vec<String>) {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    (text(&bitmap["name"]), bitmap["flags"].as_array().expect("flags").iter().map(text).collect())
}

fn flags(name: &str, flags: &[&str]) -> (String, Vec<String>) {
    (name.to_owned(), flags.iter().map(|flag| (*flag).to_owned()).collect())
}

/// A user took incremental backups by two bitmaps. A server of ours wrote to the disk, said nothing, and the next
/// increment was refused weeks later, when the full backup that it needed could not be made up for any more.
#[test]
fn the_first_write_tells_the_log_and_clients_which_bitmaps_it_puts_out_of_date() {
    let mut steered = Steered::new();
    let path = create(&steered.scratch, "b.qcow2", "16M");
    for words in [["--add", "inc"], ["--add", "other"], ["--add", "frozen"], ["--disable", "frozen"]] {
        qemu_img(["bitmap", words[0], &path, words[1]]).ok();
    }
    let mut qmp = steered.talk();
    qmp.ok("blockdev-add", qcow2("b", &path));
    let export = json!({ "type": "nbd", "id": "e", "node-name": "b", "writable": true });
    qmp.ok("block-export-add", export);
    let mut client = steered.server.client("b");
    client.read(0, 4096).expect("a read");
    let bitmaps = |qmp: &mut black_box::qmp::Qmp| -> Vec<(String, Vec<String>)> {
        let nodes = qmp.ok("query-named-block-nodes", json!({}));
        let node = nodes.as_array().expect("nodes").iter().find(|node| node["node-name"] == "b").cloned();
        let image = node.expect("b")["image"]["format-specific"]["data"]["bitmaps"].clone();
        image.as_array().expect("bitmaps").iter().map(name_and_flags).collect()
    };
    let before = vec![flags("inc", &["auto"]), flags("other", &["auto"]), flags("frozen", &[])];
    assert_eq!(bitmaps(&mut qmp), before);
    assert!(!steered.server.stderr().contains("out of date"), "nothing was written yet");
    for number in 0..20_u8 {
        client.write(u64::from(number) << 16, &[number; 4096]).expect("a write");
    }
    let told = qmp.event("X_BLOCK_DIRTY_BITMAPS_INVALIDATED");
    let expected = json!({ "device": "b", "node-name": "b", "bitmaps": ["inc", "other"], "count": 2 });
    assert_eq!(told["data"], expected);
    steered
        .server
        .wait_until(|server| server.stderr().contains("out of date").then_some(()))
        .expect("a warning");
    let after =
        vec![flags("inc", &["in-use", "auto"]), flags("other", &["in-use", "auto"]), flags("frozen", &[])];
    assert_eq!(bitmaps(&mut qmp), after);
    drop(client);
    qmp.ok("block-export-del", json!({ "id": "e", "mode": "hard" }));
    qmp.event("BLOCK_EXPORT_DELETED");
    qmp.ok("blockdev-del", json!({ "node-name": "b" }));
    assert_eq!(shown_by_qemu(&path), after);
    // What is out of date already is no news.
    qmp.ok("blockdev-add", qcow2("b", &path));
    qmp.ok("block-export-add", json!({ "type": "nbd", "id": "e", "node-name": "b", "writable": true }));
    steered.server.client("b").write(0, &[1; 512]).expect("a write");
    let log = steered.server.stderr();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("out of date")).collect();
    assert_eq!(warnings.len(), 1, "{log}");
    for part in ["WARN", "b.qcow2", "\"inc\", \"other\""] {
        assert!(warnings[0].contains(part), "{part}: {}", warnings[0]);
    }
    assert!(!warnings[0].contains("frozen"), "{}", warnings[0]);
    steered.server.stop();
}

/// The event would come with the next look at the disks, a second later: the disk was gone by then, and the news with it.
#[test]
fn a_disk_that_is_removed_at_once_still_tells_of_its_bitmaps() {
    let steered = Steered::new();
    let path = create(&steered.scratch, "b.qcow2", "16M");
    qemu_img(["bitmap", "--add", &path, "inc"]).ok();
    let mut qmp = steered.talk();
    for _ in 0..3 {
        qmp.ok("blockdev-add", qcow2("b", &path));
        qmp.ok("blockdev-snapshot-internal-sync", json!({ "device": "b", "name": "s" }));
        qmp.ok("blockdev-del", json!({ "node-name": "b" }));
        assert_eq!(qmp.event("X_BLOCK_DIRTY_BITMAPS_INVALIDATED")["data"]["bitmaps"], json!(["inc"]));
        qemu_img(["bitmap", "--remove", &path, "inc"]).ok();
        qemu_img(["snapshot", "-d", "s", &path]).ok();
        qemu_img(["bitmap", "--add", &path, "inc"]).ok();
    }
    steered.server.stop();
}

#[test]
fn names_of_bitmaps_cost_a_log_line_of_bounded_length() {
    let scratch = black_box::Scratch::new();
    let path = create(&scratch, "a.qcow2", "1M");
    let names: Vec<String> = (0..40).map(|number| format!("{number:03}{}", "n".repeat(1000))).collect();
    for name in &names {
        qemu_img(["bitmap", "--add", &path, name]).ok();
    }
    let mut server = Server::start([&path]);
    server.client("a").write(0, &[1; 512]).expect("a write");
    server.wait_until(|server| server.stderr().contains("out of date").then_some(())).expect("a warning");
    let log = server.stderr();
    let line = log.lines().find(|line| line.contains("out of date")).expect("it is there");
    assert!(line.contains("and 32 more") && line.len() < 10_000, "{} bytes", line.len());
    server.stop();
}

#[test]
fn a_tool_that_changes_an_image_tells_of_its_bitmaps() {
    let scratch = black_box::Scratch::new();
    let path = create(&scratch, "a.qcow2", "1M");
    qemu_img(["bitmap", "--add", &path, "inc"]).ok();
    let outcome = cowhand(["snapshot", "-c", "s", &path]).outcome();
    assert!(outcome.status.success() && outcome.stderr.contains("\"inc\""), "{outcome}");
    assert_eq!(shown_by_qemu(&path), [flags("inc", &["in-use", "auto"])]);
    let listed: Run = cowhand(["snapshot", "-l", &path]);
    assert_eq!(listed.outcome().stderr, "");
}
