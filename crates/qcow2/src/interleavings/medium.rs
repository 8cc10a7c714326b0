//! A medium that takes its time: others may run before and after each operation, and between the
//! moment a write is issued and the moment it lands.

use std::io;

use storage::{Allocation, Extent, IoBuf, IoFuture, IoVec, Limits, MemoryStorage, Storage, Zeroing};
use sync::Mutex;
use sync::atomic::{AtomicU64, Ordering::SeqCst};
use sync::explore::pause;

/// Bytes in memory, and what of them a crash keeps for certain.
#[derive(Debug)]
pub(super) struct Medium {
    bytes: MemoryStorage,
    durable: Mutex<Vec<u8>>,
    flushes: AtomicU64,
    /// So many of the next flushes fail.
    failing: AtomicU64,
}

impl Medium {
    pub(super) fn new(bytes: &[u8]) -> Self {
        Self {
            bytes: MemoryStorage::from_bytes(bytes),
            durable: Mutex::new(bytes.to_vec()),
            flushes: AtomicU64::new(0),
            failing: AtomicU64::new(0),
        }
    }

    /// What is there if the machine stops now and nothing survives that was not flushed.
    pub(super) fn durable(&self) -> Vec<u8> {
        self.durable.lock().clone()
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

    fn limits(&self) -> Limits {
        self.bytes.limits()
    }

    fn length(&self) -> u64 {
        self.bytes.length()
    }

    fn read(&self, offset: u64, buf: IoBuf) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        slow(self.bytes.read(offset, buf))
    }

    fn write(&self, offset: u64, data: IoVec) -> IoFuture<'_, io::Result<()>> {
        slow(self.bytes.write(offset, data))
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

    fn set_length(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        slow(self.bytes.set_length(length))
    }

    fn allocate(&self, offset: u64, len: u64, how: Allocation) -> IoFuture<'_, io::Result<()>> {
        slow(self.bytes.allocate(offset, len, how))
    }

    fn extent(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        slow(self.bytes.extent(offset, len))
    }
}
