//! Quorums: their members in blockdev-add, and QUORUM_REPORT_BAD and QUORUM_FAILURE, which tell that a disk of one is bad or too many are.

use block::SECTOR_BYTES;
use control::{Arguments, EventSpec, Kind, QmpError, optional, required};
use filter::{Operation, Quorum, Report, What};
use graph::{Change, ChildChange, DiskNode};
use serde_json::{Value, json};

use super::kinds::NUMBER;
use crate::inventory::Inventory;
use crate::inventory::nodes::Nodes;

const NAME_OF_BAD: &str = "QUORUM_REPORT_BAD";
const NAME_OF_FAILURE: &str = "QUORUM_FAILURE";

/// A disk failed, or reads otherwise than the most.
pub const REPORT_BAD: EventSpec = EventSpec {
    name: NAME_OF_BAD,
    data: Kind::Object(&[
        required("type", Kind::Choice(&["read", "write", "flush"])),
        optional("error", Kind::Text),
        required("node-name", Kind::Text),
        required("sector-num", NUMBER),
        required("sectors-count", NUMBER),
    ]),
};

/// Fewer disks than the threshold did it, or agree.
pub const FAILURE: EventSpec = EventSpec {
    name: NAME_OF_FAILURE,
    data: Kind::Object(&[
        required("reference", Kind::Text),
        required("sector-num", NUMBER),
        required("sectors-count", NUMBER),
    ]),
};

/// x-blockdev-change: a disk more, or one fewer, below a filter over a list of them.
pub async fn change(
    inventory: &Inventory,
    change: &Change<'_>,
    arguments: Arguments<'_>,
) -> Result<Value, QmpError> {
    let child = match (arguments.maybe_text("node"), arguments.maybe_text("child")) {
        (Some(node), None) => ChildChange::Add(node),
        (None, Some(child)) => ChildChange::Remove(child),
        (Some(_), Some(_)) | (None, None) => {
            return Err(QmpError::generic(
                "give one of the arguments 'node', which is added, and 'child', which goes",
            ));
        }
    };
    let changed = inventory.graph.change_children(change, arguments.text("parent")?, child).await;
    changed.map(|()| json!({})).map_err(|error| inventory.refused(&error))
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
            What::Failure => (NAME_OF_FAILURE, json!({ "reference": name })),
            What::Bad { disk, operation, error } => {
                // A quorum of a drive has no nodes below it.
                let bad = below.get(*disk).map_or("", |(_, name)| name);
                let mut data = json!({ "type": type_of(*operation), "node-name": bad });
                if let Some(error) = error {
                    data["error"] = json!(error);
                }
                (NAME_OF_BAD, data)
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
