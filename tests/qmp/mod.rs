//! A running server is steered over its control socket, by QEMU's clients and by people.

#![forbid(unsafe_code)]

mod active;
mod amendment;
mod answered;
mod apart;
mod backups;
mod bitmaps;
mod block_graph;
mod chosen_snapshots;
mod churn;
mod commands;
mod corruption;
mod creation;
mod each_command;
mod fd_sets;
mod filters;
mod hostile;
mod job_filters;
mod jobs;
mod jobs_at_once;
mod live;
mod long_chain;
mod many_disks;
mod metrics;
mod moved_bitmaps;
mod named_layers;
mod neighbours;
mod options;
mod other_files;
mod people;
mod preallocation;
mod quorum;
mod random_commands;
mod raw_sizes;
mod raw_window;
mod reopened_backing;
mod schema;
mod shipped_job_faults;
mod stacks;
mod thresholds;
mod transactions;
mod unlike;

use std::path::PathBuf;

use black_box::peer::qemu_img;
use black_box::qmp::Qmp;
use black_box::server::Start;
use black_box::{Scratch, Server};

/// A server with one disk of 64 MiB, `a`, and its control socket; the scratch directory is open to commands.
struct Steered {
    server: Server,
    qmp: PathBuf,
    scratch: Scratch,
}

impl Steered {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(more: &[&str]) -> Self {
        Self::started(|start| start.args(more))
    }

    fn started(with: impl FnOnce(Start) -> Start) -> Self {
        let scratch = Scratch::new();
        let path = create(&scratch, "a.qcow2", "64M");
        let qmp = scratch.file("qmp");
        let start = Start::new(["--qmp"]).arg(&qmp).arg("--allow-path").arg(scratch.path());
        let mut server = with(start).arg(&path).listen().unwrap_or_else(|error| panic!("{}", error.0));
        // Its sockets listen before it answers: it does once it says so.
        server.wait_until(|server| server.stdout().contains("control:").then_some(())).expect("it serves");
        Self { server, qmp, scratch }
    }

    fn talk(&self) -> Qmp {
        Qmp::connect(&self.qmp)
    }
}

/// A server without disks that admits no client but at its control socket; the scratch directory is open to commands.
fn begin_with_nothing(scratch: &Scratch) -> (Server, Qmp) {
    let qmp = scratch.name("qmp");
    let start = Start::new(["--qmp", &qmp, "--allow-path"]).arg(scratch.path());
    let mut server = start.listening_on(&qmp).spawn();
    server.wait_until(|server| server.stdout().contains("control:").then_some(())).expect("it serves");
    let client = Qmp::connect(qmp.as_ref());
    (server, client)
}

/// A fresh image; gives its path.
fn create(scratch: &Scratch, name: &str, size: &str) -> String {
    let path = scratch.name(name);
    qemu_img(["create", "-q", "-f", "qcow2", &path, size]).ok();
    path
}

/// The options of blockdev-add for an image.
fn qcow2(name: &str, path: &str) -> serde_json::Value {
    serde_json::json!({ "driver": "qcow2", "node-name": name, "file": { "driver": "file", "filename": path } })
}

/// What is reported of the node called `name`, if it is there.
fn node(qmp: &mut Qmp, name: &str) -> Option<serde_json::Value> {
    let nodes = qmp.ok("query-named-block-nodes", serde_json::json!({}));
    nodes.as_array().expect("a list").iter().find(|node| node["node-name"] == name).cloned()
}
