//! What the commands do, as clients of the disks see it.

use std::os::unix::fs::MetadataExt;

use black_box::client::Request;
use black_box::peer::{assert_clean, assert_leaks_at_most, qemu_img, qemu_io_ok};
use black_box::qmp::Qmp;
use black_box::{Client, Run, Scratch, Server};
use serde_json::{Value, json};

use super::{Steered, begin_with_nothing, create, qcow2};

#[test]
fn a_disk_that_is_added_exported_and_removed_is_whole_and_free_again() {
    let steered = Steered::new();
    let path = create(&steered.scratch, "b.qcow2", "16M");
    let mut qmp = steered.talk();
    qmp.ok("blockdev-add", qcow2("b", &path));
    let export = json!({ "type": "nbd", "id": "e", "node-name": "b", "name": "bee", "writable": true });
    qmp.ok("block-export-add", export);
    let mut client = steered.server.client("bee");
    assert_eq!(client.size(), 16 << 20);
    client.write(1 << 20, &[7; 4096]).expect("a write");
    assert!(qmp.refused("blockdev-del", json!({ "node-name": "b" })).contains("in use by export"));
    let refused = qmp.refused("block-export-del", json!({ "id": "e" }));
    assert!(refused.contains("in use by 1 connections"), "{refused}");
    let stats = qmp.ok("query-blockstats", json!({}));
    let b = stats.as_array().expect("a list").iter().find(|disk| disk["node-name"] == "b").expect("b");
    assert_eq!((&b["stats"]["wr_operations"], &b["stats"]["wr_bytes"]), (&json!(1), &json!(4096)));
    qmp.ok("block-export-del", json!({ "id": "e", "mode": "hard" }));
    assert_eq!(qmp.event("BLOCK_EXPORT_DELETED")["data"], json!({ "id": "e" }));
    assert!(client.read(0, 1).is_err(), "the client is disconnected");
    assert!(Client::connect(steered.server.socket(), "bee").is_err());
    qmp.ok("blockdev-del", json!({ "node-name": "b" }));
    // No client flushed it: closing was enough. And the locks are gone.
    assert_clean(path.as_ref());
    qemu_io_ok(&["-f", "qcow2"], &path, &["read -P 7 1M 4k", "write 0 512"]);
    steered.server.stop();
}

#[test]
fn an_export_shows_no_more_than_it_was_reported_to() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let again = qmp.refused("block-export-add", json!({ "type": "nbd", "id": "ro", "node-name": "a" }));
    assert!(again.contains("an export named \"a\" already"), "{again}");
    let read_only = json!({ "type": "nbd", "id": "ro", "node-name": "a", "name": "ro", "description": "d" });
    qmp.ok("block-export-add", read_only);
    let refused = qmp.refused(
        "block-export-add",
        json!({ "type": "nbd", "id": "x", "node-name": "a", "name": "x", "bitmaps": ["b"] }),
    );
    assert!(refused.contains("no bitmap \"b\""), "{refused}");
    steered.server.client("a").write(0, &[1; 512]).expect("the first export is writable");
    let mut client = steered.server.client("ro");
    assert_eq!(client.read(0, 512).expect("a read"), [1; 512]);
    assert!(client.write(0, &[2; 512]).is_err());
    let exports = qmp.ok("query-block-exports", json!({}));
    assert_eq!((&exports[0]["writable"], &exports[1]["writable"]), (&json!(true), &json!(false)));
    steered.server.stop();
}

