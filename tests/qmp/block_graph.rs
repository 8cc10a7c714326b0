//! `x-debug-query-block-graph` shows what QEMU's shows of the same nodes.

use std::collections::BTreeSet;

use black_box::Scratch;
use black_box::peer::qemu_img;
use black_box::qmp::Qmp;
use serde_json::{Value, json};

use super::backups::Daemon;
use super::jobs::reported;
use super::{Steered, create};

/// Edges as names: of the parent, of the child, and what the child is to it.
fn edges(qmp: &mut Qmp) -> BTreeSet<[String; 4]> {
    let graph = qmp.ok("x-debug-query-block-graph", json!({}));
    let nodes = graph["nodes"].as_array().expect("nodes");
    let ids: BTreeSet<_> = nodes.iter().map(|node| node["id"].as_u64()).collect();
    assert_eq!(ids.len(), nodes.len(), "{graph}");
    let find = |id: &Value| nodes.iter().find(|node| node["id"] == *id).expect("an edge leads to a node");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let known = ["consistent-read", "write", "write-unchanged", "resize"];
    let edges = graph["edges"].as_array().expect("edges").iter().map(|edge| {
        for list in ["perm", "shared-perm"] {
            assert!(
                edge[list]
                    .as_array()
                    .expect("a list")
                    .iter()
                    .all(|one| known.iter().any(|known| one == known))
            );
        }
        let parent = find(&edge["parent"]);
        [
            text(&parent["type"]),
            text(&parent["name"]),
            text(&edge["name"]),
            text(&find(&edge["child"])["name"]),
        ]
    });
    edges.collect()
}

/// A chain with names for everything, a target, and a mirror that is ready, whose filter is `f`.
fn mirrored(qmp: &mut Qmp, scratch: &Scratch, begin: &str) -> BTreeSet<[String; 4]> {
    let base = create(scratch, &format!("{begin}-base"), "1M");
    let top = scratch.name(&format!("{begin}-top"));
    qemu_img(["create", "-q", "-f", "qcow2", "-b", &base, "-F", "qcow2", &top]).ok();
    let target = create(scratch, &format!("{begin}-target"), "1M");
    let file = |name: &str, path: &str| json!({ "driver": "file", "node-name": name, "filename": path });
    let image = |name: &str, path: &str| json!({ "driver": "qcow2", "node-name": name, "file": file(&format!("{name}-file"), path) });
    let mut disk = image("top", &top);
    disk["backing"] = image("base", &base);
    qmp.ok("blockdev-add", disk);
    qmp.ok("blockdev-add", image("target", &target));
    let arguments = json!({ "job-id": "j", "device": "top", "target": "target", "sync": "full", "filter-node-name": "f" });
    qmp.ok("blockdev-mirror", arguments);
    reported(qmp, "BLOCK_JOB_READY", "j");
    edges(qmp)
}

#[test]
fn the_graph_has_the_edges_that_qemu_shows() {
    let steered = Steered::new();
    let scratch = &steered.scratch;
    let other = create(scratch, "other.qcow2", "64M");
    let (_daemon, mut theirs) = Daemon::with(&scratch.file("daemon"), &other);
    let mut qmp = steered.talk();
    let (theirs, ours) = (mirrored(&mut theirs, scratch, "theirs"), mirrored(&mut qmp, scratch, "ours"));
    let of = |edges: &BTreeSet<[String; 4]>, kind: &str, child: &str| -> Vec<[String; 4]> {
        edges.iter().filter(|edge| edge[0] == kind && edge[3].starts_with(child)).cloned().collect()
    };
    for child in ["base", "top", "target-file"] {
        assert_eq!(of(&ours, "block-driver", child), of(&theirs, "block-driver", child));
    }
    let leads = |edges: &BTreeSet<[String; 4]>, parent: &str, child: &str| {
        edges.iter().any(|edge| edge[1] == parent && edge[3] == child)
    };
    for edges in [&ours, &theirs] {
        assert!(leads(edges, "f", "top") && leads(edges, "j", "target"), "{edges:#?}");
    }
    assert!(leads(&ours, "a", "a"), "the export: {ours:#?}");
    qmp.ok("block-job-cancel", json!({ "device": "j" }));
    reported(&mut qmp, "BLOCK_JOB_COMPLETED", "j");
    assert!(!edges(&mut qmp).iter().any(|edge| edge[1] == "f"), "the filter is gone");
    steered.server.stop();
}
