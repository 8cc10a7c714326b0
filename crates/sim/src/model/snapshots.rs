//! Snapshots of the oracle's disk.

use std::sync::Arc;

use super::history::{Op, Value};
use super::{Model, Started};
use crate::content::SECTOR_BYTES;
use crate::request::Tick;

impl Model {
    /// Remembers the disk as it is. Nothing may be in flight.
    pub fn snapshot_created(&mut self, name: u32, now: Tick) {
        let frozen = self.history.freeze(now, self.size());
        self.snapshots.insert(name, Arc::new(frozen));
    }

    /// Forgets a snapshot.
    pub fn snapshot_deleted(&mut self, name: u32) {
        self.snapshots.remove(&name);
    }

    /// The names of the snapshots there are.
    pub fn snapshot_names(&self) -> Vec<u32> {
        self.snapshots.keys().copied().collect()
    }

    /// Going back to a snapshot starts; `None` if there is no such snapshot. Nothing else may be in flight.
    pub fn start_snapshot_apply(&mut self, name: u32, now: Tick) -> Option<Started> {
        let frozen = Arc::clone(self.snapshots.get(&name)?);
        let mut sectors = self.history.known_sectors();
        sectors.extend(frozen.sectors.keys());
        sectors.sort_unstable();
        sectors.dedup();
        let resize = self.history.add(Op::started(Value::Size(frozen.size), now));
        self.sizes.push(resize);
        let apply = self.history.add(Op::started(Value::Frozen(frozen), now));
        for sector in sectors {
            self.history.touch(apply, sector * SECTOR_BYTES, SECTOR_BYTES);
        }
        Some(Started { ops: vec![resize, apply] })
    }
}