#[test]
fn nodes_are_found_by_name_and_filters_throttle_what_is_under_them() {
    let steered = Steered::new();
    let (base, top) = (create(&steered.scratch, "base.qcow2", "8M"), steered.scratch.name("top.qcow2"));
    qemu_img(["create", "-q", "-f", "qcow2", "-b", &base, "-F", "qcow2", &top]).ok();
    let mut qmp = steered.talk();
    qmp.ok("blockdev-add", json!({ "driver": "file", "node-name": "f", "filename": top }));
    let mut lower = qcow2("base", &base);
    lower["read-only"] = json!(true);
    qmp.ok("blockdev-add", lower);
    qmp.ok(
        "blockdev-add",
        json!({ "driver": "qcow2", "node-name": "top", "file": "f", "backing": "base",
        "l2-cache-size": 1 << 20, "cache": { "direct": false }, "auto-read-only": true }),
    );
    assert!(qmp.refused("blockdev-del", json!({ "node-name": "f" })).contains("in use by node \"top\""));
    qmp.ok("object-add", json!({ "qom-type": "throttle-group", "id": "g", "limits": { "iops-total": 500 } }));
    let filter = json!({ "driver": "throttle", "node-name": "t", "throttle-group": "g", "file": "top" });
    qmp.ok("blockdev-add", filter);
    assert!(qmp.refused("object-del", json!({ "id": "g" })).contains("in use by node \"t\""));
    qmp.ok("qom-set", json!({ "path": "/objects/g", "property": "limits", "value": { "iops-total": 900 } }));
    let limits = qmp.ok("qom-get", json!({ "path": "g", "property": "limits" }));
    assert_eq!(limits["iops-total"], 900);
    qmp.ok("block-export-add", json!({ "type": "nbd", "id": "e", "node-name": "t" }));
    assert_eq!(steered.server.client("t").size(), 8 << 20);
    let nodes = qmp.ok("query-named-block-nodes", json!({}));
    let drivers: Vec<(&str, &str)> = nodes
        .as_array()
        .expect("a list")
        .iter()
        .map(|node| (node["node-name"].as_str().expect("a name"), node["drv"].as_str().expect("a driver")))
        .collect();
    let expected = [("a", "qcow2"), ("f", "file"), ("base", "qcow2"), ("top", "qcow2"), ("t", "throttle")];
    assert_eq!(drivers, expected);
    assert_eq!(nodes[3]["iops"], 900, "{nodes}");
    qmp.ok("block-export-del", json!({ "id": "e", "mode": "hard" }));
    qmp.event("BLOCK_EXPORT_DELETED");
    for node in ["t", "top", "base", "f"] {
        qmp.ok("blockdev-del", json!({ "node-name": node }));
    }
    qmp.ok("object-del", json!({ "id": "g" }));
    steered.server.stop();
}

#[test]
fn a_server_may_begin_with_nothing_and_open_its_own_door() {
    let scratch = Scratch::new();
    let path = create(&scratch, "a.qcow2", "1M");
    let nbd = scratch.name("n");
    let (mut server, mut qmp) = begin_with_nothing(&scratch);
    assert!(qmp.refused("nbd-server-stop", json!({})).contains("does not listen"));
    let address = json!({ "addr": { "type": "unix", "data": { "path": nbd } } });
    qmp.ok("nbd-server-start", address.clone());
    assert!(qmp.refused("nbd-server-start", address).contains("listens already"));
    qmp.ok("blockdev-add", qcow2("a", &path));
    qmp.ok("block-export-add", json!({ "type": "nbd", "id": "a", "node-name": "a" }));
    let client = Client::connect(nbd.as_ref(), "a").expect("it serves");
    assert_eq!(client.flags() & 2, 2, "read-only by default");
    qmp.ok("nbd-server-stop", json!({}));
    // Answered when the export is gone, with its client.
    assert_eq!(qmp.ok("query-block-exports", json!({})), json!([]));
    qmp.ok("blockdev-del", json!({ "node-name": "a" }));
    qmp.event("BLOCK_EXPORT_DELETED");
    assert!(Client::connect(nbd.as_ref(), "a").is_err());
    assert_eq!(qmp.ok("query-block-exports", json!({})), json!([]));
    let inet = json!({ "addr": { "type": "inet", "data": { "host": "127.0.0.1", "port": "0" } } });
    let refused = qmp.refused("nbd-server-start", inet);
    assert!(refused.contains("--sandbox off"), "{refused}");
    qmp.ok("quit", json!({}));
    assert_eq!(qmp.event("SHUTDOWN")["data"]["reason"], "host-qmp-quit");
    assert!(server.outcome().status.success());
    assert_clean(path.as_ref());
}

