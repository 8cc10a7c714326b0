//! Keys of the answers of queries, of a graph that each daemon is given.

use serde_json::{Value, json};

use super::Entries;
use super::daemon::Daemon;

/// Queries, with their arguments.
const QUERIES: [(&str, &str); 11] = [
    ("query-named-block-nodes", "{}"),
    ("query-block", "{}"),
    ("query-blockstats", "{}"),
    ("query-blockstats", "{\"query-nodes\": true}"),
    ("query-block-exports", "{}"),
    ("query-block-jobs", "{}"),
    ("query-jobs", "{}"),
    ("query-version", "{}"),
    ("x-debug-query-block-graph", "{}"),
    ("qom-list", "{\"path\": \"/objects\"}"),
    ("query-fdsets", "{}"),
];

/// The member that says what an answer about a node, an edge or a job is of.
const OF: [&str; 3] = ["drv", "driver", "type"];

/// Has `daemon` open a graph, and gives the keys of its answers about it.
///
/// # Errors
/// When the graph does not open.
pub fn keys(daemon: &mut Daemon) -> Result<Entries, String> {
    make_graph(daemon)?;
    let mut found = Entries::new();
    for (query, arguments) in QUERIES {
        let arguments: Value = serde_json::from_str(arguments).map_err(|error| error.to_string())?;
        if let Some(answer) = daemon.maybe(query, arguments) {
            collect(&answer, &format!("answer {query}"), &mut found);
        }
    }
    Ok(found)
}

/// A disk of two images with a bitmap, a snapshot and limits, exported; a raw disk, and a mirror of the first to that which is ready.
fn make_graph(daemon: &mut Daemon) -> Result<(), String> {
    let [base, top, raw, socket] = ["base.qcow2", "top.qcow2", "raw", "nbd"].map(|name| daemon.file(name));
    daemon.image(&["create", "-q", "-f", "qcow2", &base, "8M"])?;
    daemon.image(&["create", "-q", "-f", "qcow2", "-b", &base, "-F", "qcow2", &top, "8M"])?;
    daemon.image(&["create", "-q", "-f", "raw", &raw, "8M"])?;
    daemon.image(&["bitmap", "--add", &top, "daily"])?;
    daemon.image(&["snapshot", "-c", "first", &top])?;
    let file = |path: &str, name: &str| json!({ "driver": "file", "filename": path, "node-name": name });
    daemon.ok(
        "object-add",
        json!({ "qom-type": "throttle-group", "id": "g", "limits": { "iops-total": 1000 } }),
    )?;
    daemon.ok(
        "blockdev-add",
        json!({ "driver": "qcow2", "node-name": "base", "read-only": true, "file": file(&base, "base-file") }),
    )?;
    daemon.ok(
        "blockdev-add",
        json!({ "driver": "qcow2", "node-name": "top", "file": file(&top, "top-file"), "backing": "base" }),
    )?;
    daemon
        .ok("blockdev-add", json!({ "driver": "raw", "node-name": "raw", "file": file(&raw, "raw-file") }))?;
    daemon.ok(
        "blockdev-add",
        json!({ "driver": "throttle", "node-name": "limited", "throttle-group": "g", "file": "top" }),
    )?;
    daemon.ok("nbd-server-start", json!({ "addr": { "type": "unix", "data": { "path": socket } } }))?;
    daemon.ok(
        "block-export-add",
        json!({ "type": "nbd", "id": "e", "node-name": "limited", "writable": true }),
    )?;
    daemon.ok(
        "blockdev-mirror",
        json!({ "job-id": "j", "device": "limited", "target": "raw", "sync": "full", "filter-node-name": "f" }),
    )?;
    daemon.event("BLOCK_JOB_READY");
    Ok(())
}

/// Adds the paths of all keys of `value`, which is at `path`. What an object is of stands behind its path.
fn collect(value: &Value, path: &str, found: &mut Entries) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, &format!("{path}[]"), found)),
        Value::Object(members) => {
            let of = OF.iter().find_map(|name| members.get(*name)?.as_str());
            let path = of.map_or_else(|| path.to_owned(), |of| format!("{path}({of})"));
            for (name, member) in members {
                let path = format!("{path}.{name}");
                collect(member, &path, found);
                found.insert(path);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stand_behind_what_they_are_of() {
        let answer =
            json!([{ "drv": "raw", "image": { "format": "raw" } }, { "drv": "file" }, { "id": [1] }]);
        let mut found = Entries::new();
        collect(&answer, "answer q", &mut found);
        let expected = [
            "answer q[](file).drv",
            "answer q[](raw).drv",
            "answer q[](raw).image",
            "answer q[](raw).image.format",
            "answer q[].id",
        ];
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected);
    }
}
