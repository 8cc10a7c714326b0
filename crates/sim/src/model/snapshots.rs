//! Snapshots of the oracle's disk.

use std::sync::Arc;

use super::history::{Frozen, Op, Reader, Value};
use super::{Mismatch, Model, Started};
use crate::content::SECTOR_BYTES;
use crate::request::Tick;

/// One snapshot, from the moment a client began to take it.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    frozen: Arc<Frozen>,
    /// When it was there for certain, and durable.
    created: Option<Tick>,
    /// When a client began to delete it.
    deleting: Option<Tick>,
    /// When it was gone for certain.
    deleted: Option<Tick>,
}

impl Snapshot {
    fn must_be_there(&self, at: Tick) -> bool {
        self.created.is_some_and(|created| created <= at)
            && self.deleting.is_none_or(|deleting| deleting > at)
    }

    fn may_be_there(&self, at: Tick) -> bool {
        self.frozen.at <= at && self.deleted.is_none_or(|deleted| deleted > at)
    }
}

impl Model {
    /// Taking a snapshot starts; no name comes twice. Nothing may be in flight.
    pub fn start_snapshot_create(&mut self, name: u32, now: Tick) {
        let frozen = Arc::new(self.history.freeze(now, self.size()));
        self.snapshots.insert(name, Snapshot { frozen, created: None, deleting: None, deleted: None });
    }

    /// The snapshot is there.
    pub fn snapshot_created(&mut self, name: u32, now: Tick) {
        if let Some(snapshot) = self.snapshots.get_mut(&name) {
            snapshot.created = Some(now);
        }
    }

    /// Deleting a snapshot starts; says whether there is one that no client began to delete.
    pub fn start_snapshot_delete(&mut self, name: u32, now: Tick) -> bool {
        match self.snapshots.get_mut(&name) {
            Some(snapshot @ Snapshot { created: Some(_), deleting: None, .. }) => {
                snapshot.deleting = Some(now);
                true
            }
            Some(_) | None => false,
        }
    }

    /// The snapshot is gone.
    pub fn snapshot_deleted(&mut self, name: u32, now: Tick) {
        if let Some(snapshot) = self.snapshots.get_mut(&name) {
            snapshot.deleted = Some(now);
        }
    }

    /// Whether these are snapshots that may be there after a crash at `crash` (or, without one, then), and
    /// none is missing.
    pub fn check_snapshot_names(&self, found: &[u32], crash: Tick) -> Result<(), String> {
        let missing =
            self.snapshots.iter().find(|(name, kept)| kept.must_be_there(crash) && !found.contains(name));
        if let Some((name, _)) = missing {
            return Err(format!("snapshot {name} is missing"));
        }
        let legal = |name: &&u32| self.snapshots.get(name).is_some_and(|kept| kept.may_be_there(crash));
        match found.iter().find(|name| !legal(name)) {
            Some(name) => Err(format!("snapshot {name} is there and cannot be")),
            None => Ok(()),
        }
    }

    /// The size that the disk had when the snapshot was taken.
    pub fn snapshot_size(&self, name: u32) -> Option<u64> {
        self.snapshots.get(&name).map(|snapshot| snapshot.frozen.size)
    }

    /// Checks what is read after going back to a snapshot.
    pub fn check_snapshot(&self, name: u32, offset: u64, bytes: &[u8]) -> Result<(), Mismatch> {
        let Some(snapshot) = self.snapshots.get(&name) else { return Ok(()) };
        let at = snapshot.frozen.at;
        self.check_among(&snapshot.frozen.sectors, offset, bytes, &Reader::Live { started: at, now: at })
    }

    /// Going back to a snapshot starts; `None` if there is no such snapshot for certain. Nothing else may be in
    /// flight.
    pub fn start_snapshot_apply(&mut self, name: u32, now: Tick) -> Option<Started> {
        let frozen = match self.snapshots.get(&name)? {
            Snapshot { frozen, created: Some(_), deleting: None, .. } => Arc::clone(frozen),
            Snapshot { .. } => return None,
        };
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
