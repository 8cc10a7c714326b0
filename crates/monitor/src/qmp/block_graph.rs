//! x-debug-query-block-graph: the users of each node, and their permissions.

use std::collections::HashMap;
use std::sync::Arc;

use graph::{LayerView, Node, NodeKind};
use serde_json::{Value, json};

use super::chosen::object;
use crate::inventory::Inventory;
use crate::turns::Turn;

/// What a parent does with a node: QEMU's permissions.
type Permissions = &'static [&'static str];

const NOTHING: Permissions = &[];
const ALL: Permissions = &["consistent-read", "write", "write-unchanged", "resize"];
const READS: Permissions = &["consistent-read"];
const READS_AND_WRITES: Permissions = &["consistent-read", "write"];
/// What the owner of a file does, and its locks keep others from.
const OWNS: Permissions = &["consistent-read", "write", "resize"];
/// What other users may do with a file that has an owner, or with a backing layer.
const WHAT_OTHERS_MAY: Permissions = &["consistent-read", "write-unchanged"];

/// All nodes, exports and jobs, with what leads from one to another.
pub async fn query(inventory: &Inventory) -> Value {
    let (mut drawing, mut turn) = (Drawing::default(), Turn::begin());
    let nodes: Vec<_> = inventory.graph.nodes().iter().map(Arc::downgrade).collect();
    for node in nodes {
        turn.pass().await;
        // It may be gone by now.
        let Some(node) = node.upgrade() else { continue };
        drawing.add_node(inventory, &node);
    }
    for export in inventory.exports() {
        let id = drawing.add("block-backend", export.id.clone());
        let does = if export.entry.disk().read_only() { READS } else { READS_AND_WRITES };
        drawing.lead(id, &export.disk.name(), "root", (does, ALL));
    }
    for job in inventory.jobs.all() {
        let id = drawing.add("block-job", job.life.terms().id.clone());
        for (role, node) in ["main node", "target"].into_iter().zip(job.nodes()) {
            let does = if role == "target" { READS_AND_WRITES } else { NOTHING };
            drawing.lead(id, &node, role, (does, ALL));
        }
    }
    Value::Object(object([("nodes", Value::Array(drawing.nodes)), ("edges", Value::Array(drawing.edges))]))
}

#[derive(Default)]
struct Drawing {
    nodes: Vec<Value>,
    edges: Vec<Value>,
    /// Numbers of drivers by name. An edge may name a node before the node is added.
    drivers: HashMap<String, usize>,
}

impl Drawing {
    /// Something new; gives its number.
    fn add(&mut self, kind: &'static str, name: String) -> usize {
        let id = self.nodes.len() + 1;
        self.nodes.push(json!({ "id": id, "type": kind, "name": name }));
        id
    }

    /// The number of the node called `name`.
    fn driver(&mut self, name: &str) -> usize {
        if let Some(id) = self.drivers.get(name) {
            return *id;
        }
        let id = self.add("block-driver", name.to_owned());
        self.drivers.insert(name.to_owned(), id);
        id
    }

    /// `parent` uses the node called `child` as its `role`, with these permissions; other users may have
    /// those.
    fn lead(&mut self, parent: usize, child: &str, role: &str, (does, lets): (Permissions, Permissions)) {
        let child = self.driver(child);
        let edge =
            json!({ "parent": parent, "child": child, "name": role, "perm": does, "shared-perm": lets });
        self.edges.push(edge);
    }

    fn add_node(&mut self, inventory: &Inventory, node: &Node) {
        let id = self.driver(&node.name());
        match &node.kind {
            NodeKind::Disk(disk) => match &node.filter {
                Some(filter) => {
                    let does = if disk.disk.read_only() { READS } else { READS_AND_WRITES };
                    for (role, below) in filter.below() {
                        self.lead(id, &below, role, (does, ALL));
                    }
                }
                None => self.add_layers(&inventory.graph.layers(&node.name()).unwrap_or_default()),
            },
            NodeKind::Throttle { child, .. } => {
                self.lead(id, &child.get(), "file", (READS_AND_WRITES, ALL));
            }
            NodeKind::JobFilter { driver, disk, image, .. } => {
                let role = if matches!(*driver, "mirror_top" | "commit_top") { "backing" } else { "file" };
                let below = image.clone().unwrap_or_else(|| disk.get());
                self.lead(id, &below, role, (READS_AND_WRITES, ALL));
            }
            NodeKind::File(_) | NodeKind::TakenOut => {}
        }
    }

    /// The images of a disk, each with its files. One without a name has that of its file.
    fn add_layers(&mut self, layers: &[LayerView]) {
        let images: Vec<&LayerView> = layers.iter().filter(|layer| !layer.is_filter).collect();
        for (at, layer) in images.iter().enumerate() {
            let id = self.driver(&name_of(layer));
            for (role, file) in &layer.files {
                let does = if layer.block.capabilities().read_only { READS } else { OWNS };
                self.lead(id, file, role, (does, WHAT_OTHERS_MAY));
            }
            if let Some(below) = images.get(at + 1) {
                self.lead(id, &name_of(below), "backing", (READS, WHAT_OTHERS_MAY));
            }
        }
    }
}

fn name_of(layer: &LayerView) -> String {
    layer.name.clone().unwrap_or_else(|| format!("image {}", layer.block.name()))
}
