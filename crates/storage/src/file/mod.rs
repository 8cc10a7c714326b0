//! Regular files and block devices.

mod alignment;
mod asking;
mod buffered;
mod calls;
mod copy;
mod copy_queue;
mod description;
mod direct;
mod extent;
mod flush;
mod foreign;
mod inline;
mod kind;
mod length;
mod open;
mod open_error;
mod outcome;
mod space;
mod turns;
mod unlocked;
mod write_queue;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use memory::{ForeignBytes, IoBuf, IoVec};
use reactor::fs::File;

use crate::flushes::Flushes;
use crate::range_lock::RangeLocks;
use crate::{Allocation, Capabilities, Extent, Hints, IoFuture, Medium, Reach, Storage, Zeroing};
use alignment::DirectAlignment;
use asking::Tried;
pub use asking::ask_medium;
use calls::check_range;
use copy_queue::CopyQueue;
pub use description::is_same_description;
use inline::InlineWrites;
use kind::Kind;
pub use open::FileOptions;
pub use open_error::OpenError;
pub use unlocked::UnlockedFile;
use write_queue::{Data, WriteQueue};

/// An open file or block device, through the page cache or (with O_DIRECT) beside it. Operations go
/// to the loop of the thread that awaits them; any number of loops may share one.
pub struct FileStorage {
    shared: Arc<Shared>,
}

/// What operations that outlive their future hold on to.
struct Shared {
    name: String,
    file: File,
    kind: Kind,
    /// None: through the page cache.
    direct: Option<DirectAlignment>,
    read_only: bool,
    no_flush: bool,
    /// Length as far as known: taken under the lock, grows as writes complete. `length.rs` owns it.
    length: AtomicU64,
    /// How far writes have reached.
    reach: Arc<Reach>,
    /// No other process can change the length: a lock forbids it.
    alone: bool,
    /// With O_DIRECT, the ranges being written: a read-modify-write must not undo its neighbours.
    ranges: RangeLocks,
    flushes: Arc<Flushes>,
    /// Writes to the page cache on the loop's thread.
    inline: InlineWrites,
    /// Those made beside the loops.
    queue: WriteQueue,
    /// Copies from other files.
    copies: CopyQueue,
    /// What the kernel said when the file was opened.
    asked: Medium,
    /// What was learned since.
    tried: Tried,
}

impl FileStorage {
    /// The descriptor, for file locks.
    pub fn fd(&self) -> &Arc<OwnedFd> {
        self.shared.file.fd()
    }

    /// Whether requests go beside the page cache.
    pub fn is_direct(&self) -> bool {
        self.shared.direct.is_some()
    }

    /// Whether it is a device.
    pub fn is_device(&self) -> bool {
        self.shared.kind != Kind::Regular
    }
}

impl Shared {
    fn check_writable(&self) -> io::Result<()> {
        if self.read_only {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("{} is open read-only", self.name),
            ));
        }
        Ok(())
    }

    /// Where the range ends, if it can be written at all.
    fn check_write(&self, offset: u64, len: u64) -> io::Result<u64> {
        self.check_writable()?;
        let end = check_range(offset, len)?;
        if self.kind != Kind::Regular && end > self.length() {
            let message = format!("{len} bytes at {offset} go beyond the device's {} bytes", self.length());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        if len > 0 {
            self.reach.note(end);
        }
        Ok(end)
    }

    async fn read(&self, offset: u64, buf: IoBuf) -> (io::Result<()>, IoBuf) {
        if let Err(error) = check_range(offset, buf.len() as u64) {
            return (Err(error), buf);
        }
        match self.direct {
            None => self.read_buffered(offset, buf).await,
            Some(alignment) => self.read_direct(alignment, offset, buf).await,
        }
    }

    /// Writes, whatever the mode, and notes the new length. The range was checked.
    async fn write(self: &Arc<Self>, offset: u64, data: IoVec, hints: Hints) -> io::Result<()> {
        match self.direct {
            None => self.write_buffered(offset, Data::Own(data), hints).await,
            Some(alignment) => self.write_direct(alignment, offset, data).await,
        }
    }
}

impl Storage for FileStorage {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn capabilities(&self) -> Capabilities {
        let regular = self.shared.kind == Kind::Regular;
        Capabilities {
            alignment: self.shared.direct.map_or(1, |alignment| alignment.offset),
            grows_zeroed: regular && self.shared.alone,
            discards_to_zero: regular,
            resizable: regular,
            read_only: self.shared.read_only,
            cached: self.shared.direct.is_none(),
        }
    }

    fn medium(&self) -> Medium {
        self.shared.tried.added_to(self.shared.asked)
    }

    fn length(&self) -> u64 {
        self.shared.length()
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], _hints: Hints) -> bool {
        self.shared.try_read(offset, buf)
    }

    fn try_read_into(&self, offset: u64, memory: &ForeignBytes, _hints: Hints) -> bool {
        self.shared.try_read_into(offset, memory)
    }

    fn read(&self, offset: u64, buf: IoBuf, _hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        Box::pin(self.shared.read(offset, buf))
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.shared.check_write(offset, data.len() as u64)?;
            if data.is_empty() {
                return Ok(());
            }
            self.shared.write(offset, data, hints).await
        })
    }

    fn read_into(&self, offset: u64, memory: ForeignBytes, _hints: Hints) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.shared.read_into(offset, memory))
    }

    fn write_from(&self, offset: u64, memory: ForeignBytes, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.shared.check_write(offset, memory.len() as u64)?;
            if memory.is_empty() {
                return Ok(());
            }
            self.shared.write_from(offset, memory, hints).await
        })
    }

    fn flush(&self) -> IoFuture<'_, io::Result<()>> {
        self.shared.flush()
    }

    fn zero(&self, offset: u64, len: u64, how: Zeroing) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.shared.zero(offset, len, how))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.shared.discard(offset, len))
    }

    fn grow_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.shared.grow_to(length))
    }

    fn shorten_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.shared.shorten_to(length))
    }

    fn allocate(&self, offset: u64, len: u64, how: Allocation) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.shared.allocate(offset, len, how))
    }

    fn descriptor(&self) -> Option<&Arc<OwnedFd>> {
        (self.shared.kind == Kind::Regular && self.shared.direct.is_none()).then(|| self.fd())
    }

    fn copies(&self) -> bool {
        self.shared.copies()
    }

    fn copy_from(
        &self,
        offset: u64,
        source: Arc<OwnedFd>,
        from: u64,
        len: u64,
    ) -> IoFuture<'_, io::Result<()>> {
        Box::pin(self.shared.copy_from(offset, source, from, len))
    }

    fn extent(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        Box::pin(self.shared.extent(offset, len))
    }

    fn reach(&self) -> Option<&Arc<Reach>> {
        Some(&self.shared.reach)
    }

    fn allocated_bytes(&self) -> Option<u64> {
        let stat = rustix::fs::fstat(self.fd()).ok()?;
        u64::try_from(stat.st_blocks).ok()?.checked_mul(512)
    }

    fn changed_at(&self) -> io::Result<Option<(i64, u32)>> {
        if self.shared.kind != Kind::Regular {
            return Ok(None);
        }
        let stat = rustix::fs::fstat(self.fd())?;
        // Below 10^9.
        Ok(Some((stat.st_mtime, stat.st_mtime_nsec as u32)))
    }
}

impl fmt::Debug for FileStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStorage")
            .field("name", &self.shared.name)
            .field("direct", &self.shared.direct)
            .field("length", &self.shared.length())
            .finish_non_exhaustive()
    }
}
