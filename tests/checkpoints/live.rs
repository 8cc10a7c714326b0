//! A disk that is being served.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use black_box::bytes::are_all;
use black_box::peer::{converted, qemu_img, qemu_io_ok};
use black_box::qmp::Qmp;
use black_box::{Client, Holder, Random, Run, cowhand};
use rustix::fs::inotify;
use serde_json::json;

use super::Lineage;

const BLOCK: u64 = 4096;

/// Each checkpoint holds what the client had flushed before it was taken, and nothing that was written after it returned.
#[test]
fn a_checkpoint_is_of_one_moment_under_a_client_that_writes() {
    const CHECKPOINTS: u64 = 40;
    let lineage = Lineage::new();
    let server = lineage.serve();
    let mut qmp = Qmp::connect(lineage.name("qmp").as_ref());
    let mut main = server.client("");
    let done = Arc::new(AtomicBool::new(false));
    let (end, socket) = (Arc::clone(&done), server.socket().to_owned());
    // Far from what is looked at.
    let load = std::thread::spawn(move || {
        let (mut client, mut random) = (Client::connect(&socket, "").expect("it serves"), Random::new(3));
        let mut held = BTreeMap::new();
        while !end.load(Ordering::Relaxed) {
            let (block, value) = (8192 + random.below(4096), random.below(250) as u8 + 1);
            client.write(block * BLOCK, &[value; BLOCK as usize]).expect("a write");
            held.insert(block, value);
        }
        client.flush().expect("a flush");
        held
    });
    let mut layers = Vec::new();
    for number in 1..=CHECKPOINTS {
        main.write(0, &[number as u8; BLOCK as usize]).expect("a write");
        let arguments = json!({ "node-name": "d", "name": format!("n{number}"), "labels": ["round=1"] });
        let taken = qmp.ok("cowhand-checkpoint", arguments);
        main.write(0, &[255; BLOCK as usize]).expect("a write");
        layers.push((number as u8, taken["id"].as_str().expect("an id").to_owned()));
    }
    // The node is called as before, and its layers by the paths that they have now.
    let nodes = qmp.ok("query-named-block-nodes", json!({}));
    let disk =
        nodes.as_array().expect("a list").iter().find(|node| node["node-name"] == "d").expect("it is there");
    assert_eq!(disk["file"], lineage.name("d.qcow2"));
    let image = disk["image"]["backing-image"]["filename"].as_str().expect("a backing file");
    let last = &layers.last().expect("some").1;
    assert!(image.ends_with(&format!("layers/{last}.qcow2")), "{image}");
    done.store(true, Ordering::Relaxed);
    let held = load.join().expect("the client wrote");
    server.stop();
    for (number, id) in layers {
        lineage.reads(&format!("layers/{id}.qcow2"), &[&format!("read -P {number} 0 4k")]);
    }
    let bytes = converted(&lineage.name("d.qcow2"), "qcow2", &[], &lineage.scratch.file("raw"));
    assert!(are_all(&bytes[..BLOCK as usize], 255));
    for (block, value) in held {
        let at = (block * BLOCK) as usize;
        assert!(are_all(&bytes[at..at + BLOCK as usize], value), "block {block}");
    }
    lineage.is_sound();
}

/// Its clients stay connected and see the checkpoint; what the disk was stays.
#[test]
fn a_rollback_switches_the_disk_below_its_clients() {
    let lineage = Lineage::new();
    let server = lineage.serve();
    let mut client = server.client("");
    let socket = lineage.name("qmp");
    let write = |client: &mut Client, value: u8| client.write(0, &[value; 8192]).expect("a write");
    write(&mut client, 1);
    cowhand(["checkpoint", "-q", &socket, "one"]).ok();
    write(&mut client, 2);
    let refused = cowhand(["rollback", &socket, "@one"]).fails();
    assert!(refused.contains("--live"), "{refused}");
    assert!(are_all(&client.read(0, 8192).expect("a read"), 2));
    let left = cowhand(["rollback", "--live", "--output", "json", &socket, "@one"]).json()["left"].clone();
    let left = left.as_str().expect("an id");
    assert!(are_all(&client.read(0, 8192).expect("a read"), 1));
    write(&mut client, 3);
    client.flush().expect("a flush");
    cowhand(["checkpoint", "-q", &format!("{socket}:d"), "two"]).ok();
    cowhand(["rollback", "-q", "--live", &socket, &format!("@{left}")]).ok();
    assert!(are_all(&client.read(0, 8192).expect("a read"), 2));
    // Without a client it needs no leave.
    client.disconnect();
    let mut qmp = Qmp::connect(socket.as_ref());
    while qmp.ok("query-block-exports", json!({}))[0]["connections"] != 0 {}
    cowhand(["rollback", "-q", &socket, "@two"]).ok();
    assert!(are_all(&server.client("").read(0, 8192).expect("a read"), 3));
    server.stop();
    lineage.reads(&format!("layers/{left}.qcow2"), &["read -P 2 0 8k"]);
    lineage.is_sound();
}

