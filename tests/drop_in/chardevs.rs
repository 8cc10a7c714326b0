//! Character devices that are made while the daemon runs, and the monitors that they get: answers as those of QEMU's.

use std::path::Path;

use black_box::Run;
use black_box::peer::newest_qemu;
use black_box::qmp::Qmp;
use serde_json::{Value, json};

use super::{Server, gone, images, ours};

/// What a daemon answers to these commands on its standard input.
fn answers(program: &Path, directory: &Path, commands: &[Value]) -> Vec<Value> {
    let lines: String = commands.iter().map(|command| format!("{command}\n")).collect();
    let input = format!("{{\"execute\":\"qmp_capabilities\"}}\n{lines}{{\"execute\":\"quit\"}}\n");
    let said = Run::new(program)
        .args(["--chardev", "stdio,id=m", "--monitor", "m"])
        .input(input)
        .current_dir(directory)
        .ok();
    let lines = said.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    lines.filter(|line: &Value| line.get("return").is_some() || line.get("error").is_some()).collect()
}

fn add(id: &str, kind: &str, data: Value) -> Value {
    json!({ "execute": "chardev-add", "arguments": { "id": id, "backend": { "type": kind, "data": data } } })
}

fn named(command: &str, id: &str) -> Value {
    json!({ "execute": command, "arguments": { "id": id } })
}

/// In no order, as QEMU lists them, and each error by its class: its words quote ids in several ways.
fn comparable(answer: Value) -> Value {
    match answer {
        Value::Object(mut answer) => match (answer.remove("return"), answer.remove("error")) {
            (Some(Value::Array(mut list)), _) => {
                list.sort_by_key(ToString::to_string);
                list.into()
            }
            (returned, error) => json!([returned, error.map(|error| error["class"].clone())]),
        },
        other => other,
    }
}

#[test]
fn devices_are_added_changed_listed_and_removed_as_by_qemus() {
    let Some(newest) = newest_qemu() else { return };
    let scratch = images();
    let socket = |path: &str| json!({ "addr": { "type": "unix", "data": { "path": scratch.name(path) } }, "wait": false });
    let name = format!("cowhand-test-{}-chardev", std::process::id());
    let address = json!({ "type": "unix", "data": { "path": name, "abstract": true, "tight": false } });
    let change = |id: &str, kind: &str, data: Value| {
        let mut command = add(id, kind, data);
        command["execute"] = json!("chardev-change");
        command
    };
    let object = |id: &str, chardev: &str| json!({ "execute": "object-add", "arguments": { "qom-type": "monitor-qmp", "id": id, "chardev": chardev } });
    let commands = [
        add("n", "null", json!({})),
        add("n", "null", json!({})),
        add("f", "file", json!({ "out": scratch.name("log") })),
        add("none", "file", json!({ "out": scratch.name("none/log") })),
        add("p", "pipe", json!({ "device": scratch.name("none") })),
        add("s", "socket", socket("q")),
        add("a", "socket", json!({ "addr": address, "server": true })),
        add("m2", "stdio", json!({})),
        json!({ "execute": "query-chardev" }),
        named("chardev-send-break", "n"),
        named("chardev-send-break", "none"),
        change("n", "null", json!({})),
        change("m", "null", json!({})),
        change("none", "null", json!({})),
        named("chardev-remove", "m"),
        named("chardev-remove", "none"),
        object("x", "n"),
        object("y", "n"),
        object("z", "none"),
        named("chardev-remove", "n"),
        json!({ "execute": "query-chardev" }),
        named("object-del", "x"),
        named("chardev-remove", "n"),
        named("chardev-remove", "s"),
        json!({ "execute": "query-chardev" }),
    ];
    let look = |program: &Path| {
        let answers = answers(program, scratch.path(), &commands);
        answers.into_iter().map(comparable).collect::<Vec<_>>()
    };
    let (theirs, own) = (look(&newest.join("qemu-storage-daemon")), look(&ours("qemu-storage-daemon")));
    for (place, (theirs, own)) in theirs.iter().zip(&own).enumerate() {
        assert_eq!(own, theirs, "{place}: {}", place.checked_sub(1).map_or(&json!(null), |at| &commands[at]));
    }
    assert_eq!(theirs.len(), own.len());
}

#[test]
fn a_monitor_that_was_made_by_command_takes_commands_until_it_is_removed() {
    let scratch = images();
    let first = format!("socket,id=c,path={},server=on,wait=off", scratch.name("s"));
    let args = ["--chardev", &first, "--monitor", "c"];
    let mut server = Server::start(&ours("qemu-storage-daemon"), scratch.path(), &args);
    let mut own = Qmp::connect(&scratch.file("s"));
    let address = json!({ "type": "unix", "data": { "path": scratch.name("t") } });
    let backend = json!({ "type": "socket", "data": { "addr": address } });
    own.ok("chardev-add", json!({ "id": "d", "backend": backend }));
    own.ok("object-add", json!({ "qom-type": "monitor-qmp", "id": "x", "chardev": "d" }));
    assert_eq!(own.ok("qom-get", json!({ "path": "/objects/x", "property": "chardev" })), "d");
    let mut second = Qmp::connect(&scratch.file("t"));
    assert_eq!(second.ok("query-version", json!({}))["qemu"]["major"], 11);
    assert!(own.refused("chardev-remove", json!({ "id": "d" })).contains("a monitor uses"));
    own.ok("object-del", json!({ "id": "x" }));
    // It stays there for the next monitor.
    own.ok("object-add", json!({ "qom-type": "monitor-qmp", "id": "y", "chardev": "d" }));
    assert_eq!(Qmp::connect(&scratch.file("t")).ok("query-block-exports", json!({})), json!([]));
    own.ok("object-del", json!({ "id": "y" }));
    own.ok("chardev-remove", json!({ "id": "d" }));
    gone(&scratch.file("t"));
    second.ok("quit", json!({}));
    assert!(server.ended().success());
}
