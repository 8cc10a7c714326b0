//! Quorums: their members in blockdev-add, and QUORUM_REPORT_BAD and QUORUM_FAILURE, which tell that a disk of one is bad or too many are.

use block::SECTOR_BYTES;
use control::{QmpError, arguments, choice, events};
use filter::{Operation, Quorum, Report, What};
use graph::{Change, ChildChange, DiskNode};
use serde_json::{Value, json};

use crate::inventory::Inventory;
use crate::inventory::nodes::Nodes;

choice! {
    /// What a disk did not do.
    pub enum Kind { Read, Write, Flush }
}

events! {
    /// A disk failed, or reads otherwise than the most.
    pub REPORT_BAD = "QUORUM_REPORT_BAD" {
        "type": Kind, "error": Option<String>, "node-name": String, "sector-num": u64, "sectors-count": u64,
    }

    /// Fewer disks than the threshold did it, or agree.
    pub FAILURE = "QUORUM_FAILURE" { "reference": String, "sector-num": u64, "sectors-count": u64 }
}

arguments! {
    /// A disk that comes or goes.
    pub struct ChangeChildren { parent: String, child: Option<String>, node: Option<String> }
}

/// x-blockdev-change: a disk more, or one fewer, below a filter over a list of them.
pub async fn change(
    inventory: &Inventory,
    change: &Change<'_>,
    given: &ChangeChildren,
) -> Result<(), QmpError> {
    let child = match (&given.node, &given.child) {
        (Some(node), None) => ChildChange::Add(node),
        (None, Some(child)) => ChildChange::Remove(child),
        (Some(_), Some(_)) | (None, None) => {
            return Err(QmpError::generic(
                "give one of the arguments 'node', which is added, and 'child', which goes",
            ));
        }
    };
    let changed = inventory.graph.change_children(change, &given.parent, child).await;
    changed.map_err(|error| inventory.refused(&error))
}

/// Emits events for what the quorum `node` met since the last call. Does nothing for other disks.
pub fn tell(nodes: &Nodes, node: &DiskNode) {
    let layers = block::layers(node.disk.root());
    let reports: Vec<Report> = layers
        .filter_map(|layer| layer.downcast_ref::<Quorum>().map(Quorum::take_reports))
        .flatten()
        .collect();
    if reports.is_empty() {
        return;
    }
    let name = node.name();
    let below = nodes.graph.node(&name).ok();
    let below = below.and_then(|node| node.filter.as_ref().map(graph::FilterNode::below)).unwrap_or_default();
    for report in reports {
        let (event, mut data) = match &report.what {
            What::Failure => (FAILURE.name, json!({ "reference": name })),
            What::Bad { disk, operation, error } => {
                // A quorum of a drive has no nodes below it.
                let bad = below.get(*disk).map_or("", |(_, name)| name);
                let mut data = json!({ "type": type_of(*operation), "node-name": bad });
                if let Some(error) = error {
                    data["error"] = json!(error);
                }
                (REPORT_BAD.name, data)
            }
        };
        let [first, count] = sectors(&report);
        (data["sector-num"], data["sectors-count"]) = (first, count);
        nodes.events.emit(event, &data);
    }
}

fn type_of(operation: Operation) -> &'static str {
    match operation {
        Operation::Read => "read",
        Operation::Write => "write",
        Operation::Flush => "flush",
    }
}

/// The first sector of what a report is about, and how many there are.
fn sectors(report: &Report) -> [Value; 2] {
    let first = report.offset / SECTOR_BYTES;
    let end = report.offset.saturating_add(report.len).div_ceil(SECTOR_BYTES);
    [json!(first), json!(end - first)]
}