/// A client connected while the files of a rollback were made: it had read what the disk was, and then read what it became.
#[test]
fn a_client_that_connects_before_the_switch_of_a_rollback_refuses_it() {
    let lineage = Lineage::new();
    let server = lineage.serve();
    server.client("").write(0, &[1; 8192]).expect("a write");
    let socket = lineage.name("qmp");
    cowhand(["checkpoint", "-q", &socket, "one"]).ok();
    let lock = lineage.scratch.file("layers/lock");
    let holder = Holder::of_raw(&lock);
    let opened = inotify::init(inotify::CreateFlags::CLOEXEC).expect("an inotify");
    inotify::add_watch(&opened, &lock, inotify::WatchFlags::OPEN).expect("a watch");
    let mut client = std::thread::scope(|scope| {
        let rollback = scope.spawn(|| cowhand(["rollback", &socket, "@first"]).fails());
        // The first look for clients is over when the server tries to lock the lineage.
        let mut event = [MaybeUninit::uninit(); 512];
        inotify::Reader::new(&opened, &mut event).next().expect("an event");
        let mut client = server.client("");
        assert!(are_all(&client.read(0, 8192).expect("a read"), 1));
        holder.finish(&[]);
        let refused = rollback.join().expect("it ends");
        assert!(refused.contains("--live"), "{refused}");
        client
    });
    assert!(are_all(&client.read(0, 8192).expect("a read"), 1));
    client.write(0, &[2; 8192]).expect("a write");
    drop(client);
    cowhand(["rollback", "-q", "--live", &socket, "@one"]).ok();
    server.stop();
    lineage.is_sound();
}

/// The path of a disk led for a moment to an overlay without a lock: a second writer came in, and what it had flushed was gone.
#[test]
fn no_second_writer_comes_in_while_a_disk_is_switched() {
    const ROUNDS: usize = 12;
    let lineage = Lineage::new();
    let server = lineage.serve();
    let (disk, socket) = (lineage.name("d.qcow2"), lineage.name("qmp"));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                let tried = cowhand(["io", "-c", "write -P 9 1M 64k", "-c", "flush", &disk]).outcome();
                assert!(!tried.status.success(), "{tried}");
            }
        });
        for _ in 0..ROUNDS {
            cowhand(["rollback", "-q", "--live", &socket, "@first"]).ok();
            cowhand(["checkpoint", "-q", &socket]).ok();
        }
        ended.store(true, Ordering::Relaxed);
    });
    server.stop();
    lineage.is_sound();
}

/// A restart with the same words never writes into a sealed layer: the path names the active layer.
#[test]
fn a_server_that_starts_again_continues_in_the_active_layer() {
    let lineage = Lineage::new();
    for round in 1..=3_u8 {
        let server = lineage.serve();
        server.client("").write(0, &[round; 4096]).expect("a write");
        cowhand(["checkpoint", "-q", &lineage.name("qmp"), &format!("r{round}")]).ok();
        server.kill();
    }
    let server = lineage.serve();
    assert!(are_all(&server.client("").read(0, 4096).expect("a read"), 3));
    server.stop();
    assert_eq!(lineage.log()["layers"].as_array().expect("layers").len(), 4);
    lineage.is_sound();
}