#[test]
fn what_the_sandbox_does_not_allow_is_refused_with_the_way_out() {
    let steered = Steered::new();
    let elsewhere = Scratch::new();
    let path = create(&elsewhere, "b.qcow2", "1M");
    let landlocked =
        std::fs::read_to_string("/sys/kernel/security/lsm").is_ok_and(|lsm| lsm.contains("landlock"));
    let rules = elsewhere.write("rules", b"{}").display().to_string();
    let file = |name: &str, path: &str| json!({ "driver": "file", "node-name": name, "filename": path });
    let over =
        |driver: &str, path: &str| json!({ "driver": driver, "node-name": "f", "file": qcow2("b", path) });
    let socket = json!({ "type": "unix", "data": { "path": elsewhere.name("nbd") } });
    let (new, mut qmp) = (elsewhere.name("new.qcow2"), steered.talk());
    qmp.ok("blockdev-add", file("bare", &path));
    for (command, arguments) in [
        ("blockdev-add", qcow2("b", &path)),
        ("blockdev-add", over("copy-on-read", &path)),
        ("blockdev-add", json!({ "driver": "raw", "node-name": "r", "file": "bare" })),
        ("blockdev-snapshot-sync", json!({ "device": "a", "snapshot-file": new })),
        ("drive-backup", json!({ "device": "a", "sync": "full", "target": new })),
        (
            "blockdev-create",
            json!({ "job-id": "j", "options": { "driver": "file", "filename": new, "size": 0 } }),
        ),
        ("object-add", json!({ "qom-type": "authz-listfile", "id": "z", "filename": rules })),
        ("object-add", json!({ "qom-type": "secret", "id": "s", "file": rules })),
        (
            "object-add",
            json!({ "qom-type": "tls-creds-x509", "id": "t", "endpoint": "client", "dir": elsewhere.path() }),
        ),
        ("nbd-server-start", json!({ "addr": socket })),
        ("cowhand-fork", json!({ "node-name": "a", "checkpoint": "none", "new": new })),
    ] {
        let refused = qmp.refused(command, arguments.clone());
        let hints = refused.matches("--allow-path").count();
        assert!(hints == 1 || !landlocked, "{command} {arguments}: {refused}");
    }
    let server = json!({ "type": "inet", "host": "127.0.0.1", "port": "1" });
    let refused = qmp.refused("blockdev-add", json!({ "driver": "nbd", "node-name": "n", "server": server }));
    assert!(refused.contains("--allow-connect"), "{refused}");
    steered.server.stop();
}

#[test]
fn a_disk_grows_while_it_is_in_use_and_shrinks_only_if_that_is_meant() {
    let steered = Steered::new();
    let (mut qmp, mut client) = (steered.talk(), steered.server.client("a"));
    client.write((64 << 20) - 512, &[3; 512]).expect("a write at the end");
    qmp.ok("block_resize", json!({ "node-name": "a", "size": 128 << 20 }));
    assert_eq!(client.read((64 << 20) - 512, 512).expect("a read"), [3; 512]);
    let mut anew = steered.server.client("a");
    assert_eq!(anew.size(), 128 << 20);
    anew.write((128 << 20) - 512, &[4; 512]).expect("a write at the new end");
    assert!(qmp.refused("block_resize", json!({ "device": "a", "size": 1 << 20 })).contains("shrink"));
    qmp.ok("block_resize", json!({ "device": "a", "size": 1 << 20, "x-shrink": true }));
    assert!(anew.read(64 << 20, 512).is_err(), "beyond the end");
    let reported = qmp.event("BLOCK_IO_ERROR");
    assert_eq!(
        (&reported["data"]["node-name"], &reported["data"]["operation"]),
        (&json!("a"), &json!("read"))
    );
    steered.server.stop();
    let path = steered.scratch.name("a.qcow2");
    assert_clean(path.as_ref());
    assert_eq!(qemu_img(["info", "--output=json", &path]).json()["virtual-size"], 1 << 20);
}

