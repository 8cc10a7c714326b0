//! What was asked of the disks of a world, and when.

use std::sync::Arc;

use storage::Capabilities;

use crate::content::Content;
use crate::request::{IoKind, Outcome, Record, Tick};

/// Every change and flush since recording began, and what the disks held then.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Name and capabilities of each disk.
    pub disks: Vec<(String, Capabilities)>,
    /// What each disk held when recording began, all of it durable.
    pub start: Vec<Content>,
    /// When recording began.
    pub since: Tick,
    /// When this recording was taken.
    pub end: Tick,
    /// In order of issue; requests in flight at the end are pending.
    pub records: Vec<Arc<Record>>,
}

impl Recording {
    /// The disks as a reader saw them at `instant`: what the death of the process alone leaves.
    pub fn current_at(&self, instant: Tick) -> Vec<Content> {
        self.applied(|record| record.completed.is_some_and(|at| at <= instant))
    }

    /// What every crash at `instant` leaves: the changes that completed flushes cover.
    pub fn durable_at(&self, instant: Tick) -> Vec<Content> {
        self.applied(|record| self.is_durable_at(record, instant))
    }

    /// Whether a flush that succeeded by `instant` was issued after `record` completed.
    pub fn is_durable_at(&self, record: &Record, instant: Tick) -> bool {
        let Some(completed) = record.completed else { return false };
        self.records.iter().any(|flush| {
            flush.request.kind() == IoKind::Flush
                && flush.disk == record.disk
                && flush.outcome == Outcome::Done
                && flush.completed.is_some_and(|at| at <= instant)
                && flush.issued > completed
        })
    }

    fn applied(&self, which: impl Fn(&Record) -> bool) -> Vec<Content> {
        let mut chosen: Vec<_> =
            self.records.iter().filter(|record| record.request.changes() && which(record)).collect();
        chosen.sort_by_key(|record| record.completed);
        let mut disks = self.start.clone();
        for record in chosen {
            record.request.apply(&mut disks[record.disk], record.part());
        }
        disks
    }
}
