//! `quorum`: a disk that is read by vote of several, and repaired where one of them is wrong. As with QEMU's.

use std::os::unix::fs::FileExt;
use std::path::Path;

use black_box::client::Failed;
use black_box::peer::{qemu_img, qemu_io_ok};
use black_box::qmp::Qmp;
use black_box::{Client, Scratch, cowhand};
use serde_json::{Value, json};

use super::backups::Daemon;
use super::jobs::{Load, backing_of, completed, holds, reported as event_of_job};
use super::{Steered, create, node, qcow2};

const SECTOR: usize = 512;

/// Three raw files of 1 MiB, of sevens.
fn files(scratch: &Scratch, begin: &str) -> [String; 3] {
    [0, 1, 2].map(|number| {
        let name = format!("{begin}-{number}");
        scratch.write(&name, &vec![7; 1 << 20]);
        scratch.name(&name)
    })
}

/// Writes past everybody who has the file open.
fn spoil(path: &str, sector: usize) {
    let file = std::fs::File::options().write(true).open(path).expect("a file");
    file.write_all_at(&[9; SECTOR], (sector * SECTOR) as u64).expect("a write");
}

fn child(name: &str, path: &str) -> Value {
    json!({ "driver": "file", "node-name": name, "filename": path })
}

/// A quorum `q` of the files, exported under that name.
fn begin(qmp: &mut Qmp, socket: &Path, files: &[String; 3], more: &Value) -> Client {
    let children: Vec<Value> =
        files.iter().enumerate().map(|(number, path)| child(&format!("c{number}"), path)).collect();
    let mut quorum =
        json!({ "driver": "quorum", "node-name": "q", "vote-threshold": 2, "children": children });
    let more = more.as_object().expect("an object").clone();
    quorum.as_object_mut().expect("an object").extend(more);
    qmp.ok("blockdev-add", quorum);
    qmp.ok("block-export-add", json!({ "type": "nbd", "id": "q", "node-name": "q", "writable": true }));
    Client::connect(socket, "q").expect("it serves")
}

fn end(qmp: &mut Qmp, client: Client) {
    drop(client);
    qmp.ok("block-export-del", json!({ "id": "q", "mode": "hard" }));
    qmp.event_of("BLOCK_EXPORT_DELETED", "id", "q");
    qmp.ok("blockdev-del", json!({ "node-name": "q" }));
}

/// What an event says but for its text of an error, which is for people.
fn reported(qmp: &mut Qmp, event: &str) -> Value {
    let mut data = qmp.event(event)["data"].clone();
    if let Some(error) = data.get_mut("error") {
        *error = json!("");
    }
    data
}

/// Both servers, one after the other, each with files of its own.
fn with_both(name: &str, test: impl Fn(&mut Qmp, &Path, [String; 3])) {
    let steered = Steered::new();
    let scratch = &steered.scratch;
    let (_daemon, mut theirs) = Daemon::with(&scratch.file("daemon"), &create(scratch, "other", "1M"));
    let socket = scratch.file("nbd");
    theirs.ok("nbd-server-start", json!({ "addr": { "type": "unix", "data": { "path": socket } } }));
    test(&mut theirs, &socket, files(scratch, &format!("theirs-{name}")));
    test(&mut steered.talk(), steered.server.socket(), files(scratch, &format!("ours-{name}")));
    steered.server.stop();
}

/// A medium gives other bytes than were written to it, and says nothing: the guest reads what it wrote.
#[test]
fn a_disk_that_reads_otherwise_is_outvoted_and_reported_of() {
    with_both("vote", |qmp, socket, files| {
        let mut client = begin(qmp, socket, &files, &json!({}));
        client.write(0, &[8; 4096]).expect("a write");
        client.flush().expect("a flush");
        for path in &files {
            assert!(std::fs::read(path).expect("a file").starts_with(&[8; 4096]), "{path}");
        }
        spoil(&files[1], 16);
        assert!(client.read(16 * SECTOR as u64, SECTOR as u32).expect("a read") == [7; SECTOR]);
        let expected = json!({ "type": "read", "node-name": "c1", "sector-num": 16, "sectors-count": 1 });
        assert_eq!(reported(qmp, "QUORUM_REPORT_BAD"), expected);
        // Two that are wrong, and not alike: what was there is unknown.
        spoil(&files[2], 16);
        let file = std::fs::File::options().write(true).open(&files[2]).expect("a file");
        file.write_all_at(&[10; SECTOR], 16 * SECTOR as u64).expect("a write");
        let failed = client.read(16 * SECTOR as u64, SECTOR as u32).expect_err("no two agree");
        assert!(matches!(failed, Failed::Refused(5)), "{failed:?}");
        let expected = json!({ "reference": "q", "sector-num": 16, "sectors-count": 1 });
        assert_eq!(reported(qmp, "QUORUM_FAILURE"), expected);
        end(qmp, client);
    });
}

