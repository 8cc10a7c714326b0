//! What a disk holds, now and after a crash.

use std::sync::Arc;

use storage::{Capabilities, Extent, ExtentKind};

use super::lock::Locked;
use super::machine::Machine;
use crate::content::Content;
use crate::request::{Record, Request, Tick};

pub(crate) struct Disk {
    pub name: String,
    pub capabilities: Capabilities,
    pub current: Content,
    pub durable: Content,
    pub capacity: Option<u64>,
    pub lock: Locked,
    /// Who writes it makes room first: no write reaches beyond the end, rounded up to this.
    pub room_first: Option<u64>,
    /// The most bytes that it can hold for now, holes not counted.
    pub room: Option<u64>,
    /// Completed changes that no flush has covered, in order of completion.
    pub unflushed: Vec<Arc<Record>>,
}

impl Machine {
    pub fn add_disk(&mut self, name: &str, capabilities: Capabilities, mut content: Content) -> usize {
        content.settle();
        let durable = content.clone();
        let name = name.to_owned();
        let capacity = (!capabilities.resizable).then(|| content.length());
        self.disks.push(Disk {
            name,
            capabilities,
            current: content,
            durable,
            capacity,
            lock: Locked::default(),
            room_first: None,
            room: None,
            unflushed: Vec::new(),
        });
        self.disks.len() - 1
    }

    /// Where nothing fails, a write goes to where the disk is long enough for it.
    pub fn judge_room(&mut self, disk: usize, request: &Request) {
        let Disk { room_first: Some(unit), name, current, .. } = &self.disks[disk] else { return };
        let end = current.length().next_multiple_of(*unit);
        let beyond = request.grows_to().is_some_and(|reaches| reaches > end);
        if beyond && self.faults.is_empty() && self.shortages.is_empty() {
            self.violations
                .push(format!("{request} on {name}, which ends at {end:#x}: no room was made for it"));
        }
    }
}

impl Disk {
    /// A flush issued at `issued` has succeeded.
    pub fn make_durable(&mut self, issued: Tick) {
        let covered = self.unflushed.partition_point(|record| record.completed.is_some_and(|at| at < issued));
        for record in self.unflushed.drain(..covered) {
            record.request.apply(&mut self.durable, record.part());
        }
    }

    pub fn forget_unflushed(&mut self) -> Content {
        self.unflushed.clear();
        self.current.settle();
        self.durable = self.current.clone();
        self.durable.clone()
    }

    pub fn extent(&self, offset: u64, len: u64) -> Extent {
        let (stored, end) = self.current.stored_at(offset);
        let last = offset.saturating_add(len).min(self.current.length());
        let kind = if stored { ExtentKind::Data } else { ExtentKind::Hole };
        Extent { len: end.min(last).saturating_sub(offset).max(1), kind }
    }
}