#[test]
fn forks_of_a_disk_at_work_are_served_beside_it() {
    let lineage = Lineage::new();
    let server = lineage.serve();
    let mut client = server.client("");
    client.write(0, &[1; 4096]).expect("a write");
    let socket = lineage.name("qmp");
    cowhand(["checkpoint", "-q", &socket, "one"]).ok();
    client.write(0, &[2; 4096]).expect("a write");
    cowhand(["fork", "-q", &format!("{socket}@one"), &lineage.name("f.qcow2"), "--count", "3"]).ok();
    let mut qmp = Qmp::connect(socket.as_ref());
    for number in 1..=3 {
        // Inside the sandbox: the directory of a lineage is open to commands.
        let name = format!("f{number}");
        let file = json!({ "driver": "file", "filename": lineage.name(&format!("f-{number}.qcow2")) });
        qmp.ok("blockdev-add", json!({ "driver": "qcow2", "node-name": name, "file": file }));
        qmp.ok(
            "block-export-add",
            json!({ "type": "nbd", "id": name, "node-name": name, "name": name, "writable": true }),
        );
        let mut fork = server.client(&name);
        assert!(are_all(&fork.read(0, 4096).expect("a read"), 1));
        fork.write(0, &[10 + number; 4096]).expect("a write");
        drop(fork);
        qmp.ok("cowhand-checkpoint", json!({ "node-name": name, "name": "mine" }));
    }
    assert!(are_all(&client.read(0, 4096).expect("a read"), 2));
    let refused = qmp.refused(
        "cowhand-fork",
        json!({ "node-name": "d", "checkpoint": "one", "new": lineage.name("f-1.qcow2") }),
    );
    assert!(refused.contains("exists"), "{refused}");
    server.stop();
    for number in 1..=3_u8 {
        qemu_io_ok(
            &["-r"],
            &lineage.name(&format!("f-{number}.qcow2")),
            &[format!("read -P {} 0 4k", 10 + number)],
        );
    }
    lineage.is_sound();
}

/// What a lineage cannot have, and what the sandbox cannot do, is refused with its reason, and the disk is as before.
#[test]
fn what_cannot_be_sealed_is_refused_and_the_disk_goes_on() {
    let lineage = Lineage::new();
    let server = lineage.serve();
    let mut qmp = Qmp::connect(lineage.name("qmp").as_ref());
    let mut client = server.client("");
    client.write(0, &[7; 4096]).expect("a write");
    qmp.ok("block-dirty-bitmap-add", json!({ "node": "d", "name": "x" }));
    let mut refused = |arguments| qmp.refused("cowhand-checkpoint", arguments);
    assert!(refused(json!({ "node-name": "d" })).contains("bitmaps"));
    assert!(refused(json!({ "node-name": "none" })).contains("none"));
    qmp.ok("block-dirty-bitmap-remove", json!({ "node": "d", "name": "x" }));
    for (arguments, why) in [
        (json!({ "node-name": "d", "name": "first" }), "already"),
        (json!({ "node-name": "d", "name": "../x" }), "must be 1 to"),
        (json!({ "node-name": "d", "labels": ["x"] }), "KEY=VALUE"),
    ] {
        let found = qmp.refused("cowhand-checkpoint", arguments);
        assert!(found.contains(why), "{found}");
    }
    let found =
        qmp.refused("cowhand-rollback", json!({ "node-name": "d", "checkpoint": "none", "live": true }));
    assert!(found.contains("no checkpoint none"), "{found}");
    client.write(4096, &[8; 4096]).expect("a write");
    client.flush().expect("a flush");
    server.stop();
    lineage.reads("d.qcow2", &["read -P 7 0 4k", "read -P 8 4k 4k"]);
    assert_eq!(lineage.log()["layers"].as_array().expect("layers").len(), 1);
    lineage.is_sound();
}

