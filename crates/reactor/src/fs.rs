//! Files: positioned reads and writes that own their bytes, and blocking calls on other threads.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use memory::{ForeignBytes, IoBuf, IoVec};
use parking_lot::Mutex;

use crate::backend::Backend;
use crate::inner::Inner;
use crate::op::{Op, Place};
use crate::work::Work;

/// An open file, usable from every loop.
#[derive(Clone, Debug)]
pub struct File {
    fd: Arc<OwnedFd>,
    backend: Backend,
}

impl File {
    /// With [`Backend::Threads`] operations block threads of the pool even where the loop has a
    /// ring; with [`Backend::Ring`] they go the loop's way.
    pub fn new(fd: impl Into<Arc<OwnedFd>>, backend: Backend) -> Self {
        Self { fd: fd.into(), backend }
    }

    /// The descriptor.
    pub fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    fn start(&self, work: Work) -> Op {
        let place = match self.backend {
            Backend::Ring => Place::Loop,
            Backend::Threads => Place::Pool,
        };
        Op::start(work, place)
    }

    /// Reads at `offset` into `buf`. Gives the count of bytes, 0 at the end of the file, often
    /// fewer than asked before that; bytes of `buf` behind the count may have changed.
    pub async fn read_at(&self, offset: u64, buf: IoBuf) -> (io::Result<usize>, IoBuf) {
        match self.start(Work::Read { fd: Arc::clone(&self.fd), offset, buf }).await {
            (result, Work::Read { buf, .. }) => (result, buf),
            (_, other) => unreachable!("a read came back as {other:?}"),
        }
    }

    /// Writes `data` at `offset`. Gives the count of bytes, which may be fewer than there are
    /// (always when `data` has more than 1024 parts or 2 GiB).
    pub async fn write_at(&self, offset: u64, data: IoVec) -> io::Result<usize> {
        self.start(Work::Write { fd: Arc::clone(&self.fd), offset, data }).await.0
    }

    /// As [`File::read_at`], into memory of others. Dropping the future does not stop the read: it holds the memory's owner to its end.
    pub async fn read_into(&self, offset: u64, memory: ForeignBytes) -> io::Result<usize> {
        self.start(Work::ReadInto { fd: Arc::clone(&self.fd), offset, memory }).await.0
    }

    /// Reads on this thread what needs no waiting, and gives the count of bytes. An error says no more than that it did not work.
    pub fn try_read_into(&self, offset: u64, memory: &ForeignBytes) -> io::Result<usize> {
        Ok(crate::foreign::read_without_waiting(&self.fd, offset, memory)?)
    }

    /// Reads into memory of others on this thread, as much as one call does. Blocks.
    pub fn read_into_now(&self, offset: u64, memory: &ForeignBytes) -> io::Result<usize> {
        Ok(crate::foreign::read(&self.fd, offset, memory)?)
    }

    /// As [`File::write_at`], of memory of others. Dropping the future does not stop the write: it holds the memory's owner to its end.
    pub async fn write_from(&self, offset: u64, memory: ForeignBytes) -> io::Result<usize> {
        self.start(Work::WriteFrom { fd: Arc::clone(&self.fd), offset, memory }).await.0
    }

    /// Writes memory of others on this thread, as much as one call does. Blocks.
    pub fn write_from_now(&self, offset: u64, memory: &ForeignBytes) -> io::Result<usize> {
        Ok(crate::foreign::write(&self.fd, offset, memory)?)
    }

    /// Makes completed writes durable. Metadata that reading the data back needs (the length) is
    /// included.
    pub async fn sync_data(&self) -> io::Result<()> {
        self.start(Work::Sync { fd: Arc::clone(&self.fd), data_only: true, reported: None }).await.0.map(drop)
    }

    /// As [`File::sync_data`], from this very moment on and to its end: `reported` gets the result on this loop, also while a
    /// reactor that is dropped waits for what is in flight. An error of writeback is reported once, so no task may miss it.
    ///
    /// # Panics
    /// Outside of [`crate::Reactor::run`].
    pub fn start_sync_data(&self, reported: impl FnOnce(io::Result<()>) + Send + 'static) {
        let fd = Arc::clone(&self.fd);
        drop(self.start(Work::Sync { fd, data_only: true, reported: Some(Box::new(reported)) }));
    }

    /// Makes completed writes and all metadata durable.
    pub async fn sync_all(&self) -> io::Result<()> {
        self.start(Work::Sync { fd: Arc::clone(&self.fd), data_only: false, reported: None })
            .await
            .0
            .map(drop)
    }

    /// `fallocate` with `mode` (flags of linux/falloc.h).
    pub async fn fallocate(&self, mode: u32, offset: u64, len: u64) -> io::Result<()> {
        self.start(Work::Fallocate { fd: Arc::clone(&self.fd), mode, offset, len }).await.0.map(drop)
    }
}

/// Whether the loop of this thread has time, in this turn, for one more short call that a task
/// makes itself; counts it. A task that only ever makes such calls never waits, and would starve
/// the others: when this says no, it has to start an operation instead.
///
/// # Panics
/// Outside of [`crate::Reactor::run`].
pub fn may_call_inline() -> bool {
    Inner::current().take_inline()
}

/// Runs `call` on a thread that may block, and gives what it returns. Dropping the future does
/// not stop the call.
///
/// # Panics
/// If `call` does.
pub async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let slot = Arc::new(Mutex::new(None));
    let filled = Arc::clone(&slot);
    let work = Work::Call(Box::new(move || {
        let result = catch_unwind(AssertUnwindSafe(call));
        *filled.lock() = Some(result);
    }));
    let _ = Op::start(work, Place::Pool).await;
    let result = slot.lock().take();
    match result {
        Some(Ok(value)) => value,
        Some(Err(panic)) => resume_unwind(panic),
        None => unreachable!("a blocking call ended without a result"),
    }
}

/// Has a thread that may block run `call`, from this very moment on. No task is notified of its end; a
/// reactor that is dropped waits for it.
///
/// # Panics
/// Outside of [`crate::Reactor::run`].
pub fn start_blocking(call: impl FnOnce() + Send + 'static) {
    let work = Work::Call(Box::new(move || {
        // The panic has been reported by now; the thread has others to serve.
        let _ = catch_unwind(AssertUnwindSafe(call));
    }));
    drop(Op::start(work, Place::Pool));
}
