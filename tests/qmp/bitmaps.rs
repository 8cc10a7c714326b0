//! Bitmaps over the control socket and over NBD: made, changed, kept up to date, read by QEMU afterwards.

use black_box::peer::{dirty, dirty_by_qemu, qemu_img};
use black_box::{Run, Server, cowhand};
use serde_json::{Value, json};

use super::{Steered, create, qcow2};

/// The bitmaps of an image that no process has open, as QEMU shows them: names and flags.
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

fn dirty_by_us(server: &Server, export: &str, bitmap: &str) -> Vec<(u64, u64)> {
    let context = format!("--map=qemu:dirty-bitmap:{bitmap}");
    dirty(&Run::new("nbdinfo").args(["--json", &context, &server.uri(export)]).json())
}

/// What a query tells of the bitmaps of node "b", by name.
fn reported(qmp: &mut black_box::qmp::Qmp, name: &str) -> Option<Value> {
    let node = super::node(qmp, "b")?;
    let bitmaps = node["dirty-bitmaps"].as_array().cloned().unwrap_or_default();
    bitmaps.into_iter().find(|bitmap| bitmap["name"] == name)
}

fn export(bitmaps: &[&str]) -> Value {
    json!({ "type": "nbd", "id": "e", "node-name": "b", "name": "b", "writable": true, "bitmaps": bitmaps })
}

/// A user took incremental backups by two bitmaps. A server of ours wrote to the disk, and the next increment had to be a full backup.
#[test]
fn what_clients_write_is_in_bitmaps_when_qemu_reads_them() {
    let steered = Steered::new();
    let path = create(&steered.scratch, "b.qcow2", "64M");
    for words in [["--add", "inc"], ["--add", "frozen"], ["--disable", "frozen"]] {
        qemu_img(["bitmap", words[0], &path, words[1]]).ok();
    }
    let mut qmp = steered.talk();
    qmp.ok("blockdev-add", qcow2("b", &path));
    let fine = json!({ "node": "b", "name": "fine", "granularity": 4096, "persistent": true });
    qmp.ok("block-dirty-bitmap-add", fine);
    qmp.ok("block-export-add", export(&["inc", "frozen", "fine"]));
    let mut client = steered.server.client("b");
    client.write((1 << 20) + 5, &[1; 10]).expect("a write");
    client.write_zeroes(8 << 20, 100 << 10, 0).expect("zeroes");
    client.write(30 << 20, &[2; 1 << 20]).expect("a write");
    let inc = [(1 << 20, 64 << 10), (8 << 20, 128 << 10), (30 << 20, 1 << 20)];
    let fine = [(1 << 20, 4 << 10), (8 << 20, 100 << 10), (30 << 20, 1 << 20)];
    assert_eq!(dirty_by_us(&steered.server, "b", "inc"), inc);
    assert_eq!(dirty_by_us(&steered.server, "b", "fine"), fine);
    assert_eq!(dirty_by_us(&steered.server, "b", "frozen"), []);
    let now = reported(&mut qmp, "fine").expect("it is there");
    let expected = json!({
        "name": "fine", "count": (4 << 10) + (100 << 10) + (1 << 20), "granularity": 4096,
        "recording": true, "busy": true, "persistent": true,
    });
    assert_eq!(now, expected);
    drop(client);
    steered.server.stop();
    assert_eq!(
        shown_by_qemu(&path),
        [flags("inc", &["auto"]), flags("frozen", &[]), flags("fine", &["auto"])]
    );
    assert_eq!(dirty_by_qemu(&path, "inc"), inc);
    assert_eq!(dirty_by_qemu(&path, "fine"), fine);
    assert_eq!(dirty_by_qemu(&path, "frozen"), []);
    qemu_img(["check", "-q", &path]).ok();
}

