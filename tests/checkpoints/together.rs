//! Several disks of one machine: checkpoints, rollbacks and forks as actions of a transaction.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use black_box::bytes::are_all;
use black_box::peer::{converted, qemu_img};
use black_box::qmp::Qmp;
use black_box::server::Start;
use black_box::{Client, Server, cowhand};
use serde_json::{Value, json};

use super::Lineage;

const BLOCK: u64 = 4096;

/// `d.qcow2` and `e.qcow2` in one lineage, `other/o.qcow2` in another.
struct Machine {
    lineage: Lineage,
    server: Server,
    qmp: Qmp,
}

impl Machine {
    fn start() -> Self {
        let lineage = Lineage::new();
        cowhand(["fork", "-q", &format!("{}@first", lineage.name("d.qcow2")), &lineage.name("e.qcow2")]).ok();
        std::fs::create_dir(lineage.scratch.file("other")).expect("a directory");
        let other = lineage.name("other/o.qcow2");
        qemu_img(["create", "-q", "-f", "qcow2", &other, "64M"]).ok();
        cowhand(["checkpoint", "-q", &other, "first"]).ok();
        let disks = ["d.qcow2", "e.qcow2", "other/o.qcow2"].map(|name| lineage.name(name));
        let socket = lineage.name("qmp");
        let start = Start::new(["--qmp", &socket, &disks[0], &disks[1], &disks[2]]);
        let mut server = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
        server.wait_until(|server| server.stdout().contains("control:").then_some(())).expect("it serves");
        let qmp = Qmp::connect(socket.as_ref());
        Self { lineage, server, qmp }
    }

    /// Everything in the directories, with the file that each name leads to.
    fn files(&self) -> BTreeSet<(String, u64)> {
        let directories = ["", "layers", "other", "other/layers"];
        let entries = directories.iter().flat_map(|directory| {
            let path = self.lineage.scratch.file(directory);
            std::fs::read_dir(path).expect("a directory").map(move |entry| {
                let entry = entry.expect("an entry");
                let name = format!("{directory}/{}", entry.file_name().to_str().expect("text"));
                let is_image = name.ends_with(".qcow2");
                (name, if is_image { entry.metadata().expect("a file").ino() } else { 0 })
            })
        });
        entries.collect()
    }
}

/// What each node is called, and its file.
fn nodes(qmp: &mut Qmp) -> Vec<Value> {
    let nodes = qmp.ok("query-named-block-nodes", json!({ "flat": true }));
    let nodes = nodes.as_array().expect("a list").iter();
    let mut nodes: Vec<Value> = nodes.map(|node| json!([node["node-name"], node["file"]])).collect();
    nodes.sort_by_key(ToString::to_string);
    nodes
}

fn checkpoint(node: &str, name: &str) -> Value {
    json!({ "type": "cowhand-checkpoint", "data": { "node-name": node, "name": name } })
}

fn rollback(node: &str, to: &str) -> Value {
    json!({ "type": "cowhand-rollback", "data": { "node-name": node, "checkpoint": to, "live": true } })
}

fn abort() -> Value {
    json!({ "type": "abort", "data": {} })
}

/// A database with its log on another disk: a log that is younger than the data by more than the write in flight was no state of the machine.
#[test]
fn checkpoints_of_a_transaction_are_of_one_moment() {
    const ROUNDS: u32 = 12;
    let mut machine = Machine::start();
    let done = Arc::new(AtomicBool::new(false));
    let (end, socket) = (Arc::clone(&done), machine.server.socket().to_owned());
    let load = std::thread::spawn(move || {
        let connect = |name| Client::connect(&socket, name).expect("it serves");
        let mut clients = ["d", "e", "o"].map(connect);
        let mut number = 0_u32;
        while !end.load(Ordering::Relaxed) {
            number += 1;
            for client in &mut clients {
                client.write(0, &number.to_le_bytes().repeat(128)).expect("a write");
            }
        }
        number
    });
    for round in 0..ROUNDS {
        let name = format!("n{round}");
        let actions = ["d", "e", "o"].map(|node| checkpoint(node, &name));
        machine.qmp.ok("transaction", json!({ "actions": actions }));
    }
    done.store(true, Ordering::Relaxed);
    let written = load.join().expect("the client wrote");
    machine.server.stop();
    let raw = machine.lineage.scratch.file("raw");
    let number = |path: &str| {
        let bytes = converted(path, "qcow2", &[], &raw);
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    };
    let layer = |log: &Value, disk: &str, name: &str| {
        let layers = log["layers"].as_array().expect("layers").iter();
        let mut found = layers.filter(|layer| layer["name"] == name && layer["disk"] == disk);
        number(found.next().expect("it was taken")["file"].as_str().expect("a path"))
    };
    let other = machine.lineage.name("other");
    let (log, other) = (machine.lineage.log(), cowhand(["log", "--output", "json", &other]).json());
    let mut seen = BTreeSet::new();
    for round in 0..ROUNDS {
        let name = format!("n{round}");
        let found = [(&log, "d.qcow2"), (&log, "e.qcow2"), (&other, "o.qcow2")];
        let [first, second, third] = found.map(|(log, disk)| layer(log, disk, &name));
        assert!(first >= second && second >= third && third + 1 >= first, "{first} {second} {third}");
        seen.insert(first);
    }
    assert!(seen.len() > 1 && written > ROUNDS, "the clients wrote meanwhile: {seen:?} of {written}");
    machine.lineage.is_sound();
}

