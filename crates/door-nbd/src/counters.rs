//! What an export has done, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// Requests of one kind that were answered.
#[derive(Debug, Default)]
pub(crate) struct Kind {
    requests: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
}

impl Kind {
    pub(crate) fn add(&self, requests: u64, bytes: u64) {
        self.requests.fetch_add(requests, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// One request: `bytes` if it succeeded.
    pub(crate) fn ended(&self, succeeded: bool, bytes: u64) {
        self.add(1, if succeeded { bytes } else { 0 });
        if !succeeded {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn snapshot(&self) -> KindCounts {
        KindCounts {
            requests: self.requests.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
        }
    }
}

/// Counters of one export, over all its connections. Always on: an inline read costs no atomic
/// operation of its own, it is counted with its batch.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) read: Kind,
    pub(crate) write: Kind,
    pub(crate) flush: Kind,
    pub(crate) trim: Kind,
    pub(crate) zero: Kind,
    pub(crate) cache: Kind,
    pub(crate) block_status: Kind,
    /// Refused before they reached the disk.
    pub(crate) invalid: AtomicU64,
    pub(crate) inline_reads: AtomicU64,
    pub(crate) in_flight: AtomicU64,
}

impl Counters {
    /// What they say now. Not one moment's: requests go on while it is taken.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            read: self.read.snapshot(),
            write: self.write.snapshot(),
            flush: self.flush.snapshot(),
            trim: self.trim.snapshot(),
            zero: self.zero.snapshot(),
            cache: self.cache.snapshot(),
            block_status: self.block_status.snapshot(),
            invalid: self.invalid.load(Ordering::Relaxed),
            inline_reads: self.inline_reads.load(Ordering::Relaxed),
            in_flight: self.in_flight.load(Ordering::Relaxed),
        }
    }
}

/// Requests of one kind, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindCounts {
    /// Answered, with success or not.
    pub requests: u64,
    /// Bytes of the disk that successful ones covered.
    pub bytes: u64,
    /// Answered with an error by the disk.
    pub errors: u64,
}

/// What [`Counters`] said at about one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// READ
    pub read: KindCounts,
    /// WRITE
    pub write: KindCounts,
    /// FLUSH
    pub flush: KindCounts,
    /// TRIM
    pub trim: KindCounts,
    /// WRITE_ZEROES
    pub zero: KindCounts,
    /// CACHE
    pub cache: KindCounts,
    /// BLOCK_STATUS
    pub block_status: KindCounts,
    /// Requests that were refused before they reached the disk.
    pub invalid: u64,
    /// Reads among `read` that needed no waiting.
    pub inline_reads: u64,
    /// Requests that wait for the disk, or for the client to read their reply.
    pub in_flight: u64,
}

impl Snapshot {
    fn kinds(&self) -> [KindCounts; 7] {
        [self.read, self.write, self.flush, self.trim, self.zero, self.cache, self.block_status]
    }

    /// Requests answered, of all kinds.
    pub fn requests(&self) -> u64 {
        self.kinds().iter().map(|kind| kind.requests).sum::<u64>() + self.invalid
    }

    /// Requests answered with an error, of all kinds.
    pub fn errors(&self) -> u64 {
        self.kinds().iter().map(|kind| kind.errors).sum::<u64>() + self.invalid
    }
}