#[test]
fn bitmaps_are_made_changed_and_removed_as_qemu_does_it() {
    let steered = Steered::new();
    let path = create(&steered.scratch, "b.qcow2", "16M");
    let mut qmp = steered.talk();
    qmp.ok("blockdev-add", qcow2("b", &path));
    qmp.ok("block-export-add", export(&[]));
    let which = |name: &str| json!({ "node": "b", "name": name });
    let add = |qmp: &mut black_box::qmp::Qmp, name: &str, more: Value| {
        let mut arguments = which(name);
        arguments.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
        qmp.ok("block-dirty-bitmap-add", arguments);
    };
    add(&mut qmp, "m", json!({ "granularity": 65536 }));
    add(&mut qmp, "p", json!({ "persistent": true, "disabled": true }));
    let mut client = steered.server.client("b");
    let count = |qmp: &mut black_box::qmp::Qmp, name: &str| {
        reported(qmp, name).expect("it is there")["count"].clone()
    };
    client.write(0, &[1; 512]).expect("a write");
    assert_eq!((count(&mut qmp, "m"), count(&mut qmp, "p")), (json!(65536), json!(0)));
    qmp.ok("block-dirty-bitmap-enable", which("p"));
    qmp.ok("block-dirty-bitmap-disable", which("m"));
    client.write(1 << 20, &[1; 512]).expect("a write");
    assert_eq!((count(&mut qmp, "m"), count(&mut qmp, "p")), (json!(65536), json!(65536)));
    qmp.ok("block-dirty-bitmap-merge", json!({ "node": "b", "target": "p", "bitmaps": ["m"] }));
    assert_eq!(count(&mut qmp, "p"), json!(131_072));
    let sum = |qmp: &mut black_box::qmp::Qmp, name: &str| {
        qmp.ok("x-debug-block-dirty-bitmap-sha256", which(name))["sha256"].clone()
    };
    let before = sum(&mut qmp, "m");
    qmp.ok("block-dirty-bitmap-clear", which("m"));
    assert_ne!(sum(&mut qmp, "m"), before);
    let sources = json!([{ "node": "b", "name": "p" }]);
    qmp.ok("block-dirty-bitmap-merge", json!({ "node": "b", "target": "m", "bitmaps": sources }));
    assert_eq!(sum(&mut qmp, "m"), sum(&mut qmp, "p"));
    for (command, arguments, word) in [
        ("block-dirty-bitmap-add", which("p"), "already"),
        ("block-dirty-bitmap-add", json!({ "node": "b", "name": "x", "granularity": 1000 }), "power of two"),
        ("block-dirty-bitmap-add", json!({ "node": "a", "name": "", "persistent": true }), "name"),
        ("block-dirty-bitmap-clear", which("none"), "no bitmap"),
        ("block-dirty-bitmap-merge", json!({ "node": "b", "target": "p", "bitmaps": ["m", "none"] }), "none"),
        ("x-debug-block-dirty-bitmap-sha256", which("none"), "no bitmap"),
    ] {
        let refused = qmp.refused(command, arguments);
        assert!(refused.contains(word), "{command}: {refused}");
    }
    qmp.ok("block-dirty-bitmap-remove", which("m"));
    assert!(reported(&mut qmp, "m").is_none());
    qmp.ok("block_resize", json!({ "node-name": "b", "size": 32 << 20 }));
    drop(client);
    qmp.ok("block-export-del", json!({ "id": "e", "mode": "hard" }));
    qmp.event("BLOCK_EXPORT_DELETED");
    qmp.ok("block-export-add", export(&["p"]));
    let busy = qmp.refused("block-dirty-bitmap-remove", which("p"));
    assert!(busy.contains("\"e\""), "{busy}");
    steered.server.stop();
    assert_eq!(dirty_by_qemu(&path, "p"), [(0, 64 << 10), (1 << 20, 64 << 10)]);
}

/// Tools that compare lists of bitmaps saw those made in one session the other way round.
#[test]
fn bitmaps_have_the_order_that_qemu_gives_them() {
    let steered = Steered::new();
    let path = create(&steered.scratch, "b.qcow2", "16M");
    for name in ["one", "two"] {
        qemu_img(["bitmap", "--add", &path, name]).ok();
    }
    let mut qmp = steered.talk();
    qmp.ok("blockdev-add", qcow2("b", &path));
    for name in ["three", "four", "five", "six"] {
        qmp.ok("block-dirty-bitmap-add", json!({ "node": "b", "name": name, "persistent": name != "five" }));
    }
    for name in ["two", "four"] {
        qmp.ok("block-dirty-bitmap-remove", json!({ "node": "b", "name": name }));
    }
    qmp.ok("block-dirty-bitmap-add", json!({ "node": "b", "name": "seven", "persistent": true }));
    let node = super::node(&mut qmp, "b").expect("it is there");
    let bitmaps = node["dirty-bitmaps"].as_array().expect("bitmaps").iter();
    let names: Vec<_> = bitmaps.map(|bitmap| bitmap["name"].clone()).collect();
    assert_eq!(names, ["seven", "six", "five", "three", "one"]);
    steered.server.stop();
    let names: Vec<_> = shown_by_qemu(&path).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["one", "seven", "six", "three"]);
}