/// What was outvoted is written anew, and nothing else.
#[test]
fn a_disk_that_was_outvoted_is_repaired_if_that_was_asked_for() {
    with_both("rewrite", |qmp, socket, files| {
        let mut client = begin(qmp, socket, &files, &json!({ "rewrite-corrupted": true }));
        spoil(&files[0], 3);
        assert!(client.read(3 * SECTOR as u64, SECTOR as u32).expect("a read") == [7; SECTOR]);
        assert_eq!(reported(qmp, "QUORUM_REPORT_BAD")["node-name"], "c0");
        client.flush().expect("a flush");
        end(qmp, client);
        for path in &files {
            assert!(std::fs::read(path).expect("a file") == vec![7; 1 << 20], "{path}");
        }
    });
}

/// Two disks are wrong in different places of one request. QEMU's votes on the whole of it, and fails.
#[test]
fn sectors_are_voted_on_and_repaired_one_by_one() {
    let steered = Steered::new();
    let files = files(&steered.scratch, "ours");
    let mut qmp = steered.talk();
    let mut client = begin(&mut qmp, steered.server.socket(), &files, &json!({ "rewrite-corrupted": true }));
    for (file, sector) in [(0, 1), (1, 5), (2, 9), (0, 10)] {
        spoil(&files[file], sector);
    }
    assert!(client.read(0, 64 << 10).expect("a read") == vec![7; 64 << 10]);
    end(&mut qmp, client);
    for path in &files {
        assert!(std::fs::read(path).expect("a file") == vec![7; 1 << 20], "{path}");
    }
    steered.server.stop();
}

/// One disk of three is full or breaks: guests go on. With two of them nothing is acknowledged that two do not have.
#[test]
fn a_write_is_acknowledged_when_as_many_as_the_threshold_have_it() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    let files = files(scratch, "ours");
    let broken = |number: usize| {
        let rule = json!({ "event": "none", "iotype": "write", "errno": 28 });
        let file = json!({ "driver": "file", "filename": files[number] });
        let file = json!({ "driver": "blkdebug", "image": file, "inject-error": [rule] });
        json!({ "driver": "raw", "node-name": format!("c{number}"), "file": file })
    };
    for (bad, acknowledged) in [(vec![2], true), (vec![1, 2], false)] {
        let children = [0, 1, 2].map(|number| {
            if bad.contains(&number) { broken(number) } else { child(&format!("c{number}"), &files[number]) }
        });
        let mut client = begin(&mut qmp, steered.server.socket(), &files, &json!({ "children": children }));
        assert_eq!(client.write(0, &[8; 4096]).is_ok(), acknowledged, "{bad:?}");
        for number in &bad {
            let expected = json!({ "type": "write", "error": "", "node-name": format!("c{number}"), "sector-num": 0, "sectors-count": 8 });
            assert_eq!(reported(&mut qmp, "QUORUM_REPORT_BAD"), expected);
        }
        if !acknowledged {
            assert_eq!(reported(&mut qmp, "QUORUM_FAILURE")["sectors-count"], 8);
        }
        end(&mut qmp, client);
    }
    steered.server.stop();
}

#[test]
fn a_quorum_that_cannot_be_is_refused_as_by_qemu() {
    with_both("refused", |qmp, _, files| {
        for (number, path) in files.iter().enumerate() {
            qmp.ok("blockdev-add", child(&format!("c{number}"), path));
        }
        let quorum = |threshold: u32, children: &[&str], more: Value| {
            let mut quorum = json!({ "driver": "quorum", "node-name": "q", "vote-threshold": threshold, "children": children });
            quorum.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            quorum
        };
        for refused in [
            quorum(2, &["c0"], json!({})),
            quorum(0, &["c0"], json!({})),
            quorum(1, &[], json!({})),
            quorum(1, &["none"], json!({})),
            quorum(2, &["c0", "c1", "c2"], json!({ "blkverify": true })),
            quorum(1, &["c0", "c1"], json!({ "blkverify": true })),
            quorum(1, &["c0", "c1"], json!({ "read-pattern": "lifo" })),
        ] {
            drop(qmp.refused("blockdev-add", refused));
        }
        for taken in [
            quorum(2, &["c0", "c1"], json!({ "blkverify": true })),
            quorum(1, &["c0", "c1", "c2"], json!({ "read-pattern": "fifo", "rewrite-corrupted": true })),
        ] {
            qmp.ok("blockdev-add", taken);
            qmp.ok("blockdev-del", json!({ "node-name": "q" }));
        }
    });
}

