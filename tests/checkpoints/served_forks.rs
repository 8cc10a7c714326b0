//! Forks that their server exports at once, and what backup programs read of them.

use black_box::bytes::are_all;
use black_box::peer::dirty;
use black_box::qmp::Qmp;
use black_box::vhost_user::{Ask, FrontEnd, Machine, Ways};
use black_box::{Run, cowhand};
use serde_json::{Value, json};

use super::Lineage;

fn export_ids(qmp: &mut Qmp) -> Vec<String> {
    let exports = qmp.ok("query-block-exports", json!({}));
    let ids = exports.as_array().expect("a list").iter().map(|export| export["id"].as_str().expect("text"));
    let mut ids: Vec<String> = ids.map(str::to_owned).collect();
    ids.sort();
    ids
}

#[test]
fn forks_are_served_at_once_or_not_made_at_all() {
    let lineage = Lineage::new();
    let server = lineage.serve();
    let mut qmp = Qmp::connect(lineage.name("qmp").as_ref());
    let socket = lineage.name("qmp");
    server.client("d").write(0, &[1; 4096]).expect("a write");
    cowhand(["checkpoint", "-q", &format!("{socket}:d"), "one"]).ok();
    let one = format!("{socket}:d@one");
    let said = cowhand(["fork", &one, &lineage.name("f.qcow2"), "--count", "3", "--serve"]).ok();
    assert!(said.contains("served"), "{said}");
    assert_eq!(export_ids(&mut qmp), ["d", "f-1", "f-2", "f-3"]);
    for name in ["f-1", "f-2", "f-3"] {
        let mut fork = server.client(name);
        assert!(are_all(&fork.read(0, 4096).expect("a read"), 1));
        fork.write(0, &[7; 4096]).expect("a write");
        drop(fork);
        cowhand(["checkpoint", "-q", &format!("{socket}:{name}"), "mine"]).ok();
    }
    // A name that `serve` takes: no command may call a node so.
    let uuid = "650e8400-e29b-41d4-a716-446655440000";
    cowhand(["fork", "-q", &one, &lineage.name(&format!("{uuid}.qcow2")), "--serve"]).ok();
    assert!(are_all(&server.client(uuid).read(0, 4096).expect("a read"), 1));
    let exports = qmp.ok("query-block-exports", json!({}));
    let node = exports.as_array().expect("a list").iter().find(|export| export["id"] == uuid);
    let node = node.expect("the export")["node-name"].as_str().expect("a name").to_owned();
    qmp.ok("block-export-del", json!({ "id": uuid, "mode": "hard" }));
    qmp.ok("blockdev-del", json!({ "node-name": node }));
    cowhand(["fork", "-q", &one, &lineage.name("r.qcow2"), "--serve=nbd,writable=off"]).ok();
    server.client("r").write(0, &[7; 4096]).expect_err("it is read-only");
    // The name of the second is taken: the first is not served, and no file is left.
    let file = json!({ "driver": "file", "filename": lineage.name("r.qcow2") });
    let before = export_ids(&mut qmp);
    let node = json!({ "driver": "qcow2", "node-name": "x-2", "read-only": true, "file": file });
    qmp.ok("block-export-del", json!({ "id": "r", "mode": "hard" }));
    qmp.ok("blockdev-del", json!({ "node-name": "r" }));
    qmp.ok("blockdev-add", node);
    let refused = cowhand(["fork", &one, &lineage.name("x.qcow2"), "--count", "3", "--serve"]).fails();
    assert!(refused.contains("x-2") && !refused.contains("not undone"), "{refused}");
    assert_eq!(export_ids(&mut qmp), before[..before.len() - 1]);
    for number in 1..=3 {
        assert!(!lineage.scratch.file(&format!("x-{number}.qcow2")).exists());
    }
    for (words, why) in [
        (vec![one.clone(), lineage.name("y.qcow2"), "--serve=floppy".to_owned()], "floppy"),
        (
            vec![
                one.clone(),
                lineage.name("y.qcow2"),
                "--count=2".to_owned(),
                format!("--serve=vhost-user-blk,addr.type=unix,addr.path={}", lineage.name("sock")),
            ],
            "one by one",
        ),
        (
            vec![format!("{}@first", lineage.name("d.qcow2")), lineage.name("y.qcow2"), "--serve".to_owned()],
            "no server",
        ),
    ] {
        let refused = cowhand(["fork".to_owned()].into_iter().chain(words)).fails();
        assert!(refused.contains(why), "{refused}");
        assert!(!lineage.scratch.file("y.qcow2").exists() && !lineage.scratch.file("y-1.qcow2").exists());
    }
    server.stop();
    lineage.reads("f-2.qcow2", &["read -P 7 0 4k"]);
    lineage.is_sound();
}

