//! What is asked of a disk.

use std::time::Duration;

use crate::bench::load::offsets::Access;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads.
    Read,
    /// Writes this byte.
    Write {
        /// The byte.
        pattern: u8,
    },
    /// Reads and writes, drawn at random.
    Mixed {
        /// The byte that writes write.
        pattern: u8,
        /// How many of 100 requests are reads.
        reads_percent: u8,
    },
    /// Makes ranges read as zeroes.
    WriteZeroes {
        /// Space may be given back (where the disk was opened with `discard=unmap`).
        unmap: bool,
    },
    /// Discards ranges.
    Discard,
}

impl Operation {
    /// Whether the disk must be writable.
    pub fn writes(self) -> bool {
        self != Self::Read
    }
}

/// A flush now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier {
    /// Changing requests between two flushes, at least 1.
    pub interval: u64,
    /// No other request is in flight while the flush is, as with `qemu-img bench`; otherwise requests go on.
    pub drain: bool,
}

/// What is asked of the disk.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Requests in all.
    pub count: u64,
    /// Ends the run early.
    pub runtime: Option<Duration>,
    /// Requests in flight at a time.
    pub depth: u32,
    /// Bytes of a request.
    pub size: u64,
    /// First offset.
    pub offset: u64,
    /// Bytes behind the first offset that requests keep to; `None` is the whole disk.
    pub range: Option<u64>,
    /// Distance of neighbouring requests in bytes.
    pub step: u64,
    /// Order of offsets.
    pub access: Access,
    /// Repeats the same random offsets.
    pub seed: u64,
    /// What each request does.
    pub operation: Operation,
    /// Flushes between the requests.
    pub barrier: Option<Barrier>,
    /// Requests that are made first and not counted.
    pub warm_up: u64,
    /// Requests are made for this long, after those of `warm_up`, and not counted.
    pub warm_up_time: Option<Duration>,
}