#[test]
fn snapshots_are_taken_and_deleted_while_the_disk_is_in_use() {
    let steered = Steered::new();
    let (mut qmp, mut client) = (steered.talk(), steered.server.client("a"));
    client.write(0, &[1; 4096]).expect("a write");
    let named = json!({ "device": "a", "name": "s" });
    qmp.ok("blockdev-snapshot-internal-sync", named.clone());
    assert!(qmp.refused("blockdev-snapshot-internal-sync", named.clone()).contains("already"));
    client.write(0, &[2; 4096]).expect("a write");
    qmp.ok("blockdev-snapshot-internal-sync", json!({ "device": "a", "name": "other" }));
    let devices = qmp.ok("query-block", json!({}));
    let snapshots = devices[0]["inserted"]["image"]["snapshots"].as_array().expect("snapshots");
    assert_eq!(snapshots.iter().map(|entry| &entry["name"]).collect::<Vec<_>>(), ["s", "other"]);
    let deleted = qmp.ok("blockdev-snapshot-delete-internal-sync", json!({ "device": "a", "name": "other" }));
    assert_eq!(deleted["name"], "other");
    assert!(
        qmp.ask("blockdev-snapshot-delete-internal-sync", json!({ "device": "a", "name": "x" })).is_err()
    );
    steered.server.stop();
    let path = steered.scratch.name("a.qcow2");
    assert_clean(path.as_ref());
    qemu_img(["snapshot", "-a", "s", &path]).ok();
    qemu_io_ok(&["-f", "qcow2"], &path, &["read -P 1 0 4k"]);
}

#[test]
fn options_change_while_the_disk_is_in_use_and_those_that_cannot_are_named() {
    let steered = Steered::new();
    let path = steered.scratch.name("a.qcow2");
    let mut qmp = steered.talk();
    let mut options = qcow2("a", &path);
    options["discard"] = json!("unmap");
    options["detect-zeroes"] = json!("unmap");
    options["cache-clean-interval"] = json!(5);
    qmp.ok("blockdev-reopen", json!({ "options": [options] }));
    let nodes = qmp.ok("query-named-block-nodes", json!({}));
    assert_eq!((&nodes[0]["discard"], &nodes[0]["detect_zeroes"]), (&json!("unmap"), &json!("unmap")));
    let mut client = steered.server.client("a");
    client.write(0, &[9; 65536]).expect("a write");
    client.trim(0, 65536).expect("a trim");
    client.flush().expect("a flush");
    options = qcow2("a", &path);
    options["cache"] = json!({ "direct": true });
    let refused = qmp.refused("blockdev-reopen", json!({ "options": [options] }));
    assert!(refused.contains("cache.direct"), "{refused}");
    qmp.ok("x-blockdev-set", json!({ "node-name": "a", "options": "read-only=on" }));
    assert!(client.write(0, &[1; 512]).is_err());
    qmp.ok("x-blockdev-set", json!({ "node-name": "a", "options": "read-only=off" }));
    client.write(0, &[1; 512]).expect("a write");
    steered.server.stop();
}

/// Whether the image's header says that its refcounts may be wrong.
fn is_dirty(path: &str) -> bool {
    let header = std::fs::read(path).expect("an image");
    header[79] & 1 == 1
}

#[test]
fn lazy_refcounts_and_overlap_checks_change_while_the_disk_is_in_use() {
    let steered = Steered::new();
    let path = steered.scratch.name("a.qcow2");
    let (mut qmp, mut client) = (steered.talk(), steered.server.client("a"));
    let mut write = |number: u8| {
        client.write(u64::from(number) << 20, &[number; 4096]).expect("a write");
        client.flush().expect("a flush");
    };
    write(1);
    let mut options = qcow2("a", &path);
    (options["lazy-refcounts"], options["overlap-check"]) = (json!(true), json!("all"));
    qmp.ok("blockdev-reopen", json!({ "options": [options] }));
    write(2);
    assert!(is_dirty(&path), "refcounts are behind");
    qmp.ok("x-blockdev-set", json!({ "node-name": "a", "options": "lazy-refcounts=off" }));
    assert!(!is_dirty(&path));
    write(3);
    // As if the power had gone: all that was flushed is there, and counted.
    steered.server.kill();
    assert!(!is_dirty(&path));
    assert_leaks_at_most(path.as_ref());
    for number in 1..=3 {
        qemu_io_ok(&["-f", "qcow2", "-r"], &path, &[&format!("read -P {number} {number}M 4k")]);
    }
    let old = create(&steered.scratch, "old.qcow2", "1M");
    qemu_img(["amend", "-o", "compat=0.10", &old]).ok();
    let server = Server::start(["--qmp", &steered.scratch.name("other"), &old]);
    let mut qmp = Qmp::connect(steered.scratch.file("other").as_ref());
    let refused =
        qmp.refused("x-blockdev-set", json!({ "node-name": "old", "options": "lazy-refcounts=on" }));
    assert!(refused.contains("version 3"), "{refused}");
    server.stop();
}

