//! How full the buckets of limits are: a guest gets no second burst by an upgrade.

use throttle::{BucketLevel, Flow};

use super::message::Levels;
use crate::inventory::Inventory;

/// Those of all disks that are limited.
pub fn levels(inventory: &Inventory) -> Vec<Levels> {
    let of_disk = |node: &std::sync::Arc<graph::DiskNode>| {
        let found = node.disk.throttle_report().shared.levels;
        let level = |flow: Flow| {
            let (_, level) = found.iter().find(|(other, _)| *other == flow)?;
            Some([level.level, level.burst.map_or(0.0, |(level, _)| level)])
        };
        (!found.is_empty()).then(|| Levels { node: node.name(), levels: Flow::ALL.map(level).to_vec() })
    };
    inventory.graph.disks().iter().filter_map(of_disk).collect()
}

/// Makes buckets as full as they were. A disk that is not here, or has other limits now, is passed over.
pub fn raise(inventory: &Inventory, levels: &[Levels]) {
    for Levels { node, levels } in levels {
        let Ok(disk) = inventory.graph.disk(node) else { continue };
        let both = Flow::ALL.into_iter().zip(levels);
        let level =
            |[level, burst]: [f64; 2]| BucketLevel { level, capacity: 0.0, burst: Some((burst, 0.0)) };
        let levels: Vec<_> = both.filter_map(|(flow, found)| Some((flow, level((*found)?)))).collect();
        disk.disk.raise_levels(&levels);
    }
}
