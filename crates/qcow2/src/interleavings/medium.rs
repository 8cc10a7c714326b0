//! A medium that takes its time: others may run before and after each operation, and between the
//! moment a write is issued and the moment it lands.

use std::io;

use storage::{
    Allocation, Capabilities, Extent, Hints, IoBuf, IoFuture, IoVec, MemoryStorage, Storage, Zeroing,
};
use sync::Mutex;
use sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use sync::explore::pause;

/// Bytes in memory, and what of them a crash keeps for certain.
#[derive(Debug)]
pub(super) struct Medium {
    bytes: MemoryStorage,
    durable: Mutex<Vec<u8>>,
    flushes: AtomicU64,
    /// So many of the next flushes fail.
    failing: AtomicU64,
    /// No write of the header succeeds.
    refuses_header: AtomicBool,
    /// Writes of the header that have failed.
    header_failures: AtomicU64,
    /// Writes that came when the header could neither be written nor put back.
    late_writes: AtomicU64,
}

/// Writes of the header that fail before it is given up: the new one, and the old one again.
const HEADER_ATTEMPTS: u64 = 2;

impl Medium {
    pub(super) fn new(bytes: &[u8]) -> Self {
        Self {
            bytes: MemoryStorage::from_bytes(bytes),
            durable: Mutex::new(bytes.to_vec()),
            flushes: AtomicU64::new(0),
            failing: AtomicU64::new(0),
            refuses_header: AtomicBool::new(false),
            header_failures: AtomicU64::new(0),
            late_writes: AtomicU64::new(0),
        }
    }

    /// Lets every write of the header fail from now on.
    pub(super) fn refuse_header(&self) {
        self.refuses_header.store(true, SeqCst);
    }

    /// Writes that came when the header could neither be written nor put back.
    pub(super) fn late_writes(&self) -> u64 {
        self.late_writes.load(SeqCst)
    }

    fn note_write(&self, offset: u64) -> io::Result<()> {
        if self.header_failures.load(SeqCst) >= HEADER_ATTEMPTS {
            self.late_writes.fetch_add(1, SeqCst);
        }
        if offset < super::CLUSTER && self.refuses_header.load(SeqCst) {
            self.header_failures.fetch_add(1, SeqCst);
            return Err(io::Error::from_raw_os_error(5));
        }
        Ok(())
    }

    /// What is there if the machine stops now and nothing survives that was not flushed.
    pub(super) fn durable(&self) -> Vec<u8> {
        self.durable.lock().clone()
    }

    /// What has landed.
    pub(super) fn written(&self) -> Vec<u8> {
        self.bytes.to_bytes()
    }

    /// Flushes so far.
    pub(super) fn flushes(&self) -> u64 {
        self.flushes.load(SeqCst)
    }

    /// Lets the next `count` flushes fail. Kinder than the contract: those after that succeed, and make
    /// everything durable.
    pub(super) fn fail_flushes(&self, count: u64) {
        self.failing.store(count, SeqCst);
    }
}

/// The operation, with time for others before and after it.
fn slow<'a, T>(operation: impl Future<Output = T> + 'a) -> IoFuture<'a, T> {
    Box::pin(async move {
        pause();
        let result = operation.await;
        pause();
        result
    })
}

impl Storage for Medium {
    fn name(&self) -> &str {
        "medium"
    }

    fn capabilities(&self) -> Capabilities {
        self.bytes.capabilities()
    }

    fn length(&self) -> u64 {
        self.bytes.length()
    }

    fn read(&self, offset: u64, buf: IoBuf, hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        slow(self.bytes.read(offset, buf, hints))
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        slow(async move {
            self.note_write(offset)?;
            self.bytes.write(offset, data, hints).await
        })
    }

    /// What completed before this was called is durable; here: what has landed when it starts.
    fn flush(&self) -> IoFuture<'_, io::Result<()>> {
        slow(async {
            self.flushes.fetch_add(1, SeqCst);
            if self.failing.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
                return Err(io::Error::from_raw_os_error(5));
            }
            let mut durable = self.durable.lock();
            *durable = self.bytes.to_bytes();
            Ok(())
        })
    }

    fn zero(&self, offset: u64, len: u64, how: Zeroing) -> IoFuture<'_, io::Result<()>> {
        slow(self.bytes.zero(offset, len, how))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<()>> {
        slow(self.bytes.discard(offset, len))
    }

    fn grow_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        slow(self.bytes.grow_to(length))
    }

    fn shorten_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        slow(self.bytes.shorten_to(length))
    }

    fn allocate(&self, offset: u64, len: u64, how: Allocation) -> IoFuture<'_, io::Result<()>> {
        slow(self.bytes.allocate(offset, len, how))
    }

    fn extent(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        slow(self.bytes.extent(offset, len))
    }
}