#[test]
fn wrong_arguments_are_named() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let table: [(&str, Value, &str); 8] = [
        ("blockdev-add", json!({ "driver": "qed" }), "argument 'driver' is \"qed\""),
        ("blockdev-add", json!({ "driver": "qcow2", "node-name": "x" }), "argument 'file' is missing"),
        (
            "blockdev-add",
            json!({ "driver": "qcow2", "node-name": "x", "file": { "driver": "file", "filenam": "x" } }),
            "argument 'file.filenam' is unknown; did you mean 'filename'?",
        ),
        ("block-export-del", json!({ "id": "x", "mode": "soft" }), "argument 'mode' is \"soft\""),
        ("block_resize", json!({ "size": "1G" }), "argument 'size' is a text; it must be a whole number"),
        (
            "block_resize",
            json!({ "size": 512, "device": "nothing" }),
            "there is no device or node \"nothing\"",
        ),
        ("qom-set", json!({ "path": "x", "property": "limits", "value": {} }), "there is no object \"x\""),
        (
            "block_set_io_throttle",
            json!({ "id": "a", "bps": 1, "bps_rd": 1, "bps_wr": 0, "iops": 0, "iops_rd": 0, "iops_wr": 0 }),
            "bps",
        ),
    ];
    for (command, arguments, expected) in table {
        let refused = qmp.refused(command, arguments);
        assert!(refused.contains(expected), "{command}: {refused}");
    }
    assert_eq!(qmp.ask("device_add", json!({})).expect_err("no such command").0, "CommandNotFound");
    assert_eq!(
        qmp.ask("blockdev-del", json!({ "node-name": "x" })).expect_err("no such node").0,
        "GenericError"
    );
    steered.server.stop();
}

#[test]
fn the_socket_is_its_owners_alone_and_a_dead_ones_name_is_taken_over() {
    let steered = Steered::new();
    assert_eq!(std::fs::metadata(&steered.qmp).expect("a socket").mode() & 0o777, 0o600);
    let qmp = steered.qmp.to_str().expect("text");
    let other = create(&steered.scratch, "b.qcow2", "1M");
    assert!(Server::refuses(["--qmp", qmp, &other]).contains("another server listens there"));
    steered.server.kill();
    let server = Server::start(["--qmp", qmp, &other]);
    server.stop();
    assert!(!steered.qmp.exists());
}

#[test]
fn histograms_count_between_the_bounds_that_were_chosen() {
    let steered = Steered::new();
    let (mut qmp, mut client) = (steered.talk(), steered.server.client("a"));
    qmp.ok("block-latency-histogram-set", json!({ "id": "a", "boundaries": [1000, 1_000_000_000_000_u64] }));
    (0..5).for_each(|_| _ = client.read(0, 512).expect("a read"));
    let stats = qmp.ok("query-blockstats", json!({}));
    let histogram = &stats[0]["stats"]["rd_latency_histogram"];
    let bins: u64 = histogram["bins"].as_array().expect("bins").iter().filter_map(Value::as_u64).sum();
    assert_eq!((bins, histogram["bins"].as_array().map(Vec::len)), (5, Some(3)), "{stats}");
    qmp.ok("block-latency-histogram-set", json!({ "id": "a" }));
    assert!(qmp.ok("query-blockstats", json!({}))[0]["stats"]["rd_latency_histogram"].is_null());
    steered.server.stop();
}

