//! Layers merged below disks that are being served.

use std::path::Path;

use black_box::bytes::are_all;
use black_box::qmp::Qmp;
use black_box::{Client, Server, cowhand};
use serde_json::{Value, json};

use super::Lineage;

const BLOCK: u64 = 64 << 10;

/// So many checkpoints without a name, the n-th with block n and, for all to hide, block 0.
fn checkpoints(qmp: &mut Qmp, client: &mut Client, numbers: std::ops::RangeInclusive<u8>) {
    for number in numbers {
        for block in [0, u64::from(number)] {
            client.write(block * BLOCK, &[number; BLOCK as usize]).expect("a write");
        }
        qmp.ok("cowhand-checkpoint", json!({ "node-name": "d" }));
    }
}

/// Block 0 as the newest checkpoint has it, and each block with its number.
fn reads(client: &mut Client, newest: u8, blocks: std::ops::RangeInclusive<u8>) {
    assert!(are_all(&client.read(0, BLOCK as u32).expect("a read"), newest));
    for block in blocks {
        let read = client.read(u64::from(block) * BLOCK, BLOCK as u32).expect("a read");
        assert!(are_all(&read, block), "block {block}");
    }
}

/// Layers below a disk, as the server has it open.
fn depth(qmp: &mut Qmp, node: &str) -> usize {
    let nodes = qmp.ok("query-named-block-nodes", json!({}));
    let node = nodes
        .as_array()
        .expect("a list")
        .iter()
        .find(|found| found["node-name"] == node)
        .expect("it is there");
    std::iter::successors(node["image"].get("backing-image"), |image| image.get("backing-image")).count()
}

/// Files of layers that the server has open, and that have no name any more.
fn nameless(server: &Server) -> Vec<String> {
    let open = server.open_files().into_iter().map(|path| path.to_string_lossy().into_owned());
    open.filter(|name| name.contains("/layers/") && name.ends_with(" (deleted)")).collect()
}

fn files(lineage: &Lineage) -> Vec<String> {
    let names = std::fs::read_dir(lineage.scratch.file("layers")).expect("the layers");
    let mut names: Vec<String> =
        names.map(|entry| entry.expect("a name").file_name().into_string().expect("text")).collect();
    names.retain(|name| name.ends_with(".qcow2"));
    names.sort();
    names
}

fn ids(value: &Value) -> Vec<String> {
    let list = value.as_array().expect("a list").iter();
    list.map(|id| format!("{}.qcow2", id.as_str().expect("an id"))).collect()
}

/// The disk and a fork of it that are served use the merged layers; clients notice nothing, and no file of a layer that went is kept open.
#[test]
fn layers_below_disks_at_work_are_merged() {
    let lineage = Lineage::new();
    let server = lineage.serve();
    let (mut qmp, mut client) = (Qmp::connect(lineage.name("qmp").as_ref()), server.client(""));
    checkpoints(&mut qmp, &mut client, 1..=5);
    let fork = json!({ "node-name": "d", "checkpoint": "first", "new": lineage.name("old.qcow2"), "serve": { "type": "nbd" } });
    qmp.ok("cowhand-fork", fork);
    let newest = lineage.log()["disks"][0]["layers"][0].as_str().expect("an id").to_owned();
    let fork = json!({ "node-name": "d", "checkpoint": newest, "new": lineage.name("f.qcow2"), "serve": { "type": "nbd" } });
    qmp.ok("cowhand-fork", fork);
    checkpoints(&mut qmp, &mut client, 6..=9);
    client.write(0, &[10; BLOCK as usize]).expect("a write");
    let before = files(&lineage);
    let disk = format!("{}:d", lineage.name("qmp"));
    let listed = cowhand(["forget", "-n", "--keep", "last:1", "--output", "json", &disk]).json();
    assert_eq!((listed["deleted"].as_bool(), files(&lineage)), (Some(false), before.clone()));
    let done = cowhand(["forget", "--keep", "last:1", "--output", "json", &disk]).json();
    assert_eq!(done["merged"], listed["merged"]);
    // 1 to 4 into 5, on which the fork is; 6 to 8 into 9.
    let gone: Vec<String> =
        done["merged"].as_array().expect("merges").iter().flat_map(|merge| ids(&merge["layers"])).collect();
    assert_eq!(gone.len(), 7, "{done}");
    let left: Vec<String> = before.iter().filter(|name| !gone.contains(name)).cloned().collect();
    assert_eq!((files(&lineage), left.len()), (left, 3));
    assert_eq!([depth(&mut qmp, "d"), depth(&mut qmp, "f"), depth(&mut qmp, "old")], [3, 2, 1]);
    assert_eq!(nameless(&server), Vec::<String>::new());
    reads(&mut client, 10, 1..=9);
    reads(&mut server.client("f"), 5, 1..=5);
    client.write(BLOCK, &[1; BLOCK as usize]).expect("a write");
    checkpoints(&mut qmp, &mut client, 11..=11);
    server.stop();
    lineage.is_sound();
    let server = lineage.serve();
    reads(&mut server.client(""), 11, 1..=9);
    server.stop();
}

