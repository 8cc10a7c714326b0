//! Regular files and block devices.

mod alignment;
mod asking;
mod calls;
mod copy;
mod copy_queue;
mod direct;
mod extent;
mod foreign;
mod inline;
mod kind;
mod length;
mod open;
mod open_error;
mod outcome;
mod space;
mod turns;
mod write_queue;

use std::fmt;
use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use memory::{ForeignBytes, IoBuf, IoVec};
use reactor::Backend;
use reactor::fs::{File, may_call_inline};

pub use self::open::UnlockedFile;
use crate::flushes::Flushes;
use crate::range_lock::RangeLocks;
use crate::{Allocation, Answer, Capabilities, Extent, Hints, IoFuture, Medium, Reach, Storage, Zeroing};
use alignment::DirectAlignment;
use asking::Tried;
pub use asking::ask_medium;
use calls::{check_range, is_transient};
use copy_queue::CopyQueue;
use inline::InlineWrites;
use kind::Kind;
pub use open::FileOptions;
pub use open_error::OpenError;
use rustix::fs::SeekFrom;
use rustix::io::{Errno, ReadWriteFlags};
use write_queue::{CALL_BYTES_MAX, Data, WriteQueue};

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

impl Shared {
    /// Reads from the page cache without waiting, on this thread.
    fn try_read(&self, offset: u64, buf: &mut [u8]) -> bool {
        let Some(flags) = self.no_waiting() else { return false };
        if check_range(offset, buf.len() as u64).is_err() {
            return false;
        }
        match rustix::io::preadv2(self.file.fd(), &mut [IoSliceMut::new(buf)], offset, flags) {
            Ok(count) if count == buf.len() => true,
            // The end of the file, or only of what is in memory: the length tells, where no other process can change it.
            Ok(count) if self.alone && offset + count as u64 >= self.length() => {
                buf[count..].fill(0);
                true
            }
            Ok(_) | Err(_) => false,
        }
    }

    /// What a read that must not wait is asked with; `None` where all may wait.
    fn no_waiting(&self) -> Option<ReadWriteFlags> {
        match self.asked.reads_without_waiting {
            _ if self.direct.is_some() => None,
            Answer::No if self.asked.is_memory() => Some(ReadWriteFlags::empty()),
            Answer::No => None,
            Answer::Yes | Answer::NotTried => Some(ReadWriteFlags::NOWAIT),
        }
    }

    /// Fills `buf`, going on after short reads; zeroes beyond the end. The range was checked.
    async fn read_buffered(&self, offset: u64, mut buf: IoBuf) -> (io::Result<()>, IoBuf) {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let result = if self.asked.is_memory() && may_call_inline() {
                // A ring leaves such reads to the thread that makes the writes, one after another.
                rustix::io::pread(self.file.fd(), &mut buf[done..], at).map_err(io::Error::from)
            } else if let Some(count) = self.read_without_ring(at, &mut buf[done..]) {
                Ok(count)
            } else {
                let rest = buf.split_off(done);
                let (result, rest) = self.file.read_at(at, rest).await;
                buf.rejoin(rest);
                result
            };
            match result {
                Ok(0) => {
                    buf[done..].fill(0);
                    break;
                }
                Ok(count) => done += count,
                Err(error) if is_transient(&error) => {}
                Err(error) => return (Err(error), buf),
            }
        }
        (Ok(()), buf)
    }

    /// Reads what is in the page cache on this thread, where a loop without a ring would wake another for it.
    fn read_without_ring(&self, offset: u64, buf: &mut [u8]) -> Option<usize> {
        let flags = self.no_waiting().filter(|_| reactor::backend() == Backend::Threads)?;
        if buf.len() > CALL_BYTES_MAX || !may_call_inline() {
            return None;
        }
        rustix::io::preadv2(self.file.fd(), &mut [IoSliceMut::new(buf)], offset, flags).ok()
    }

    /// Writes all of `data`, and notes the new length. The range was checked.
    async fn write_buffered(self: &Arc<Self>, offset: u64, data: Data, hints: Hints) -> io::Result<()> {
        let end = offset + data.len() as u64;
        match data {
            small if small.len() <= CALL_BYTES_MAX => self.write_small(offset, small, hints).await?,
            // Copying takes longer than a loop's other tasks should wait.
            large => self.write_queued(offset, large).await?,
        }
        self.grown_to(end);
        Ok(())
    }
}

impl Shared {
    /// One at a time: the kernel reports a failed writeback to one `fdatasync` of an open file only.
    fn flush(&self) -> IoFuture<'_, std::io::Result<()>> {
        Box::pin(async move {
            if self.read_only || self.no_flush {
                return self.flushes.check();
            }
            let is_character_device = self.kind == Kind::CharacterDevice;
            let sync = |end: crate::SyncEnd| {
                self.file.start_sync_data(move |result| match result {
                    // One that keeps nothing (/dev/null) has nothing to synchronize: fdatasync(2).
                    Err(error) if is_character_device && error.raw_os_error() == Some(libc::EINVAL) => {
                        end.tell(Ok(()));
                    }
                    result => end.tell(result),
                })
            };
            self.flushes.flush(sync).await
        })
    }
}

/// Whether `a` and `b` share an open file description, as copies of a descriptor do: then they share file locks, which
/// cannot tell one user from the other. Also `true` where the system does not say. Moves the position in the file, which
/// nothing here goes by.
pub fn is_same_description(a: &OwnedFd, b: &OwnedFd) -> bool {
    let same_file = || -> Result<bool, Errno> {
        let (a, b) = (rustix::fs::fstat(a)?, rustix::fs::fstat(b)?);
        Ok((a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    };
    // The position belongs to the description. Two of them: one may be where it is by chance.
    let moves_along = |position: u64| -> Result<bool, Errno> {
        rustix::fs::seek(a, SeekFrom::Start(position))?;
        Ok(rustix::fs::seek(b, SeekFrom::Current(0))? == position)
    };
    same_file().unwrap_or(true) && moves_along(1).unwrap_or(true) && moves_along(2).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_copy_of_a_descriptor_is_the_same_open_file_and_a_second_open_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        std::fs::write(&path, [0; 512]).unwrap();
        let [first, second]: [OwnedFd; 2] =
            [File::open(&path).unwrap().into(), File::open(&path).unwrap().into()];
        let copy = first.try_clone().unwrap();
        let other: OwnedFd = tempfile::tempfile().unwrap().into();
        assert!(is_same_description(&first, &copy) && is_same_description(&copy, &first));
        assert!(!is_same_description(&first, &second) && !is_same_description(&second, &copy));
        assert!(!is_same_description(&first, &other));
    }
}