/// A bitmap in memory kept the disk below a snapshot open for writing, and its bitmaps in use: a killed server left them inconsistent for QEMU.
#[test]
fn bitmaps_below_a_snapshot_are_stored_beside_one_in_memory() {
    let steered = Steered::new();
    let path = create(&steered.scratch, "b.qcow2", "16M");
    let mut qmp = steered.talk();
    qmp.ok("blockdev-add", qcow2("b", &path));
    qmp.ok("block-export-add", export(&[]));
    for persistent in [false, true] {
        let name = if persistent { "stored" } else { "in memory" };
        qmp.ok("block-dirty-bitmap-add", json!({ "node": "b", "name": name, "persistent": persistent }));
    }
    let mut client = steered.server.client("b");
    client.write(1 << 20, &[1; 512]).expect("a write");
    let over = json!({ "node-name": "b", "snapshot-file": steered.scratch.name("over"), "snapshot-node-name": "over" });
    qmp.ok("blockdev-snapshot-sync", over);
    client.write(2 << 20, &[2; 512]).expect("a write");
    steered.server.kill();
    assert_eq!(shown_by_qemu(&path), [flags("stored", &["auto"])]);
    assert_eq!(dirty_by_qemu(&path, "stored"), [(1 << 20, 64 << 10)]);
}

/// The names of bitmaps beside "first", which alone finds room in memory: bits of 512 bytes on a disk of 1 TiB.
fn too_many(path: &str, names: &[&str]) {
    for name in [&["first"], names].concat() {
        qemu_img(["bitmap", "--add", "-g", "512", path, name]).ok();
    }
}

/// The event would come with the next look at the disks, a second later: the disk was gone by then, and the news with it.
#[test]
fn a_disk_that_is_removed_at_once_still_tells_of_bitmaps_that_are_not_kept_up_to_date() {
    let steered = Steered::new();
    let path = create(&steered.scratch, "b.qcow2", "1T");
    too_many(&path, &["inc", "other"]);
    let mut qmp = steered.talk();
    qmp.ok("blockdev-add", qcow2("b", &path));
    qmp.ok("blockdev-snapshot-internal-sync", json!({ "device": "b", "name": "s" }));
    let inc = reported(&mut qmp, "inc").expect("it is reported");
    assert_eq!((&inc["inconsistent"], &inc["recording"]), (&json!(true), &json!(false)));
    qmp.ok("blockdev-del", json!({ "node-name": "b" }));
    let news = &qmp.event("X_BLOCK_DIRTY_BITMAPS_INVALIDATED")["data"];
    assert_eq!(*news, json!({ "device": "b", "node-name": "b", "bitmaps": ["inc", "other"], "count": 2 }));
    let log = steered.server.stderr();
    assert!(log.contains("out of date") && log.contains("larger granularity"), "{log}");
    let lost = ["in-use", "auto"];
    assert_eq!(shown_by_qemu(&path), [flags("first", &["auto"]), flags("inc", &lost), flags("other", &lost)]);
    steered.server.stop();
}

#[test]
fn names_of_bitmaps_cost_a_log_line_of_bounded_length() {
    let scratch = black_box::Scratch::new();
    let path = create(&scratch, "a.qcow2", "1T");
    let names: Vec<String> = (0..10).map(|number| format!("{number:03}{}", "n".repeat(1000))).collect();
    too_many(&path, &names.iter().map(String::as_str).collect::<Vec<_>>());
    let mut server = Server::start([&path]);
    server.client("a").write(0, &[1; 512]).expect("a write");
    server.wait_until(|server| server.stderr().contains("out of date").then_some(())).expect("a warning");
    let log = server.stderr();
    let line = log.lines().find(|line| line.contains("out of date")).expect("it is there");
    assert!(line.contains("and 2 more") && line.len() < 10_000, "{} bytes", line.len());
    server.stop();
}

