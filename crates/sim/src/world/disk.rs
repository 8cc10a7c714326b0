//! A simulated disk behind the storage contract.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use storage::{Allocation, Extent, ExtentKind, IoBuf, IoFuture, IoVec, Limits, Storage, Zeroing};

use super::World;
use super::io_future::IoInFlight;
use crate::request::{Leaves, Request};

/// An open disk of a [`World`].
///
/// Requests are issued when the method is called, not when the future is first polled: the earliest
/// moment the contract allows, so that a flush covers as little as it may.
pub struct SimStorage {
    world: World,
    disk: usize,
    name: String,
    limits: Limits,
    flush_failed: Arc<AtomicBool>,
}

impl SimStorage {
    pub(super) fn new(world: World, disk: usize, name: String, limits: Limits) -> Self {
        Self { world, disk, name, limits, flush_failed: Arc::new(AtomicBool::new(false)) }
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
        let number = self.world.machine.lock().issue(self.disk, request, buf, &self.flush_failed);
        IoInFlight::new(self.world.clone(), number)
    }

    fn change(&self, request: Request) -> IoFuture<'_, io::Result<()>> {
        if self.limits.read_only && request.changes() {
            let breach = format!("{request} on {}, which is open read-only", self.name);
            self.world.machine.lock().violations.push(breach);
            return Box::pin(std::future::ready(Err(io::ErrorKind::PermissionDenied.into())));
        }
        let io = self.issue(request, None);
        Box::pin(async move { io.await.0.map(drop) })
    }
}

impl Storage for SimStorage {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn length(&self) -> u64 {
        self.world.machine.lock().disk(self.disk).current.length()
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> bool {
        self.world.machine.lock().try_read(self.disk, offset, buf)
    }

    fn read(&self, offset: u64, buf: IoBuf) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        let io = self.issue(Request::Read { offset, len: buf.len() as u64 }, Some(buf));
        Box::pin(async move {
            let (result, buf) = io.await;
            (result.map(drop), buf.unwrap_or_else(|| IoBuf::zeroed(0)))
        })
    }

    fn write(&self, offset: u64, data: IoVec) -> IoFuture<'_, io::Result<()>> {
        self.change(Request::Write { offset, data })
    }

    fn flush(&self) -> IoFuture<'_, io::Result<()>> {
        self.change(Request::Flush)
    }

    fn zero(&self, offset: u64, len: u64, how: Zeroing) -> IoFuture<'_, io::Result<()>> {
        if how == Zeroing::FastOnly && !self.limits.discards_to_zero {
            return Box::pin(std::future::ready(Err(io::ErrorKind::Unsupported.into())));
        }
        self.change(Request::Zero { offset, len })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<()>> {
        self.change(Request::Discard { offset, len, leaves: Leaves::Zeroes })
    }

    fn set_length(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        self.change(Request::SetLength { length, from: self.length() })
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
