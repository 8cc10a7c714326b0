//! Events that no command asked for: failed requests (BLOCK_IO_ERROR), bitmaps out of date, quorums, servers
//! of remote disks.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use graph::front::{Kind, Statistics};

use super::{bitmaps, corruption, quorum, remotes};
use crate::inventory::nodes::Nodes;
use crate::turns::Turn;

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

/// Emits events for failed requests, for bitmaps that are out of date, for quorums and for servers that are
/// lost, for ever. Clients have their own errors; this is for the manager of the disks.
pub async fn tell(nodes: Rc<Nodes>) {
    let mut known: BTreeMap<String, [(&str, u64); 2]> = BTreeMap::new();
    let reported = remotes::Reported::default();
    loop {
        reported.tell(&nodes);
        let (mut now, mut turn) = (BTreeMap::new(), Turn::begin());
        let disks: Vec<_> = nodes.graph.disks().iter().map(Arc::downgrade).collect();
        for node in disks {
            turn.pass().await;
            let Some(node) = node.upgrade() else { continue };
            bitmaps::tell(&nodes, &node);
            quorum::tell(&nodes, &node);
            corruption::report(&nodes, &node);
            let failures = failures(&node.disk.statistics());
            let before = known.get(&node.name());
            for (index, (operation, failed)) in failures.iter().enumerate() {
                // A disk that was opened anew begins at nothing.
                let earlier = before.map_or(0, |before| before[index].1);
                if *failed > earlier {
                    let reason = format!("{} requests failed", failed - earlier);
                    nodes.tell_failed(&node.name(), operation, &reason);
                }
            }
            now.insert(node.name(), failures);
        }
        known = now;
        reactor::sleep(LOOK).await;
    }
}
