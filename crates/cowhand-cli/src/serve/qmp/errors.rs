//! Events that no command asked for: failed requests (BLOCK_IO_ERROR), bitmaps out of date, quorums, servers
//! of remote disks.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use graph::front::{Kind, Statistics};
use serde_json::json;

use super::{bitmaps, corruption, quorum, remotes};
use crate::serve::inventory::Inventory;
use crate::serve::turns::Turn;

/// Time between two readings of the counters: at most one event in it for each disk and direction, however
/// much fails.
const LOOK: Duration = Duration::from_secs(1);

/// Failed requests by QEMU's two directions: everything that changes the disk is a write.
fn failures(statistics: &Statistics) -> [(&'static str, u64); 2] {
    let failed = |kinds: &[Kind]| kinds.iter().map(|kind| statistics.of(*kind).failed).sum();
    [
        ("read", failed(&[Kind::Read])),
        ("write", failed(&[Kind::Write, Kind::Zero, Kind::Discard, Kind::Flush])),
    ]
}

/// Sends BLOCK_IO_ERROR for a node; `operation` is `read` or `write`.
pub fn io_error(inventory: &Inventory, node: &str, operation: &str, reason: &str) {
    let data = json!({
        // QEMU says the guest's device here; we do not know it.
        "qom-path": "",
        "device": node,
        "node-name": node,
        "operation": operation,
        "action": "report",
        "reason": reason,
    });
    inventory.events.emit("BLOCK_IO_ERROR", &data);
}

/// Emits events for failed requests, for bitmaps that are out of date, for quorums and for servers that are
/// lost, for ever. Clients have their own errors; this is for the manager of the disks.
pub async fn tell(inventory: Rc<Inventory>) {
    let mut known: BTreeMap<String, [(&str, u64); 2]> = BTreeMap::new();
    let reported = remotes::Reported::default();
    loop {
        reported.tell(&inventory);
        let (mut now, mut turn) = (BTreeMap::new(), Turn::begin());
        let disks: Vec<_> = inventory.graph.disks().iter().map(Arc::downgrade).collect();
        for node in disks {
            turn.pass().await;
            let Some(node) = node.upgrade() else { continue };
            bitmaps::tell(&inventory, &node);
            quorum::tell(&inventory, &node);
            corruption::report(&inventory, &node);
            let failures = failures(&node.disk.statistics());
            let before = known.get(&node.name());
            for (index, (operation, failed)) in failures.iter().enumerate() {
                // A disk that was opened anew begins at nothing.
                let earlier = before.map_or(0, |before| before[index].1);
                if *failed > earlier {
                    let reason = format!("{} requests failed", failed - earlier);
                    io_error(&inventory, &node.name(), operation, &reason);
                }
            }
            now.insert(node.name(), failures);
        }
        known = now;
        reactor::sleep(LOOK).await;
    }
}