#[test]
fn forks_are_served_to_machines_each_at_its_own_socket() {
    const SECTORS: u64 = 4096 / 512;
    let lineage = Lineage::new();
    // In the sandbox a server makes sockets there alone.
    let server = lineage.serve_with(&["--allow-path", &lineage.name(""), &lineage.name("d.qcow2")]);
    let control = lineage.name("qmp");
    server.client("d").write(0, &[1; 4096]).expect("a write");
    cowhand(["checkpoint", "-q", &format!("{control}:d"), "one"]).ok();
    let fork = |name: &str| {
        let socket = lineage.scratch.file(name);
        let serve = format!("--serve=vhost-user-blk,addr.type=unix,addr.path={}", socket.display());
        let new = lineage.name(&format!("{name}.qcow2"));
        cowhand(["fork", "-q", &format!("{control}:d@one"), &new, &serve]).ok();
        socket
    };
    let sockets = [fork("a"), fork("b")];
    let mut machines = [Machine::new(Ways::default()), Machine::new(Ways::default())];
    for ((socket, machine), own) in sockets.iter().zip(&mut machines).zip([5, 6]) {
        let _front = FrontEnd::start(socket, machine);
        assert!(are_all(&machine.read(0, 4096), 1));
        machine.ok(0, &Ask::Write(SECTORS, &[own; 4096]));
        machine.ok(0, &Ask::Flush);
        // Its machine may have what it read in its caches.
        let node = if own == 5 { "a" } else { "b" };
        let rollback = ["rollback", "-q", &format!("{control}:{node}"), "@one"];
        let refused = cowhand(rollback).fails();
        assert!(refused.contains("--live"), "{refused}");
    }
    cowhand(["rollback", "-q", &format!("{control}:b"), "@one"]).ok();
    server.stop();
    lineage.reads("a.qcow2", &["read -P 1 0 4k", "read -P 5 4k 4k"]);
    lineage.reads("b.qcow2", &["read -P 1 0 4k", "read -P 0 4k 4k"]);
    lineage.is_sound();
}

/// What nbdinfo shows as dirty: start and length.
fn shown(socket: &str, export: &str, bitmap: &str) -> Vec<(u64, u64)> {
    let uri = format!("nbd+unix:///{export}?socket={socket}");
    let map = format!("--map=qemu:dirty-bitmap:{bitmap}");
    dirty(&Run::new("nbdinfo").args(["--json", &map, &uri]).json())
}

/// A backup program reads what differs from a checkpoint as it reads a bitmap, also when the disk has had checkpoints since.
#[test]
fn nbdinfo_shows_what_differs_from_a_checkpoint() {
    const CLUSTER: u64 = 65536;
    let lineage = Lineage::new();
    let server = lineage.serve();
    let socket = lineage.name("qmp");
    let mut qmp = Qmp::connect(socket.as_ref());
    let nbd = server.socket().to_str().expect("text").to_owned();
    server.client("d").write(0, &[1; 4096]).expect("a write");
    qmp.ok("cowhand-checkpoint", json!({ "node-name": "d", "name": "one" }));
    server.client("d").write(5 * CLUSTER, &[2; 4096]).expect("a write");
    qmp.ok("cowhand-checkpoint", json!({ "node-name": "d", "name": "two" }));
    let export = |id: &str, since: Value| json!({ "type": "nbd", "id": id, "node-name": "d", "name": id, "since": since });
    qmp.ok("block-export-add", export("b", json!(["first", "one", "two"])));
    let at = |clusters: &[u64]| clusters.iter().map(|at| (at * CLUSTER, CLUSTER)).collect::<Vec<_>>();
    assert_eq!(shown(&nbd, "b", "@first"), at(&[0, 5]));
    assert_eq!(shown(&nbd, "b", "@one"), at(&[5]));
    assert_eq!(shown(&nbd, "b", "@two"), at(&[]));
    // While it is written, and has one more layer.
    server.client("d").write(9 * CLUSTER, &[3; 4096]).expect("a write");
    assert_eq!(shown(&nbd, "b", "@two"), at(&[9]));
    qmp.ok("cowhand-checkpoint", json!({ "node-name": "d", "name": "three" }));
    server.client("d").write(11 * CLUSTER, &[3; 4096]).expect("a write");
    assert_eq!(shown(&nbd, "b", "@two"), at(&[9, 11]));
    assert_eq!(shown(&nbd, "b", "@one"), at(&[5, 9, 11]));
    // A fork, from its own checkpoint; a sealed layer, from one below.
    let fork = lineage.name("f.qcow2");
    cowhand(["fork", "-q", &format!("{socket}:d@two"), &fork, "--serve=nbd,since.0=two,since.1=first"]).ok();
    server.client("f").write(2 * CLUSTER, &[4; 4096]).expect("a write");
    assert_eq!(shown(&nbd, "f", "@two"), at(&[2]));
    assert_eq!(shown(&nbd, "f", "@first"), at(&[0, 2, 5]));
    let log = lineage.log();
    let mut layers = log["layers"].as_array().expect("layers").iter();
    let two = layers.find(|layer| layer["name"] == "two").expect("it was taken")["file"].clone();
    let file = json!({ "driver": "file", "filename": two });
    qmp.ok("blockdev-add", json!({ "driver": "qcow2", "node-name": "two", "read-only": true, "file": file }));
    let of_layer = json!({ "type": "nbd", "id": "l", "node-name": "two", "name": "l", "since": ["one"] });
    qmp.ok("block-export-add", of_layer);
    assert_eq!(shown(&nbd, "l", "@one"), at(&[5]));
    for (since, why) in [(json!(["none"]), "no checkpoint none"), (json!(["one", "one"]), "two bitmaps")] {
        let refused = qmp.refused("block-export-add", export("c", since));
        assert!(refused.contains(why), "{refused}");
    }
    // After a rollback to an older one everything may differ.
    qmp.ok("cowhand-rollback", json!({ "node-name": "d", "checkpoint": "one", "live": true }));
    assert_eq!(shown(&nbd, "b", "@two"), [(0, 64 << 20)]);
    assert_eq!(shown(&nbd, "b", "@first"), at(&[0]));
    let refused = qmp.refused("block-export-add", export("c", json!(["two"])));
    assert!(refused.contains("is not backed by"), "{refused}");
    server.stop();
    lineage.is_sound();
}
