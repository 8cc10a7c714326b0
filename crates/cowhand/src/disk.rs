//! An open disk: the handle by which requests are made.

mod describe;
mod steer;

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use block::{Hints, ReadKind, ZeroOptions};
use memory::ForeignBytes;

pub use self::describe::{Extent, Info};
pub use self::steer::Snapshot;
use crate::buffer::Buffer;
use crate::error::Error;
use crate::in_flight::{HOME, Inside, Shared};
use crate::options::OpenOptions;
use crate::pending::Pending;
use crate::queue::Queue;
use crate::request::{Job, Request, To};

/// A read of at most so many bytes is tried by the thread that submits it: copying them from memory takes less time than
/// handing the request to another thread.
const READ_HERE_BYTES_MAX: usize = 64 << 10;

/// An open disk, with its whole backing chain.
///
/// A handle: clones are of the same disk, and every method may be called from any thread, inside an executor or outside, many
/// at a time. A read of at most 64 KiB whose bytes are in memory is carried out by the thread that asks; everything else goes
/// to the disk's loop. A clone uses the loop that it is dealt, where the disk has several.
///
/// # The end
/// [`Disk::close`] waits for the requests in flight, writes what is in memory in the right order, gives the locks back, and says
/// whether all of that went well. When the last handle and queue are dropped without it, the same is done in the background: the
/// drop itself never blocks, what fails is reported to the log (`tracing`) only, and a process that exits at once may cut it short.
/// Then the disk is left as by a crash: what was flushed is there, and clusters may be leaked.
pub struct Disk {
    handle: Arc<Handle>,
    lane: usize,
}

/// Closes the disk when it is dropped: with the last handle or queue.
#[derive(Debug)]
pub(crate) struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close_silently();
    }
}

impl Handle {
    /// Admits a call that steers or queries.
    fn enter(&self) -> Result<Inside, Error> {
        self.shared.enter()
    }

    /// Lets a request in.
    pub(crate) fn admit(&self) -> Result<Inside, Error> {
        self.shared.admit()
    }

    /// Carries a request out: here if that needs no waiting, or else on loop number `lane`.
    pub(crate) fn begin(&self, lane: usize, inside: Inside, mut request: Request, to: To) {
        if let Request::Read { offset, buffer } = &mut request
            && read_here(inside.disk(), *offset, buffer)
        {
            drop(inside);
            return to.send(Ok(request.into_buffer()));
        }
        self.shared.loops().send(lane, Job::Request { inside, request, to });
    }
}

/// Fills `buf` if its bytes are in memory, and says whether it did.
fn read_here(disk: &graph::Disk, offset: u64, buf: &mut [u8]) -> bool {
    if buf.len() > READ_HERE_BYTES_MAX {
        return false;
    }
    match disk.try_read(offset, buf, Hints::NONE) {
        Some(ReadKind::Zeroes) => {
            buf.fill(0);
            true
        }
        Some(ReadKind::Data) => true,
        None => false,
    }
}

impl Disk {
    /// Opens the image at `path` for reading and writing, with the defaults of every option; [`OpenOptions`] has all others.
    pub fn open(path: impl AsRef<Path>) -> Pending<Self> {
        OpenOptions::new(path).open()
    }

    /// A disk that was opened.
    pub(crate) fn new(shared: Shared) -> Self {
        let lane = shared.loops().deal();
        Self { handle: Arc::new(Handle { shared: Arc::new(shared) }), lane }
    }

    /// Fills `buffer` with the bytes at `offset`, and gives it back.
    pub fn read(&self, offset: u64, buffer: impl Into<Buffer>) -> Pending<Buffer> {
        self.submit(Request::Read { offset, buffer: buffer.into() })
    }

    /// Writes `buffer` at `offset`, and gives it back. Durable once a flush that was submitted afterwards has completed.
    pub fn write(&self, offset: u64, buffer: impl Into<Buffer>) -> Pending<Buffer> {
        self.submit(Request::Write { offset, buffer: buffer.into(), fua: false })
    }

    /// Fills memory that is not ours, such as a guest's, with the bytes at `offset`: in place, unless they are compressed or encrypted, or the
    /// file is used with `cache=none` and the memory is not aligned for it.
    pub fn read_into(&self, offset: u64, memory: ForeignBytes) -> Pending<()> {
        self.submit_without_bytes(Request::ReadInto { offset, memory })
    }

