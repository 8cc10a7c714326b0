//! What went wrong on the disks of a quorum, until a client asks.

use block::Error;
use parking_lot::Mutex;

/// Reports that are kept: they are sent once a second, and more than these say nothing new.
const REPORTS_MAX: usize = 256;

/// A disk of a quorum was bad, or too many were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What happened.
    pub what: What,
    /// First byte of the request, or of the part of it that this is about.
    pub offset: u64,
    /// Its bytes; 0 of a flush.
    pub len: u64,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A disk failed, or reads otherwise than the most.
    Bad {
        /// Its number among the disks, from 0.
        disk: usize,
        /// What was asked of it.
        operation: Operation,
        /// Its error; `None` where it reads otherwise.
        error: Option<String>,
    },
    /// Too few disks did it, or agree.
    Failure,
}

/// What is asked of the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Bytes are read.
    Read,
    /// Bytes are written, or zeroed.
    Write,
    /// What was written is made durable.
    Flush,
}

impl What {
    /// Disk `disk` failed.
    pub(super) fn bad(disk: usize, operation: Operation, error: &Error) -> Self {
        Self::Bad { disk, operation, error: Some(error.to_string()) }
    }
}

/// Reports that were not taken yet.
#[derive(Debug, Default)]
pub(super) struct Reports(Mutex<Vec<Report>>);

impl Reports {
    /// One more, unless there are many already.
    pub(super) fn add(&self, report: Report) {
        let mut reports = self.0.lock();
        if reports.len() < REPORTS_MAX {
            reports.push(report);
        }
    }

    /// All of them.
    pub(super) fn take(&self) -> Vec<Report> {
        std::mem::take(&mut self.0.lock())
    }
}