/// The guide named `--allow-path` as the way to the first checkpoint of a served disk, and it was refused with that, too: the sandbox lets no
/// directory and no link be made. What the refusal names is enough.
#[test]
fn a_served_disk_gets_its_first_checkpoint_in_a_directory_that_was_made_for_it() {
    let lineage = Lineage::new();
    let directory = lineage.scratch.file("other");
    std::fs::create_dir(&directory).expect("a directory");
    let place = std::fs::canonicalize(&directory).expect("it is there").display().to_string();
    let disk = format!("{place}/new.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", &disk, "64M"]).ok();
    let server = lineage.serve_with(&["--allow-path", &place, &disk]);
    let mut qmp = Qmp::connect(lineage.name("qmp").as_ref());
    server.client("").write(0, &[7; 4096]).expect("a write");
    let refused = qmp.refused("cowhand-checkpoint", json!({ "node-name": "new", "name": "one" }));
    let (_, command) = refused.split_once("the server's user: ").expect("a command");
    assert_eq!(command, format!("mkdir -p {place}/layers && ln -s . {place}/layers/layers"));
    Run::new("sh").args(["-c", command]).ok();
    qmp.ok("cowhand-checkpoint", json!({ "node-name": "new", "name": "one" }));
    server.client("").write(0, &[8; 4096]).expect("a write");
    qmp.ok("cowhand-rollback", json!({ "node-name": "new", "checkpoint": "one", "live": true }));
    assert!(are_all(&server.client("").read(0, 4096).expect("a read"), 7));
    server.stop();
}

/// In its sandbox a server answers as the tools do, page by page.
#[test]
fn a_server_shows_and_clears_its_lineage_as_the_tools_do() {
    const FORKS: usize = 1200;
    let lineage = Lineage::new();
    let server = lineage.serve();
    let mut qmp = Qmp::connect(lineage.name("qmp").as_ref());
    let mut client = server.client("");
    let disk = lineage.name("d.qcow2");
    client.write(0, &[1; 65536]).expect("a write");
    qmp.ok("cowhand-checkpoint", json!({ "node-name": "d", "name": "one" }));
    client.write(1 << 20, &[2; 65536]).expect("a write");
    qmp.ok("cowhand-checkpoint", json!({ "node-name": "d", "name": "two" }));
    client.write(2 << 20, &[3; 65536]).expect("a write");
    client.flush().expect("a flush");
    let new = lineage.name("f.qcow2");
    qmp.ok("cowhand-fork", json!({ "node-name": "d", "checkpoint": "two", "new": new, "count": FORKS }));
    // Page by page it is what the tool shows.
    let (mut layers, mut disks, mut pages) = (Vec::new(), Vec::new(), 0);
    let mut from = None;
    loop {
        let mut arguments = json!({ "node-name": "d" });
        if let Some(from) = &from {
            arguments["from"] = json!(from);
        }
        let page = qmp.ok("cowhand-log", arguments);
        assert!(page.to_string().len() < 300 << 10);
        layers.extend(page["layers"].as_array().expect("a list").clone());
        disks.extend(page["disks"].as_array().expect("a list").clone());
        pages += 1;
        match page.get("next") {
            Some(next) => from = Some(next.as_str().expect("text").to_owned()),
            None => break,
        }
    }
    let log = cowhand(["log", "--output", "json", &disk]).json();
    assert!(pages > 1 && disks.len() == FORKS + 1, "{pages} pages of {} disks", disks.len());
    assert_eq!((json!(layers), json!(disks)), (log["layers"].clone(), log["disks"].clone()));
    assert!(qmp.refused("cowhand-log", json!({ "node-name": "d", "from": "none" })).contains("begin anew"));
    // Ranges of two checkpoints, and of one and the disk as it is.
    let range =
        |start: u64, one: &str, other: &str| json!({ "start": start, "length": 65536, "a": one, "b": other });
    let mut diff = |arguments: serde_json::Value| {
        let mut all = json!({ "node-name": "d" });
        for (name, value) in arguments.as_object().expect("an object") {
            all[name] = value.clone();
        }
        qmp.ok("cowhand-diff", all)
    };
    let found = diff(json!({ "checkpoint": "one", "other": "two" }));
    assert_eq!(found, json!({ "ranges": [range(1 << 20, "shared", "data")] }));
    let now = [range(1 << 20, "shared", "data"), range(2 << 20, "shared", "data")];
    assert_eq!(diff(json!({ "checkpoint": "one" })), json!({ "ranges": now }));
    assert_eq!(diff(json!({ "checkpoint": "one", "offset": 2 << 20 })), json!({ "ranges": now[1..] }));
    assert_eq!(diff(json!({ "checkpoint": "two", "other": "two" })), json!({ "ranges": [] }));
    // A checkpoint is deleted; its layer stays for the disk that is backed by it.
    drop(client);
    let delete = json!({ "node-name": "d", "checkpoints": ["two"], "dry-run": true });
    let listed = qmp.ok("cowhand-checkpoint-delete", delete);
    assert_eq!((&listed["deleted"], &listed["layers"]), (&json!(false), &json!([])), "{listed}");
    assert_eq!(listed["needed"][0]["users"].as_array().map(Vec::len), Some(FORKS + 1));
    assert!(
        qmp.refused("cowhand-checkpoint-delete", json!({ "node-name": "d", "checkpoints": [] }))
            .contains("empty")
    );
    let none = json!({ "node-name": "d", "checkpoints": ["none"] });
    assert!(qmp.refused("cowhand-checkpoint-delete", none).contains("none"));
    // What a rollback leaves is listed, and then goes.
    qmp.ok("cowhand-rollback", json!({ "node-name": "d", "checkpoint": "one", "live": true }));
    let listed = qmp.ok("cowhand-gc", json!({ "node-name": "d", "unnamed": true }));
    let by_tool = cowhand(["gc", "--unnamed", "--output", "json", &disk]).json();
    assert_eq!((listed["layers"].as_array().expect("a list").len(), &listed), (1, &by_tool));
    let removed = qmp.ok("cowhand-gc", json!({ "node-name": "d", "unnamed": true, "remove": true }));
    assert_eq!((&removed["layers"], removed["deleted"].as_bool()), (&listed["layers"], Some(true)));
    assert_eq!(qmp.ok("cowhand-gc", json!({ "node-name": "d" }))["layers"], json!([]));
    server.stop();
    assert_eq!(lineage.log()["layers"].as_array().expect("a list").len(), 3);
    lineage.reads("f-700.qcow2", &["read -P 1 0 64k", "read -P 2 1M 64k", "read -P 0 2M 64k"]);
    lineage.reads("d.qcow2", &["read -P 1 0 64k", "read -P 0 1M 64k"]);
}

