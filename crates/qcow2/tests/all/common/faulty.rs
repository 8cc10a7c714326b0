//! Storage that stops changing after a number of operations, or that behaves as a device.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use storage::{Allocation, Capabilities, Hints, IoBuf, IoFuture, IoVec, MemoryStorage, Storage, Zeroing};

/// Memory whose changes fail once `left` of them have succeeded: what a crash after them leaves.
#[derive(Debug)]
pub struct Faulty {
    pub inner: MemoryStorage,
    left: AtomicU64,
    capabilities: Capabilities,
    /// A range that cannot be read: start and length.
    unreadable: (u64, u64),
}

impl Faulty {
    pub fn new(inner: MemoryStorage, left: u64) -> Self {
        let capabilities = inner.capabilities();
        Self { inner, left: AtomicU64::new(left), capabilities, unreadable: (0, 0) }
    }

    /// A block device with these bytes.
    pub fn device(bytes: &[u8]) -> Self {
        let mut device = Self::new(MemoryStorage::from_bytes(bytes), u64::MAX);
        device.capabilities.resizable = false;
        device.capabilities.grows_zeroed = false;
        device
    }

    /// The same, with bytes that cannot be read.
    pub fn with_unreadable(mut self, offset: u64, len: u64) -> Self {
        self.unreadable = (offset, len);
        self
    }

    /// The same, opened read-only.
    pub fn read_only(mut self) -> Self {
        self.capabilities.read_only = true;
        self
    }

    fn change(&self) -> io::Result<()> {
        let step = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        step.map(drop).map_err(|_| io::Error::other("the machine is off"))
    }
}

impl Storage for Faulty {
    fn over(&self) -> Option<&dyn Storage> {
        Some(&self.inner)
    }

    fn name(&self) -> &str {
        "faulty"
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn read(&self, offset: u64, buf: IoBuf, hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        let (start, len) = self.unreadable;
        if offset < start + len && start < offset + buf.len() as u64 {
            return Box::pin(async { (Err(io::Error::other("a bad sector")), buf) });
        }
        self.inner.read(offset, buf, hints)
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        let end = offset + data.len() as u64;
        assert!(self.capabilities.resizable || end <= self.inner.length(), "write beyond the device");
        match self.change() {
            Ok(()) => self.inner.write(offset, data, hints),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }

    fn zero(&self, offset: u64, len: u64, how: Zeroing) -> IoFuture<'_, io::Result<()>> {
        match self.change() {
            Ok(()) => self.inner.zero(offset, len, how),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }

    fn grow_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        assert!(self.capabilities.resizable, "resizing a device");
        match self.change() {
            Ok(()) => self.inner.grow_to(length),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }

    fn shorten_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        assert!(self.capabilities.resizable, "resizing a device");
        match self.change() {
            Ok(()) => self.inner.shorten_to(length),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }

    fn allocate(&self, offset: u64, len: u64, how: Allocation) -> IoFuture<'_, io::Result<()>> {
        match self.change() {
            Ok(()) => self.inner.allocate(offset, len, how),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }
}