    /// Writes memory that is not ours at `offset`: in place where the range is overwritten, otherwise through a copy.
    pub fn write_from(&self, offset: u64, memory: ForeignBytes) -> Pending<()> {
        self.submit_without_bytes(Request::WriteFrom { offset, memory, fua: false })
    }

    /// Makes a range read as zeroes; where they can be had without writing them, nothing is written.
    pub fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> Pending<()> {
        self.submit_without_bytes(Request::WriteZeroes { offset, len, options, fua: false })
    }

    /// Says that a range is of no use any more: [`Request::Discard`].
    pub fn discard(&self, offset: u64, len: u64) -> Pending<()> {
        self.submit_without_bytes(Request::Discard { offset, len })
    }

    /// Makes everything durable that has completed so far.
    pub fn flush(&self) -> Pending<()> {
        self.submit_without_bytes(Request::Flush)
    }

    /// Submits any request. One without bytes gives an empty buffer.
    pub fn submit(&self, request: Request) -> Pending<Buffer> {
        let (reply, pending) = Pending::new();
        self.begin(request, To::Bytes(reply));
        pending
    }

    fn submit_without_bytes(&self, request: Request) -> Pending<()> {
        let (reply, pending) = Pending::new();
        self.begin(request, To::Nothing(reply));
        pending
    }

    fn begin(&self, request: Request, to: To) {
        match self.handle.admit() {
            Ok(inside) => self.handle.begin(self.lane, inside, request, to),
            Err(error) => to.send(Err(request.refuse(error))),
        }
    }

    /// Fills `buf` with the bytes at `offset`; blocks this thread until that is done. Bytes in memory are copied once, straight
    /// to `buf`; others twice.
    ///
    /// # Errors
    /// As any read; [`ErrorKind::WouldDeadlock`](crate::ErrorKind::WouldDeadlock) where it would have to wait in a callback.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let inside = self.handle.admit()?;
        if read_here(inside.disk(), offset, buf) {
            return Ok(());
        }
        drop(inside);
        let buffer = self.read(offset, Buffer::new(buf.len())).wait()?;
        buf.copy_from_slice(&buffer);
        Ok(())
    }

    /// Writes `bytes` at `offset`, of which it makes a copy; blocks this thread until that is done.
    ///
    /// # Errors
    /// As any write; [`ErrorKind::WouldDeadlock`](crate::ErrorKind::WouldDeadlock) in a callback (the write happens).
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.write(offset, Buffer::copy_from(bytes)).wait().map(drop)
    }

    /// A queue for at most `depth` requests in flight, on the loop whose turn it is.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a depth of 0 or above 32768.
    pub fn queue(&self, depth: usize) -> Result<Queue, Error> {
        Queue::new(Arc::clone(&self.handle), self.handle.shared.loops().deal(), depth)
    }

    /// Closes the disk: keeps newcomers out from now on, waits for the requests in flight (limits hold none of them back any more),
    /// writes what is in memory, gives locks back. Other handles and queues get
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) from now on, and so does a second call.
    ///
    /// The disk is closed also when this fails: then something that was not flushed may be lost, which the error says. It waits
    /// for as long as the device takes; dropping the result does not stop it.
    pub fn close(&self) -> Pending<()> {
        let (reply, pending) = Pending::new();
        self.handle.shared.close(reply);
        pending
    }

    #[cfg(any(feature = "jobs", test))]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    /// Has the loop do `work`, which is neither counted nor charged as a request.
    pub(crate) fn run<T, F>(&self, work: impl FnOnce(Inside) -> F + Send + 'static) -> Pending<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + 'static,
    {
        let inside = match self.handle.enter() {
            Ok(inside) => inside,
            Err(error) => return Pending::ended(Err(error)),
        };
        let (reply, pending) = Pending::new();
        let start = move || {
            let task = async move {
                let result = work(inside).await;
                reply.send(result);
            };
            reactor::spawn(task).detach();
        };
        self.handle.shared.loops().send(HOME, Job::Work(Box::new(start)));
        pending
    }
}

impl Clone for Disk {
    fn clone(&self) -> Self {
        Self { handle: Arc::clone(&self.handle), lane: self.handle.shared.loops().deal() }
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Disk").field(&self.handle.shared).finish()
    }
}