/// A copy takes long: checkpoints are taken meanwhile, a second merge is refused, and Ctrl-C leaves everything as it was.
#[test]
fn other_commands_go_on_while_layers_are_copied() {
    let lineage = Lineage::new();
    let server = lineage.serve();
    let (mut qmp, mut client) = (Qmp::connect(lineage.name("qmp").as_ref()), server.client(""));
    checkpoints(&mut qmp, &mut client, 1..=6);
    let before = files(&lineage);
    let slow = ["forget", "-q", "--keep", "last:1", "-r", "64k", &lineage.name("qmp")];
    let is_copied = || {
        let mut names = std::fs::read_dir(lineage.scratch.file("layers")).expect("the layers");
        names.any(|entry| entry.expect("a name").file_name().to_string_lossy().starts_with("merged-"))
    };
    let ended = cowhand(slow).interrupted_when(|| {
        while !is_copied() {}
        let job = qmp.ok("query-block-jobs", json!({}))[0].clone();
        let found = (job["type"].as_str(), job["speed"].as_u64());
        assert_eq!(found, (Some("cowhand-forget"), Some(64 << 10)), "{job}");
        let refused = cowhand(["forget", &lineage.name("")]).fails();
        assert!(refused.contains("merge.lock"), "{refused}");
        checkpoints(&mut qmp, &mut client, 7..=8);
    });
    assert!(ended.stderr.contains("interrupted"), "{}", ended.stderr);
    assert!(before.iter().all(|name| files(&lineage).contains(name)), "no layer is gone");
    assert!(!is_copied(), "what was copied is gone");
    reads(&mut client, 8, 1..=8);
    cowhand(["forget", "-q", &lineage.name("qmp")]).ok();
    assert_eq!(depth(&mut qmp, "d"), 4);
    reads(&mut client, 8, 1..=8);
    server.stop();
    lineage.is_sound();
}

/// Another process merges: the server keeps what it has, until it is asked.
#[test]
fn a_server_goes_on_while_another_process_merges_its_layers() {
    let lineage = Lineage::new();
    let server = lineage.serve();
    let (mut qmp, mut client) = (Qmp::connect(lineage.name("qmp").as_ref()), server.client(""));
    checkpoints(&mut qmp, &mut client, 1..=6);
    cowhand(["forget", "-q", "--keep", "last:1", &lineage.name("")]).ok();
    assert_eq!((files(&lineage).len(), depth(&mut qmp, "d")), (7, 7));
    reads(&mut client, 6, 1..=6);
    checkpoints(&mut qmp, &mut client, 7..=7);
    cowhand(["forget", "-q", &lineage.name("qmp")]).ok();
    assert_eq!((files(&lineage).len(), depth(&mut qmp, "d")), (3, 3));
    assert_eq!(nameless(&server), Vec::<String>::new());
    reads(&mut client, 7, 1..=7);
    server.stop();
    lineage.is_sound();
    assert!(Path::new(&lineage.name("layers")).exists());
}

