//! A simulated disk behind the storage contract.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use storage::{
    Allocation, Capabilities, Extent, ExtentKind, Flushes, Hints, IoBuf, IoFuture, IoVec, Storage, SyncEnd,
    Zeroing,
};

use super::World;
use super::io_future::IoInFlight;
use super::machine::Reported;
use crate::deliberate::{self, Bug};
use crate::request::{IoKind, Leaves, Request};

/// An open disk of a [`World`].
///
/// Requests are issued when the method is called, not when the future is first polled: the earliest
/// moment the contract allows, so that a flush covers as little as it may.
pub struct SimStorage {
    world: World,
    disk: usize,
    name: String,
    capabilities: Capabilities,
    /// As a process knows it that took it when it opened the disk.
    length: Arc<AtomicU64>,
    flush_failed: Arc<AtomicBool>,
    flushes: Arc<Flushes>,
    /// Those that do not wait for `flushes`, where that is the bug to be found.
    flushes_beside: Arc<Flushes>,
    flush_count: AtomicU64,
}

impl SimStorage {
    pub(super) fn new(
        world: World,
        disk: usize,
        name: String,
        capabilities: Capabilities,
        length: u64,
    ) -> Self {
        let length = Arc::new(AtomicU64::new(length));
        Self {
            world,
            disk,
            name,
            capabilities,
            length,
            flush_failed: Arc::default(),
            flushes: Arc::default(),
            flushes_beside: Arc::default(),
            flush_count: AtomicU64::new(0),
        }
    }

    /// The same disk, taken to be of this length.
    pub(super) fn believing(self, length: u64) -> Self {
        self.length.store(length, Ordering::Relaxed);
        self
    }

    /// The number of the disk in its world.
    pub fn disk(&self) -> usize {
        self.disk
    }

    /// The world it belongs to.
    pub fn world(&self) -> &World {
        &self.world
    }

    fn issue(&self, request: Request, buf: Option<IoBuf>) -> IoInFlight {
        let number = self.world.machine.lock().issue(self.disk, request, buf, &self.flush_failed, None);
        IoInFlight::new(self.world.clone(), number)
    }

    fn change(&self, request: Request) -> IoFuture<'_, io::Result<()>> {
        if self.capabilities.read_only && request.changes() {
            let breach = format!("{request} on {}, which is open read-only", self.name);
            self.world.machine.lock().violations.push(breach);
            return Box::pin(std::future::ready(Err(io::ErrorKind::PermissionDenied.into())));
        }
        let cut = match &request {
            Request::SetLength { length, .. } if request.kind() == IoKind::Shorten => Some(*length),
            _ => None,
        };
        let end = request.grows_to().or(match &request {
            Request::SetLength { length, .. } => Some(*length),
            _ => None,
        });
        let io = self.issue(request, None);
        Box::pin(async move {
            io.await.0?;
            match (cut, end) {
                (Some(length), _) => self.length.store(length, Ordering::Relaxed),
                (None, Some(end)) => drop(self.length.fetch_max(end, Ordering::Relaxed)),
                (None, None) => {}
            }
            Ok(())
        })
    }

    /// One at a time, as the driver of files does it, and to its end, also when its requester is gone.
    fn sync(&self, end: SyncEnd) {
        let reported = Some(Box::new(move |result| end.tell(result)) as Reported);
        self.world.machine.lock().issue(self.disk, Request::Flush, None, &self.flush_failed, reported);
    }
}

impl Storage for SimStorage {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn length(&self) -> u64 {
        self.length.load(Ordering::Relaxed)
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], _hints: Hints) -> bool {
        self.world.machine.lock().try_read(self.disk, offset, buf)
    }

    fn read(&self, offset: u64, buf: IoBuf, _hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        let io = self.issue(Request::Read { offset, len: buf.len() as u64 }, Some(buf));
        Box::pin(async move {
            let (result, buf) = io.await;
            (result.map(drop), buf.unwrap_or_else(|| IoBuf::zeroed(0)))
        })
    }

    fn write(&self, offset: u64, data: IoVec, _hints: Hints) -> IoFuture<'_, io::Result<()>> {
        self.change(Request::Write { offset, data })
    }

    fn flush(&self) -> IoFuture<'_, io::Result<()>> {
        if self.capabilities.read_only {
            return self.change(Request::Flush);
        }
        let count = self.flush_count.fetch_add(1, Ordering::Relaxed);
        let beside = count % 2 == 1 && deliberate::has(Bug::FlushesSideBySide);
        let flushes = if beside { &self.flushes_beside } else { &self.flushes };
        Box::pin(flushes.flush(|end| self.sync(end)))
    }

    fn zero(&self, offset: u64, len: u64, how: Zeroing) -> IoFuture<'_, io::Result<()>> {
        if how == Zeroing::FastOnly && !self.capabilities.discards_to_zero {
            return Box::pin(std::future::ready(Err(io::ErrorKind::Unsupported.into())));
        }
        self.change(Request::Zero { offset, len })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<()>> {
        self.change(Request::Discard { offset, len, leaves: Leaves::Zeroes })
    }

    fn grow_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        match self.length() {
            from if length > from => self.change(Request::SetLength { length, from }),
            _ => Box::pin(std::future::ready(Ok(()))),
        }
    }

    fn shorten_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        match self.length() {
            from if length < from => self.change(Request::SetLength { length, from }),
            _ => Box::pin(std::future::ready(Ok(()))),
        }
    }

    fn allocate(&self, offset: u64, len: u64, _how: Allocation) -> IoFuture<'_, io::Result<()>> {
        self.change(Request::Allocate { offset, len })
    }

    fn extent(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        let io = self.issue(Request::Extent { offset, len }, None);
        let hole = Extent { len: len.max(1), kind: ExtentKind::Hole };
        Box::pin(async move { io.await.0.map(|extent| extent.unwrap_or(hole)) })
    }

    fn allocated_bytes(&self) -> Option<u64> {
        Some(self.world.machine.lock().disk(self.disk).current.stored_bytes())
    }
}

impl fmt::Debug for SimStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimStorage({}, disk {})", self.name, self.disk)
    }
}