/// Nothing is left of a transaction that failed, wherever: files, names of nodes, what clients read and where they write.
#[test]
fn a_transaction_that_fails_leaves_every_disk_and_every_file_as_before() {
    let mut machine = Machine::start();
    let mut clients = ["d", "e", "o"].map(|name| machine.server.client(name));
    for (client, value) in clients.iter_mut().zip(1..) {
        client.write(0, &[value; BLOCK as usize]).expect("a write");
    }
    // A rollback to a checkpoint of another size is refused when it is switched: the others are by then.
    let lineage = &machine.lineage;
    let small = lineage.name("small.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", &small, "32M"]).ok();
    let id = cowhand(["checkpoint", "--output", "json", &small]).json()["id"].clone();
    let id = id.as_str().expect("an id").to_owned();
    let bitmap = json!({ "type": "block-dirty-bitmap-add", "data": { "node": "d", "name": "x" } });
    let fork = |new: &str| {
        let data = json!({ "node-name": "d", "checkpoint": "first", "new": lineage.name(new), "count": 3 });
        json!({ "type": "cowhand-fork", "data": data })
    };
    let cases = [
        (vec![checkpoint("d", "n"), checkpoint("e", "first")], "already"),
        (vec![checkpoint("d", "n"), checkpoint("none", "n")], "none"),
        (vec![checkpoint("d", "n"), checkpoint("d", "m")], "named twice"),
        (vec![checkpoint("d", "n"), fork("e.qcow2"), rollback("o", "none")], "no checkpoint none"),
        (vec![checkpoint("d", "n"), rollback("e", "first"), checkpoint("o", "n"), abort()], "abort"),
        (vec![checkpoint("d", "n"), bitmap], "transaction of its own"),
        (vec![fork("f.qcow2"), abort()], "abort"),
        (vec![checkpoint("d", "n"), rollback("e", &id)], "bytes"),
        (vec![rollback("d", "first"), checkpoint("o", "n"), rollback("e", &id)], "bytes"),
        (vec![checkpoint("o", "n"), rollback("d", "first"), fork("f.qcow2"), rollback("e", &id)], "bytes"),
    ];
    let (before, names) = (machine.files(), nodes(&mut machine.qmp));
    for (actions, why) in cases {
        let refused = machine.qmp.refused("transaction", json!({ "actions": actions }));
        assert!(refused.contains(why) && !refused.contains("not undone"), "{actions:?}: {refused}");
        assert_eq!(machine.files(), before, "{actions:?}");
        assert_eq!(nodes(&mut machine.qmp), names, "{actions:?}");
        for (client, value) in clients.iter_mut().zip(1..) {
            assert!(are_all(&client.read(0, BLOCK as u32).expect("a read"), value), "{actions:?}");
            client.write(BLOCK, &[value; BLOCK as usize]).expect("a write");
            client.flush().expect("a flush");
        }
    }
    // All of it goes in one transaction, when nothing stands against it.
    let actions = [checkpoint("d", "n"), fork("f.qcow2"), rollback("e", "first"), checkpoint("o", "n")];
    machine.qmp.ok("transaction", json!({ "actions": actions }));
    let read = clients.each_mut().map(|client| client.read(0, BLOCK as u32).expect("a read")[0]);
    assert_eq!(read, [1, 0, 3]);
    machine.server.stop();
    machine.lineage.is_sound();
    machine.lineage.reads("f-3.qcow2", &["read -P 0 0 4k"]);
    machine.lineage.reads("d.qcow2", &["read -P 1 0 8k"]);
}