#[test]
fn a_tool_that_changes_an_image_keeps_its_bitmaps() {
    let scratch = black_box::Scratch::new();
    let path = create(&scratch, "a.qcow2", "1M");
    qemu_img(["bitmap", "--add", &path, "inc"]).ok();
    for words in [["snapshot", "-c", "s"], ["snapshot", "-a", "s"], ["snapshot", "-d", "s"]] {
        let outcome = cowhand([&words[..], &[&path]].concat()).outcome();
        assert!(outcome.status.success() && outcome.stderr.is_empty(), "{outcome}");
        assert_eq!(shown_by_qemu(&path), [flags("inc", &["auto"])]);
    }
    // Going back to a snapshot may have changed anything.
    assert_eq!(dirty_by_qemu(&path, "inc"), [(0, 1 << 20)]);
}

/// Backups of raw disks by bitmaps that go with the server: Proxmox's way. They needed a qcow2 image, or a file for them.
#[test]
fn any_disk_has_bitmaps_in_memory_while_clients_write() {
    let steered = Steered::new();
    let (path, copy) = (create(&steered.scratch, "raw", "64M"), create(&steered.scratch, "copy", "64M"));
    let mut qmp = steered.talk();
    for (path, more) in [(&path, ""), (&copy, "-copy")] {
        std::fs::File::create(path).and_then(|file| file.set_len(64 << 20)).expect("a raw disk");
        let file = json!({ "driver": "file", "filename": path });
        qmp.ok("blockdev-add", json!({ "driver": "raw", "node-name": format!("b{more}"), "file": file }));
    }
    qmp.ok("blockdev-add", json!({ "driver": "null-co", "node-name": "n", "size": 1 << 20 }));
    qmp.ok("block-export-add", export(&[]));
    let mut client = steered.server.client("b");
    client.write(0, &[1; 65536]).expect("a write");
    let bitmap =
        |node: &str, persistent: bool| json!({ "node": node, "name": "m", "persistent": persistent });
    let refused = qmp.refused("block-dirty-bitmap-add", bitmap("b", true));
    assert!(refused.contains("bitmaps"), "{refused}");
    let action = json!({ "type": "block-dirty-bitmap-add", "data": bitmap("b", false) });
    qmp.refused("transaction", json!({ "actions": [action, { "type": "abort", "data": {} }] }));
    assert_eq!(reported(&mut qmp, "m"), None);
    qmp.ok("transaction", json!({ "actions": [action] }));
    qmp.ok("block-dirty-bitmap-add", bitmap("n", false));
    client.write((1 << 20) + 5, &[2; 10]).expect("a write");
    client.write_zeroes(8 << 20, 100 << 10, 0).expect("zeroes");
    let shown = json!({ "type": "nbd", "id": "s", "node-name": "b", "name": "s", "bitmaps": ["m"] });
    qmp.ok("block-export-add", shown);
    let dirty = [(1 << 20, 64 << 10), (8 << 20, 128 << 10)];
    assert_eq!(dirty_by_us(&steered.server, "s", "m"), dirty);
    qmp.ok("block-export-del", json!({ "id": "s", "mode": "hard" }));
    qmp.event_of("BLOCK_EXPORT_DELETED", "id", "s");
    let backup = json!({
        "job-id": "j", "device": "b", "target": "b-copy", "sync": "incremental", "bitmap": "m",
    });
    qmp.ok("blockdev-backup", backup);
    super::jobs::completed(&mut qmp, "j");
    assert_eq!(reported(&mut qmp, "m").expect("it is there")["count"], 0);
    client.write(2 << 20, &[3; 512]).expect("a write");
    assert_eq!(reported(&mut qmp, "m").expect("it is there")["count"], 65536);
    qmp.ok("block_resize", json!({ "node-name": "b", "size": 65 << 20 }));
    qmp.ok("block-dirty-bitmap-remove", json!({ "node": "b", "name": "m" }));
    drop(client);
    steered.server.stop();
    let [disk, copied] = [&path, &copy].map(|path| std::fs::read(path).expect("it is there"));
    assert_eq!(disk.len(), 65 << 20);
    for (at, length) in dirty {
        let range = at as usize..(at + length) as usize;
        assert_eq!(disk[range.clone()], copied[range], "{at}");
    }
    assert!(copied[..1 << 20].iter().all(|byte| *byte == 0), "what was written before is no increment");
    let kept: Vec<_> = std::fs::read_dir(steered.scratch.path()).expect("a directory").flatten().collect();
    assert!(kept.iter().all(|entry| !entry.file_name().to_string_lossy().contains("bitmap")), "{kept:?}");
}