/// A drive line has the disks numbered; with `fifo` the first one that can be read is.
#[test]
fn a_tool_reads_a_quorum_as_qemu_does() {
    let scratch = Scratch::new();
    let files = files(&scratch, "f");
    spoil(&files[0], 0);
    let line = |pattern: &str| {
        let disks: String = files
            .iter()
            .enumerate()
            .map(|(number, path)| {
                format!(",children.{number}.driver=raw,children.{number}.file.driver=file,children.{number}.file.filename={path}")
            })
            .collect();
        format!("driver=quorum,vote-threshold=2,read-pattern={pattern}{disks}")
    };
    for (pattern, value) in [("quorum", 7), ("fifo", 9)] {
        let command = format!("read -P {value} 0 512");
        qemu_io_ok(&["--image-opts"], &line(pattern), &[&command]);
        drop(cowhand(["io", "--image-opts", "-c", &command]).arg(line(pattern)).ok());
    }
    let refused =
        cowhand(["io", "--image-opts", "-c", "read 0 512"]).arg("driver=quorum,vote-threshold=1").fails();
    assert!(refused.contains("option children is a list"), "{refused}");
}

/// A quorum `q` of three qcow2 images, `c0` to `c2`, each over a base, and exported; gives the images.
fn of_overlays(steered: &Steered, qmp: &mut Qmp) -> [String; 3] {
    let images = [0, 1, 2].map(|number| {
        let (base, image) = (format!("base-{number}"), steered.scratch.name(&format!("image-{number}")));
        let base = create(&steered.scratch, &base, "16M");
        qemu_io_ok(&["-f", "qcow2"], &base, &["write -P 7 8M 8M"]);
        qemu_img(["create", "-q", "-f", "qcow2", "-b", &base, "-F", "qcow2", &image]).ok();
        image
    });
    for (number, image) in images.iter().enumerate() {
        let mut node = qcow2(&format!("c{number}"), image);
        node["backing"] = qcow2(&format!("b{number}"), &steered.scratch.name(&format!("base-{number}")));
        qmp.ok("blockdev-add", node);
    }
    let children = ["c0", "c1", "c2"];
    let quorum = json!({ "driver": "quorum", "node-name": "q", "vote-threshold": 2, "children": children });
    qmp.ok("blockdev-add", quorum);
    qmp.ok("block-export-add", json!({ "type": "nbd", "id": "q", "node-name": "q", "writable": true }));
    images
}

fn children(qmp: &mut Qmp) -> Vec<(String, String)> {
    let node = node(qmp, "q").expect("it is there");
    let children = node["children"].as_array().expect("a list").iter();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    children.map(|child| (text(&child["child"]), text(&child["node-name"]))).collect()
}

/// A job on a disk of a quorum was refused, because others may not use it: but the disk reads the same.
#[test]
fn a_disk_of_a_quorum_takes_over_what_lies_below_it() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let images = of_overlays(&steered, &mut qmp);
    let load = Load::on(steered.server.socket(), "q", 2048);
    qmp.ok("block-stream", json!({ "job-id": "j", "device": "c1" }));
    completed(&mut qmp, "j");
    load.goes_on();
    // What is written to one of them alone makes them differ.
    let copy = create(&steered.scratch, "copy", "16M");
    qmp.ok("blockdev-add", qcow2("copy", &copy));
    let mirror = json!({ "job-id": "j", "device": "copy", "target": "c2", "sync": "full" });
    assert!(qmp.refused("blockdev-mirror", mirror).contains("in use by node \"q\""));
    let export = json!({ "type": "nbd", "id": "c", "node-name": "c2", "writable": true });
    assert!(qmp.refused("block-export-add", export).contains("in use by node \"q\""));
    let held = load.end();
    steered.server.stop();
    assert_eq!(backing_of(&images[1]), None);
    for image in &images {
        holds(image, &held, &steered.scratch);
        qemu_img(["compare", "-q", &images[0], image]).ok();
    }
}

