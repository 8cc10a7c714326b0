//! Storage in memory with bounds: on its length, and on what a case may do with it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use storage::{
    Allocation, Capabilities, Extent, Hints, IoBuf, IoFuture, IoVec, MemoryStorage, Storage, Zeroing,
};

/// How long a file may become; beyond it there is no space left. (It may be longer from the start.)
const LENGTH_MAX: u64 = 64 << 20;

/// Operations that one case may ask for: images here have at most some thousand clusters, and
/// nothing needs more than a few operations for each.
const OPERATIONS_MAX: u64 = 300_000;

/// Bytes that one case may move.
const BYTES_MAX: u64 = 4 << 30;

/// A file in memory.
#[derive(Debug)]
pub struct Medium {
    inner: MemoryStorage,
    length_max: u64,
    operations: AtomicU64,
    bytes: AtomicU64,
    changes: AtomicU64,
}

impl Medium {
    /// With these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self::of(MemoryStorage::from_bytes(bytes))
    }

    /// Over `inner`.
    pub fn of(inner: MemoryStorage) -> Self {
        Self {
            length_max: LENGTH_MAX.max(inner.length()),
            inner,
            operations: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            changes: AtomicU64::new(0),
        }
    }

    /// Requests so far that may have changed something.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// A copy of the bytes; the file must not be longer than a case can make it.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.inner.to_bytes()
    }

    fn count(&self, bytes: u64) {
        let operations = self.operations.fetch_add(1, Ordering::Relaxed);
        let moved = self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        assert!(operations < OPERATIONS_MAX, "a case asked for {operations} storage operations");
        assert!(moved < BYTES_MAX, "a case moved {moved} bytes");
    }

    fn change(&self, offset: u64, len: u64, bytes: u64) -> io::Result<()> {
        self.count(bytes);
        self.changes.fetch_add(1, Ordering::Relaxed);
        match offset.checked_add(len) {
            Some(end) if end <= self.length_max => Ok(()),
            _ => Err(io::Error::from(io::ErrorKind::StorageFull)),
        }
    }
}

impl Storage for Medium {
    fn name(&self) -> &str {
        "case"
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn length(&self) -> u64 {
        self.inner.length()
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> bool {
        self.count(buf.len() as u64);
        self.inner.try_read(offset, buf, hints)
    }

    fn read(&self, offset: u64, buf: IoBuf, hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        self.count(buf.len() as u64);
        self.inner.read(offset, buf, hints)
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        match self.change(offset, data.len() as u64, data.len() as u64) {
            Ok(()) => self.inner.write(offset, data, hints),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }

    fn flush(&self) -> IoFuture<'_, io::Result<()>> {
        self.count(0);
        self.inner.flush()
    }

    fn zero(&self, offset: u64, len: u64, how: Zeroing) -> IoFuture<'_, io::Result<()>> {
        // What is reserved is held in memory: as much of it as fits the file's bound.
        let reserved = if how == Zeroing::Keep { len } else { 0 };
        match self.change(offset, len, reserved).and(room(reserved)) {
            Ok(()) => self.inner.zero(offset, len, how),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<()>> {
        self.count(0);
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.inner.discard(offset, len)
    }

    fn grow_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        match self.change(length, 0, 0) {
            Ok(()) => self.inner.grow_to(length),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }

    fn shorten_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        match self.change(0, 0, 0) {
            Ok(()) => self.inner.shorten_to(length),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }

    fn allocate(&self, offset: u64, len: u64, how: Allocation) -> IoFuture<'_, io::Result<()>> {
        match self.change(offset, len, len).and(room(len)) {
            Ok(()) => self.inner.allocate(offset, len, how),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }

    fn extent(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        self.count(0);
        self.inner.extent(offset, len)
    }

    fn allocated_bytes(&self) -> Option<u64> {
        self.inner.allocated_bytes()
    }
}

fn room(len: u64) -> io::Result<()> {
    if len <= LENGTH_MAX { Ok(()) } else { Err(io::Error::from(io::ErrorKind::StorageFull)) }
}
