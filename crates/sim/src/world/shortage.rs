//! A device that fills up, and has room again later.

use crate::request::{IoKind, Part, Request};

use super::medium::Disk;

/// What a file system gives out at once: a page of [`crate::Content`].
const UNIT_BYTES: u64 = 4096;

/// A disk takes `bytes` more than it holds when the `from`-th I/O is issued, and not one beyond, until the
/// `until`-th is issued. What is given back meanwhile may be taken again; what has room already is written
/// as ever.
///
/// I/O of all disks is counted, from 1 from when the shortage was planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Which disk.
    pub disk: usize,
    /// The first I/O to meet it.
    pub from: u64,
    /// The first one not to meet it any more.
    pub until: u64,
    /// What is left to take.
    pub bytes: u64,
}

/// The plan, and how far it has come.
#[derive(Debug, Default)]
pub(super) struct Shortages {
    planned: Vec<Shortage>,
    seen: u64,
}

impl Shortages {
    /// Whether room is never short.
    pub fn is_empty(&self) -> bool {
        self.planned.is_empty()
    }

    pub fn plan(&mut self, shortages: Vec<Shortage>, disks: &mut [Disk]) {
        disks.iter_mut().for_each(|disk| disk.room = None);
        *self = Self { planned: shortages, seen: 0 };
    }

    /// Counts one I/O; room goes and comes back.
    pub fn count(&mut self, disks: &mut [Disk]) {
        self.seen += 1;
        for shortage in &self.planned {
            let Some(disk) = disks.get_mut(shortage.disk) else { continue };
            if shortage.until == self.seen {
                disk.room = None;
            }
            if shortage.from == self.seen && shortage.from < shortage.until {
                disk.room = Some(disk.current.stored_bytes() + shortage.bytes);
            }
        }
    }
}

impl Disk {
    /// What of the request takes effect before there is no room for the rest; `None` if there is for all.
    pub(super) fn short_of_room(&self, request: &Request) -> Option<Part> {
        let room = self.room?;
        if !matches!(request.kind(), IoKind::Write | IoKind::Zero | IoKind::Allocate) {
            return None;
        }
        let (offset, len) = request.range();
        let mut left = room.saturating_sub(self.current.stored_bytes()) / UNIT_BYTES;
        for unit in offset / UNIT_BYTES..(offset + len).div_ceil(UNIT_BYTES) {
            if self.current.is_stored_at(unit * UNIT_BYTES) {
                continue;
            }
            if left == 0 {
                // As write(2) does: what fits is there. Reserving is all or nothing.
                let written = (unit * UNIT_BYTES).saturating_sub(offset).div_ceil(crate::SECTOR_BYTES);
                return Some(match request.kind() {
                    IoKind::Write => Part::prefix(written, request.sectors()),
                    _ => Part::None,
                });
            }
            left -= 1;
        }
        None
    }
}