/// A mirror of a quorum puts its copy in the place of one of the disks.
#[test]
fn a_copy_takes_the_place_of_a_disk_of_a_quorum() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let images = of_overlays(&steered, &mut qmp);
    let load = Load::on(steered.server.socket(), "q", 2048);
    let copy = create(&steered.scratch, "copy", "16M");
    qmp.ok("blockdev-add", qcow2("copy", &copy));
    let mirror = |replaces: &str, sync: &str| json!({ "job-id": "m", "device": "q", "target": "copy", "sync": sync, "replaces": replaces });
    assert!(qmp.refused("blockdev-mirror", mirror("b1", "full")).contains("no disk \"b1\""));
    assert!(qmp.refused("blockdev-mirror", mirror("c1", "top")).contains("give sync full"));
    qmp.ok("blockdev-mirror", mirror("c1", "full"));
    event_of_job(&mut qmp, "BLOCK_JOB_READY", "m");
    load.goes_on();
    // An export of the disk would change under its clients.
    let export = json!({ "type": "nbd", "id": "c", "node-name": "c1" });
    qmp.ok("block-export-add", export.clone());
    qmp.ok("job-complete", json!({ "id": "m" }));
    let ended = event_of_job(&mut qmp, "BLOCK_JOB_COMPLETED", "m");
    assert!(ended["error"].as_str().is_some_and(|error| error.contains("in use by export")), "{ended}");
    assert_eq!(children(&mut qmp)[1].1, "c1");
    qmp.ok("block-export-del", json!({ "id": "c", "mode": "hard" }));
    qmp.event_of("BLOCK_EXPORT_DELETED", "id", "c");
    load.goes_on();
    qmp.ok("blockdev-mirror", mirror("c1", "full"));
    event_of_job(&mut qmp, "BLOCK_JOB_READY", "m");
    qmp.ok("job-complete", json!({ "id": "m" }));
    completed(&mut qmp, "m");
    assert_eq!(children(&mut qmp)[1], ("children.1".to_owned(), "copy".to_owned()));
    load.goes_on();
    // The disk that was replaced is a node of its own again.
    qmp.ok("blockdev-del", json!({ "node-name": "c1" }));
    assert!(qmp.refused("blockdev-del", json!({ "node-name": "copy" })).contains("in use by node \"q\""));
    let held = load.end();
    steered.server.stop();
    for image in [&images[0], &copy, &images[2]] {
        holds(image, &held, &steered.scratch);
        qemu_img(["compare", "-q", &images[0], image]).ok();
    }
}

/// x-blockdev-change: a disk comes to a quorum at work, or leaves it.
#[test]
fn disks_come_to_a_quorum_at_work_and_leave_it() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let images = of_overlays(&steered, &mut qmp);
    let load = Load::on(steered.server.socket(), "q", 256);
    let remove = |child: &str| json!({ "parent": "q", "child": child });
    let add = |node: &str| json!({ "parent": "q", "node": node });
    qmp.ok("x-blockdev-change", remove("children.0"));
    load.goes_on();
    assert!(qmp.refused("x-blockdev-change", remove("children.0")).contains("no disk"));
    assert!(qmp.refused("x-blockdev-change", remove("children.1")).contains("vote-threshold"));
    assert!(qmp.refused("x-blockdev-change", json!({ "parent": "q" })).contains("give one of"));
    assert!(qmp.refused("x-blockdev-change", json!({ "parent": "c1", "node": "c0" })).contains("no filter"));
    for own in ["q", "c1"] {
        qmp.refused("x-blockdev-change", add(own));
    }
    let other = create(&steered.scratch, "other", "8M");
    qmp.ok("blockdev-add", qcow2("other", &other));
    assert!(qmp.refused("x-blockdev-change", add("other")).contains("as large"));
    // What the quorum still has is what was written; the disk that comes back is outvoted where it differs.
    qmp.ok("x-blockdev-change", add("c0"));
    let names = ["children.1", "children.2", "children.3"].map(str::to_owned);
    let nodes = ["c1", "c2", "c0"].map(str::to_owned);
    assert_eq!(children(&mut qmp), names.into_iter().zip(nodes).collect::<Vec<_>>());
    load.goes_on();
    assert!(qmp.refused("blockdev-del", json!({ "node-name": "c0" })).contains("in use by node \"q\""));
    let held = load.end();
    steered.server.stop();
    for image in &images[1..] {
        holds(image, &held, &steered.scratch);
    }
    qemu_img(["compare", "-q", &images[1], &images[2]]).ok();
}