#[test]
fn clients_that_are_disconnected_do_not_wait_for_limits() {
    let steered = Steered::new();
    let (mut qmp, mut client) = (steered.talk(), steered.server.client("a"));
    let legacy =
        json!({ "id": "a", "bps": 0, "bps_rd": 0, "bps_wr": 0, "iops": 1, "iops_rd": 0, "iops_wr": 0 });
    qmp.ok("block_set_io_throttle", legacy);
    // Two minutes' worth, were they all to wait.
    (0..120).for_each(|at| _ = client.send(&Request::read(at * 512, 512)).expect("it listens"));
    client.receive().expect("the first one goes at once");
    qmp.ok("block-export-del", json!({ "id": "a", "mode": "hard" }));
    qmp.event("BLOCK_EXPORT_DELETED");
    qmp.ok("blockdev-del", json!({ "node-name": "a" }));
    steered.server.stop();
    assert_clean(steered.scratch.file("a.qcow2").as_ref());
}

#[test]
fn the_door_that_a_command_opens_can_have_tls() {
    let scratch = Scratch::new();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    scratch.write("server-cert.pem", made.cert.pem().as_bytes());
    scratch.write("ca-cert.pem", made.cert.pem().as_bytes());
    scratch.write("server-key.pem", made.signing_key.serialize_pem().as_bytes());
    let path = create(&scratch, "a.qcow2", "1M");
    let nbd = scratch.name("n");
    let (server, mut qmp) = begin_with_nothing(&scratch);
    qmp.ok("blockdev-add", qcow2("a", &path));
    let credentials = json!({ "qom-type": "tls-creds-x509", "id": "tls", "endpoint": "server",
        "dir": scratch.path(), "verify-peer": false });
    qmp.ok("object-add", credentials);
    let address = json!({ "type": "unix", "data": { "path": nbd } });
    let refused = qmp.refused("nbd-server-start", json!({ "addr": address, "tls-creds": "other" }));
    assert!(refused.contains("no object \"other\""), "{refused}");
    qmp.ok("nbd-server-start", json!({ "addr": address, "tls-creds": "tls" }));
    qmp.ok("block-export-add", json!({ "type": "nbd", "id": "a", "node-name": "a" }));
    let certificates = scratch.path().display();
    let uri = format!("nbds+unix:///a?socket={nbd}&tls-certificates={certificates}&tls-verify-peer=false");
    assert_eq!(Run::new("nbdinfo").args(["--json", &uri]).json()["TLS"], true);
    assert!(Client::connect(nbd.as_ref(), "a").is_err(), "never without");
    server.stop();
}

#[test]
fn objects_for_threads_keep_their_numbers() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    qmp.ok("object-add", json!({ "qom-type": "iothread", "id": "io", "poll-max-ns": 5, "poll-weight": 4 }));
    let get =
        |qmp: &mut Qmp, name: &str| qmp.ok("qom-get", json!({ "path": "/objects/io", "property": name }));
    for (name, number) in [("poll-max-ns", 5), ("poll-weight", 4), ("poll-grow", 2), ("thread-pool-max", 64)]
    {
        assert_eq!(get(&mut qmp, name), number, "{name}");
    }
    let set = |name: &str, value: Value| json!({ "path": "io", "property": name, "value": value });
    qmp.ok("qom-set", set("poll-max-ns", json!(0)));
    for (name, value) in [("poll-max-ns", json!(-1)), ("thread-pool-min", json!(65)), ("type", json!("x"))] {
        drop(qmp.refused("qom-set", set(name, value)));
    }
    assert_eq!((get(&mut qmp, "poll-max-ns"), get(&mut qmp, "thread-pool-min")), (json!(0), json!(0)));
    let none = qmp.ask("qom-get", json!({ "path": "/objects/none", "property": "type" }));
    assert_eq!(none.expect_err("no such object").0, "DeviceNotFound");
    assert_eq!(qmp.ok("qom-get", json!({ "path": "/objects", "property": "io" })), "/objects/io");
    steered.server.stop();
}