/// More ranges than one answer has.
#[test]
fn many_ranges_come_in_pages_and_are_those_of_the_tool() {
    const RANGES: u64 = 5000;
    let lineage = Lineage::new();
    let disk = lineage.name("s.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", "-o", "cluster_size=4k", &disk, "64M"]).ok();
    cowhand(["checkpoint", "-q", &disk, "one"]).ok();
    let server = lineage.serve_disk(&disk);
    let mut client = server.client("");
    for range in 0..RANGES {
        client.write(8192 * range + 4096, &[4; 512]).expect("a write");
    }
    client.flush().expect("a flush");
    let mut qmp = Qmp::connect(lineage.name("qmp").as_ref());
    let (mut ranges, mut offset) = (Vec::new(), json!(0));
    while !offset.is_null() {
        let arguments = json!({ "node-name": "s", "checkpoint": "one", "offset": offset });
        let page = qmp.ok("cowhand-diff", arguments);
        let found = page["ranges"].as_array().expect("a list");
        assert!(found.len() <= 4096);
        ranges.extend(found.clone());
        offset = page["next"].clone();
    }
    // The tool asks the server, whichever side the disk is.
    let (one, socket) = (format!("{disk}@one"), lineage.name("qmp"));
    assert_eq!(json!(ranges), cowhand(["diff", "--output", "json", &one, &socket]).json());
    let turned =
        cowhand(["diff", "--output", "json", &format!("{socket}:s"), &format!("{socket}@one")]).json();
    assert_eq!((turned[0]["a"].as_str(), turned[0]["b"].as_str()), (Some("data"), Some("shared")));
    assert_eq!(turned.as_array().map(Vec::len), Some(ranges.len()));
    let refused = cowhand(["diff", &socket, &socket]).fails();
    assert!(refused.contains("take a checkpoint of one of them"), "{refused}");
    server.stop();
    assert_eq!(ranges.len() as u64, RANGES);
    let by_tool = cowhand(["diff", "--output", "json", &one, &disk]).json();
    assert_eq!(json!(ranges), by_tool);
}
