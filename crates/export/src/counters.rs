//! What an export has done, counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::exports::ExportEntry;
use crate::merge::Direction;

/// What a request wants of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Bytes of the disk.
    Read,
    /// Bytes for the disk.
    Write,
    /// What was written is to be durable.
    Flush,
    /// A range is of no use any more.
    Discard,
    /// A range is to read as zeroes.
    Zero,
    /// A range is to be brought closer.
    Prefetch,
    /// What is where.
    BlockStatus,
}

/// Requests of one kind that were answered.
#[derive(Debug, Default)]
struct Kind {
    requests: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
}

impl Kind {
    fn add(&self, requests: u64, bytes: u64) {
        self.requests.fetch_add(requests, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn snapshot(&self) -> KindCounts {
        KindCounts {
            requests: self.requests.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
        }
    }
}

/// Counters of one export, over all its clients. Always on: an inline read costs no atomic
/// operation of its own, it is counted with its batch.
#[derive(Debug, Default)]
pub struct Counters {
    read: Kind,
    write: Kind,
    flush: Kind,
    discard: Kind,
    zero: Kind,
    prefetch: Kind,
    block_status: Kind,
    invalid: AtomicU64,
    inline_reads: AtomicU64,
    in_flight: AtomicU64,
    dropped: AtomicU64,
    merged_reads: AtomicU64,
    merged_writes: AtomicU64,
}

impl Counters {
    fn of(&self, kind: RequestKind) -> &Kind {
        match kind {
            RequestKind::Read => &self.read,
            RequestKind::Write => &self.write,
            RequestKind::Flush => &self.flush,
            RequestKind::Discard => &self.discard,
            RequestKind::Zero => &self.zero,
            RequestKind::Prefetch => &self.prefetch,
            RequestKind::BlockStatus => &self.block_status,
        }
    }

    /// One request was answered by the disk, with `bytes` if it succeeded.
    pub fn ended(&self, kind: RequestKind, succeeded: bool, bytes: u64) {
        let counts = self.of(kind);
        counts.add(1, if succeeded { bytes } else { 0 });
        if !succeeded {
            counts.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// So many reads, of so many bytes together, were answered without waiting.
    pub fn read_inline(&self, reads: u64, bytes: u64) {
        self.read.add(reads, bytes);
        self.inline_reads.fetch_add(reads, Ordering::Relaxed);
    }

    /// A request was refused before it reached the disk.
    pub fn refused(&self) {
        self.invalid.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests were given up because no task awaits them.
    pub fn dropped(&self, requests: u64) {
        self.dropped.fetch_add(requests, Ordering::Relaxed);
    }

    /// So many requests went to the disk as part of another one ([`crate::merge`]).
    pub fn merged(&self, direction: Direction, requests: u64) {
        let merged = match direction {
            Direction::Read => &self.merged_reads,
            Direction::Write => &self.merged_writes,
        };
        merged.fetch_add(requests, Ordering::Relaxed);
    }

    /// What they say now. Not one moment's: requests go on while it is taken.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            read: self.read.snapshot(),
            write: self.write.snapshot(),
            flush: self.flush.snapshot(),
            discard: self.discard.snapshot(),
            zero: self.zero.snapshot(),
            prefetch: self.prefetch.snapshot(),
            block_status: self.block_status.snapshot(),
            invalid: self.invalid.load(Ordering::Relaxed),
            inline_reads: self.inline_reads.load(Ordering::Relaxed),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            merged_reads: self.merged_reads.load(Ordering::Relaxed),
            merged_writes: self.merged_writes.load(Ordering::Relaxed),
        }
    }
}

/// Counts one request among those in flight of its export, until it is dropped.
#[derive(Debug)]
pub struct RequestCount(Arc<ExportEntry>);

impl RequestCount {
    /// One more request of `entry`.
    pub fn new(entry: &Arc<ExportEntry>) -> Self {
        entry.counters().in_flight.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(entry))
    }
}

impl Drop for RequestCount {
    fn drop(&mut self) {
        self.0.counters().in_flight.fetch_sub(1, Ordering::Relaxed);
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
    /// [`RequestKind::Read`]
    pub read: KindCounts,
    /// [`RequestKind::Write`]
    pub write: KindCounts,
    /// [`RequestKind::Flush`]
    pub flush: KindCounts,
    /// [`RequestKind::Discard`]
    pub discard: KindCounts,
    /// [`RequestKind::Zero`]
    pub zero: KindCounts,
    /// [`RequestKind::Prefetch`]
    pub prefetch: KindCounts,
    /// [`RequestKind::BlockStatus`]
    pub block_status: KindCounts,
    /// Requests that were refused before they reached the disk.
    pub invalid: u64,
    /// Reads among `read` that needed no waiting.
    pub inline_reads: u64,
    /// Requests that wait for the disk, or for the client to read their reply.
    pub in_flight: u64,
    /// Requests that were given up because their client was gone.
    pub dropped: u64,
    /// Reads that went to the disk as part of another one.
    pub merged_reads: u64,
    /// The same of writes.
    pub merged_writes: u64,
}

impl Snapshot {
    fn kinds(&self) -> [KindCounts; 7] {
        [self.read, self.write, self.flush, self.discard, self.zero, self.prefetch, self.block_status]
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