/// What is written anew in each layer is worth its copy; what is all needed is not.
#[test]
fn layers_of_which_nearly_all_is_needed_are_left() {
    for (each_anew, is_merged) in [(false, false), (true, true)] {
        let lineage = Lineage::new();
        let server = lineage.serve();
        let (mut qmp, mut client) = (Qmp::connect(lineage.name("qmp").as_ref()), server.client(""));
        for number in 1..=5_u8 {
            let at = if each_anew { 0 } else { u64::from(number) << 20 };
            client.write(at, &[number; 1 << 20]).expect("a write");
            qmp.ok("cowhand-checkpoint", json!({ "node-name": "d" }));
        }
        let words = ["forget", "--keep", "last:1", "--max-waste", "50", "--output", "json"];
        let forget = |more: &str, disk: &str| cowhand(words).args([more, &lineage.name(disk)]).json();
        let count = |answer: &Value| answer["merged"].as_array().expect("a list").len();
        let listed = [forget("-n", "qmp"), forget("-n", "d.qcow2"), forget("-p", "qmp")];
        assert_eq!(count(&listed[0]), usize::from(is_merged), "{listed:?}");
        assert_eq!(count(&listed[1]), usize::from(is_merged), "{listed:?}");
        assert_eq!(depth(&mut qmp, "d"), if is_merged { 2 } else { 6 });
        let refused = cowhand(["forget", "--max-waste", "100", &lineage.name("qmp")]).fails();
        assert!(refused.contains("99"), "{refused}");
        server.stop();
        lineage.is_sound();
    }
}

/// Layers became more until an operator ran the command, on each host, for each lineage.
#[test]
fn a_server_follows_the_policy_of_its_lineage_by_itself() {
    let lineage = Lineage::new();
    let server = lineage.serve();
    let (mut qmp, mut client) = (Qmp::connect(lineage.name("qmp").as_ref()), server.client(""));
    checkpoints(&mut qmp, &mut client, 1..=3);
    assert_eq!(depth(&mut qmp, "d"), 4);
    let socket = lineage.name("qmp");
    let refused = cowhand(["forget", "--save", "-n", "--keep", "last:2", &socket]).fails();
    assert!(refused.contains("--save"), "{refused}");
    let words = ["forget", "--save", "--keep", "last:2", "--max-depth", "9", "--output", "json", &socket];
    let policy = json!({ "keep": "last:2", "max-depth": 9 });
    assert_eq!(cowhand(words).json()["policy"], policy);
    // The first has a name, and stays.
    assert_eq!((depth(&mut qmp, "d"), &lineage.log()["policy"]), (3, &policy));
    let shown = cowhand(["log", &lineage.name("d.qcow2")]).ok();
    assert!(shown.ends_with("\npolicy: --keep last:2 --max-depth 9\n"), "{shown}");

    checkpoints(&mut qmp, &mut client, 4..=12);
    let is_short = |qmp: &mut Qmp| depth(qmp, "d") == 3 && qmp.ok("query-jobs", json!({})) == json!([]);
    while !is_short(&mut qmp) {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    reads(&mut client, 12, 1..=12);
    server.stop();
    lineage.is_sound();

    // A command that says no other policy follows it, too.
    for _ in 0..3 {
        cowhand(["checkpoint", "-q", &lineage.name("d.qcow2")]).ok();
    }
    cowhand(["forget", "-q", &lineage.name("d.qcow2")]).ok();
    assert_eq!(lineage.log()["layers"].as_array().map(Vec::len), Some(3));
    // A program that does not know policies must not write the manifest without it.
    let manifest =
        || std::fs::read_to_string(lineage.scratch.file("layers/lineage.json")).expect("a manifest");
    assert!(manifest().contains("\"cowhand-lineage\":2"), "{}", manifest());
    cowhand(["forget", "-q", "--save", &lineage.name("d.qcow2")]).ok();
    assert_eq!(lineage.log().get("policy"), None);
    assert!(manifest().contains("\"cowhand-lineage\":1"), "{}", manifest());
}
