//! Many disks in one server: what is asked of them, and what comes and goes meanwhile.

use std::collections::BTreeSet;

use black_box::qmp::Qmp;
use black_box::{Scratch, Server};
use serde_json::{Value, json};

use super::{begin_with_nothing, create, qcow2};

/// Enough for an answer to take several turns of the loop, and to have more bytes than may wait of events.
const DISKS: usize = 2000;

fn name(number: usize) -> String {
    format!("d{number}")
}

/// Disks of nothing: they take no descriptors, of which there may be a thousand.
fn disk(name: &str) -> Value {
    json!({ "driver": "raw", "node-name": name, "file": { "driver": "null-co", "size": 1 << 20 } })
}

fn served(scratch: &Scratch) -> (Server, Qmp) {
    let (server, mut qmp) = begin_with_nothing(scratch);
    for number in 0..DISKS {
        qmp.ok("blockdev-add", disk(&name(number)));
    }
    (server, qmp)
}

fn names_in(answer: &Value, member: &str) -> Vec<String> {
    let list = answer.as_array().expect("a list");
    list.iter().map(|value| value[member].as_str().expect("a name").to_owned()).collect()
}

/// A monitor had a thousand disks described every few seconds. Until the answer was made no other client's command was begun, and an event that came before it was
/// read cut the connection, since more than 4 MiB waited.
#[test]
fn others_go_on_while_a_long_answer_is_made_and_an_event_does_not_cut_its_reader_off() {
    let scratch = Scratch::new();
    let (server, mut changes) = served(&scratch);
    let mut slow = Qmp::connect(&scratch.file("qmp"));
    for query in ["query-block", "query-named-block-nodes", "query-blockstats"] {
        // Not read until a disk has gone and come twice, and the end of an export was reported.
        slow.send(format!("{{\"execute\": \"{query}\"}}\n").as_bytes()).expect("it listens");
        let gone = name(DISKS - 1);
        for _ in 0..2 {
            changes.ok("blockdev-del", json!({ "node-name": gone }));
            changes.ok("blockdev-add", disk(&gone));
            changes.ok("block-export-add", json!({ "type": "nbd", "id": "e", "node-name": gone }));
            changes.ok("block-export-del", json!({ "id": "e" }));
            changes.event("BLOCK_EXPORT_DELETED");
        }
        let answer = loop {
            let line = slow.line().expect("it is not cut off");
            if !line["return"].is_null() {
                break line;
            }
        };
        let member = if query == "query-block" { "device" } else { "node-name" };
        let described: BTreeSet<String> = names_in(&answer["return"], member).into_iter().collect();
        for stayed in (0..DISKS - 1).map(name) {
            assert!(described.contains(&stayed), "{query} does not have {stayed}");
        }
    }
    server.stop();
}

/// What one answer has is the client's to say: a program that managed a thousand disks read of all of them to learn of one.
#[test]
fn a_query_tells_of_what_is_named() {
    let scratch = Scratch::new();
    let (server, mut qmp) = begin_with_nothing(&scratch);
    for name in ["a", "b", "c"] {
        let path = create(&scratch, &format!("{name}.qcow2"), "1M");
        let mut image = qcow2(name, &path);
        image["file"]["node-name"] = json!(format!("{name}-file"));
        qmp.ok("blockdev-add", image);
        qmp.ok(
            "block-export-add",
            json!({ "type": "nbd", "id": format!("{name}-export"), "node-name": name }),
        );
    }
    let mut names_of = |query: &str, member: &str, mut arguments: Value, names: &[&str]| {
        arguments["names"] = json!(names);
        names_in(&qmp.ok(query, arguments), member)
    };
    let none = || json!({});
    assert_eq!(names_of("query-block", "device", none(), &["c", "a"]), ["c", "a"]);
    assert_eq!(names_of("query-blockstats", "node-name", none(), &["c", "a"]), ["c", "a"]);
    assert_eq!(names_of("x-query-throttle", "node-name", none(), &["b"]), ["b"]);
    assert_eq!(
        names_of("query-block-exports", "id", none(), &["b-export", "a-export"]),
        ["b-export", "a-export"]
    );
    let nodes = ["b-file", "a"];
    assert_eq!(
        names_of("query-named-block-nodes", "node-name", json!({ "flat": true }), &nodes),
        ["a", "b-file"]
    );
    assert_eq!(
        names_of("query-blockstats", "node-name", json!({ "query-nodes": true }), &nodes),
        ["a", "b-file"]
    );
    assert_eq!(names_of("query-block", "device", none(), &[]), [""; 0]);
    for query in [
        "query-block",
        "query-named-block-nodes",
        "query-blockstats",
        "query-block-exports",
        "x-query-throttle",
    ] {
        let words = qmp.refused(query, json!({ "names": ["none"] }));
        assert!(words.contains("\"none\""), "{query}: {words}");
    }
    qmp.refused("x-query-throttle", json!({ "device": "a", "names": ["a"] }));
    // A whole answer is as before, and a name leads to what is called so now.
    let all = qmp.ok("query-block", none());
    assert_eq!(names_in(&all, "device"), ["a", "b", "c"]);
    let one = qmp.ok("query-block", json!({ "names": ["b"] }));
    assert_eq!(one[0], all[1]);
    server.stop();
}
