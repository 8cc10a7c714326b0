//! What every driver promises.

use std::any::Any;
use std::fmt;
use std::future::{Future, ready};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;

use memory::{ForeignBytes, IoBuf, IoVec};

use crate::{Medium, Reach, StepWatcher};

/// A running operation. It may be bound to the thread that started it; it owns its bytes, so
/// dropping it is safe at any time: the operation then still happens, or does not, and no caller is notified.
pub type IoFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// What requests cost least, and what is known of the device. Any request is correct; one that
/// keeps to `alignment` avoids a read-modify-write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Offsets and lengths that are multiples of this go to the device as they are (1, 512 or 4096).
    pub alignment: u32,
    /// Bytes beyond the highest end ever written read as zeroes when the length grows, and so does after a
    /// crash whatever of them was not written or not kept: true for regular files whose length no other process can
    /// change, false for block devices and for files that are open without a lock.
    pub grows_zeroed: bool,
    /// [`Storage::discard`] gives space back, and what was discarded reads as zeroes.
    pub discards_to_zero: bool,
    /// The length can change (a regular file), or is what the device has (a block device).
    pub resizable: bool,
    /// Nothing can be written: opened read-only.
    pub read_only: bool,
    /// Data may be in memory: [`Storage::try_read`] is worth a try.
    pub cached: bool,
}

impl Capabilities {
    /// What a regular file on a file system with holes promises.
    pub const REGULAR_FILE: Capabilities = Capabilities {
        alignment: 1,
        grows_zeroed: true,
        discards_to_zero: true,
        resizable: true,
        read_only: false,
        cached: true,
    };

    /// What bytes elsewhere promise that are only read.
    pub const READ_ONLY: Capabilities = Capabilities {
        alignment: 1,
        grows_zeroed: false,
        discards_to_zero: false,
        resizable: false,
        read_only: true,
        cached: false,
    };
}

/// How [`Storage::zero`] may do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeroing {
    /// Space stays reserved: a later write cannot fail for want of space.
    Keep,
    /// Space may be given back.
    Unmap,
    /// As `Unmap`, but only if that is much faster than writing zeroes; otherwise the request
    /// fails with [`io::ErrorKind::Unsupported`] and changes nothing.
    FastOnly,
}

/// How [`Storage::allocate`] reserves space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Ask the file system to reserve the range without writing it (`fallocate`).
    Reserve,
    /// Write zeroes over the whole range.
    Write,
}

/// Whether a range of the device holds bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// Bytes were written here, as far as the device tells.
    Data,
    /// A hole: reads as zeroes, no space behind it.
    Hole,
    /// Bytes of which neither is known, or that a bitmap marks, which the user asked for instead of holes. They are read as any.
    Marked,
}

/// A range of the device of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes, never 0.
    pub len: u64,
    /// What is there.
    pub kind: ExtentKind,
}

/// What a caller knows about a request that may change how it is carried out, on which thread and when, and never what it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// The caller has more for this thread to do: other requests that were received, or that are at work. What takes long is better done
    /// on another thread, though handing it over costs some microseconds; a request that is alone is sooner done here.
    pub more_waiting: bool,
}

impl Hints {
    /// Nothing is known; also that of a request that is alone.
    pub const NONE: Hints = Hints { more_waiting: false };

    /// More requests wait for this thread.
    pub const MORE_WAITING: Hints = Hints { more_waiting: true };
}

/// Random access to the bytes of one file, device or object.
///
/// All offsets and lengths are in bytes and of any alignment. Methods may be called from any
/// thread, many at a time; two requests that overlap in time have no order.
///
/// # Durability
/// A completed write is in the storage and survives the death of this process, not of the machine.
/// It survives both once a [`Storage::flush`] *issued after its completion* has succeeded. Until
/// then a crash may keep or drop it, sector by sector (512 bytes are never torn), in any order
/// among the requests since the last flush; changes of length and holes likewise.
///
/// # Failures
/// A failed or short write may have changed any part of its range. After one failed flush every
/// later flush fails too: what the page cache dropped cannot be known.
///
/// # Storage over storage
/// A driver may be [`Storage::over`] another one: it implements what it does differently, and everything else goes to that one. Only
/// reads without waiting, requests in memory of others and copies in the kernel do not: they become plain requests, so that none passes by a
/// driver that counts, delays or fails them. A driver over none says its length; what it does not implement is refused, as of bytes that are only read.
pub trait Storage: Any + fmt::Debug + Send + Sync {
    /// The storage that takes what this one does not implement.
    fn over(&self) -> Option<&dyn Storage> {
        None
    }

    /// Why a request that it does not implement is refused, where it is over none.
    fn refusal(&self) -> io::Error {
        io::Error::new(io::ErrorKind::PermissionDenied, format!("{} is only read", self.name()))
    }

    /// A name for messages: the path, as the caller gave it.
    fn name(&self) -> &str {
        self.over().map_or("", Storage::name)
    }

    /// What requests should look like. Constant while open.
    fn capabilities(&self) -> Capabilities {
        self.over().map_or(Capabilities::READ_ONLY, Storage::capabilities)
    }

    /// What the device below does, as far as it was asked or tried. Costs no system call. A driver that has nothing below it says nothing.
    fn medium(&self) -> Medium {
        self.over().map(Storage::medium).unwrap_or_default()
    }

    /// Length in bytes, as far as this process knows: taken when it was opened (under its lock, if there is one), then
    /// kept by the driver as its own requests change it. Costs no system call. Never more than the device has,
    /// unless a process that ignores locks cuts it.
    fn length(&self) -> u64 {
        self.over().map_or(0, Storage::length)
    }

    /// Fills `buf` from `offset` if that is possible without waiting for the device, and says
    /// whether it did. Bytes beyond the end read as zeroes. A miss may have written part of `buf`.
    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> bool {
        let _ = (offset, buf, hints);
        false
    }

    /// As [`Storage::try_read`], into memory of others. A driver that cannot fill it in place does not.
    fn try_read_into(&self, offset: u64, memory: &ForeignBytes, hints: Hints) -> bool {
        let _ = (offset, memory, hints);
        false
    }

    /// Fills `buf` from `offset`; bytes beyond the end read as zeroes. Gives the buffer back.
    fn read(&self, offset: u64, buf: IoBuf, hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        match self.over() {
            Some(over) => over.read(offset, buf, hints),
            None => Box::pin(ready((Err(self.refusal()), buf))),
        }
    }

    /// Writes all of `data` at `offset`, growing the length where needed.
    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        match self.over() {
            Some(over) => over.write(offset, data, hints),
            None => Box::pin(ready(Err(self.refusal()))),
        }
    }

    /// As [`Storage::read`], into memory of others, which holds anything after a failure. A driver that cannot fill it in place reads into
    /// memory of its own, as much again, and copies.
    fn read_into(&self, offset: u64, memory: ForeignBytes, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        copied_into(memory, move |buf| self.read(offset, buf, hints))
    }

    /// As [`Storage::write`], of memory of others. What is written is what was there at some time during the call, byte by byte. A
    /// driver that cannot write it in place copies it first.
    fn write_from(&self, offset: u64, memory: ForeignBytes, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let copy = memory.to_bytes()?;
            self.write(offset, copy.into(), hints).await
        })
    }

    /// Makes every write, zeroing, discard and change of length durable that completed before this call.
    fn flush(&self) -> IoFuture<'_, io::Result<()>> {
        match self.over() {
            Some(over) => over.flush(),
            // Bytes that are only read are as durable as they were.
            None => Box::pin(ready(Ok(()))),
        }
    }

    /// Makes the range read as zeroes, growing the length where needed.
    fn zero(&self, offset: u64, len: u64, how: Zeroing) -> IoFuture<'_, io::Result<()>> {
        match self.over() {
            Some(over) => over.zero(offset, len, how),
            None => Box::pin(ready(Err(self.refusal()))),
        }
    }

    /// Gives the space of the range back where that is possible. What the range reads as afterwards
    /// is zeroes if [`Capabilities::discards_to_zero`], otherwise anything. Never changes the length.
    fn discard(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<()>> {
        match self.over() {
            Some(over) => over.discard(offset, len),
            None => Box::pin(ready(Err(self.refusal()))),
        }
    }

    /// Makes the length at least `length`; what is added reads as zeroes. Never shortens, whatever the device's
    /// length is by now. A device that is not [`Capabilities::resizable`] is asked for the length that it has by now, and may hold anything.
    fn grow_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        match self.over() {
            Some(over) => over.grow_to(length),
            None if length <= self.length() => Box::pin(ready(Ok(()))),
            None => Box::pin(ready(Err(self.refusal()))),
        }
    }

    /// As [`Storage::grow_to`], where it does not matter what is added reads as: nothing is written for that.
    fn extend_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        self.grow_to(length)
    }

    /// Makes the length at most `length`; what is cut off is lost. The only operation that shortens. The caller keeps
    /// its own requests away from what is cut off.
    fn shorten_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        match self.over() {
            Some(over) => over.shorten_to(length),
            None if length >= self.length() => Box::pin(ready(Ok(()))),
            None => Box::pin(ready(Err(self.refusal()))),
        }
    }

    /// The caller writes no more for now: what the driver reserved behind the length for writes to come is given back. Reads go on, and
    /// a later write is taken as the first one was. Drivers that reserve nothing have nothing to do.
    ///
    /// # Crash
    /// What was not given back before it stays, and the process that opens the device next finds it as part of the length.
    fn end_writing(&self) -> IoFuture<'_, io::Result<()>> {
        match self.over() {
            Some(over) => over.end_writing(),
            None => Box::pin(ready(Ok(()))),
        }
    }

    /// Makes sure that writes into the range will not fail for want of space; grows the length.
    /// Bytes that were there keep their value.
    fn allocate(&self, offset: u64, len: u64, how: Allocation) -> IoFuture<'_, io::Result<()>> {
        match self.over() {
            Some(over) => over.allocate(offset, len, how),
            None => Box::pin(ready(Err(self.refusal()))),
        }
    }

    /// The file of this machine that these bytes are, where they are read through the page cache: what [`Storage::copy_from`] of
    /// another storage takes.
    fn descriptor(&self) -> Option<&Arc<OwnedFd>> {
        None
    }

    /// [`Storage::copy_from`] is worth a try. False from the first time on that the kernel refuses.
    fn copies(&self) -> bool {
        false
    }

    /// Writes `len` bytes that `source` has at `from`, growing the length where needed. The kernel copies them, and a file system that
    /// can lets both files share them.
    ///
    /// # Errors
    /// With [`io::ErrorKind::Unsupported`] where the kernel does not copy between these two, or `source` ends before: then part of the
    /// range may have changed, and it is to be written.
    fn copy_from(
        &self,
        offset: u64,
        source: Arc<OwnedFd>,
        from: u64,
        len: u64,
    ) -> IoFuture<'_, io::Result<()>> {
        let _ = (offset, source, from, len);
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    /// What is at `offset`, for at most `len` bytes (at least one, inside the length).
    fn extent(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        match self.over() {
            Some(over) => over.extent(offset, len),
            None => Box::pin(ready(Ok(Extent { len, kind: ExtentKind::Data }))),
        }
    }

    /// Bytes of the device in use (`st_blocks`), where known.
    fn allocated_bytes(&self) -> Option<u64> {
        self.over()?.allocated_bytes()
    }

    /// How far writes have reached, where that is known.
    fn reach(&self) -> Option<&Arc<Reach>> {
        self.over()?.reach()
    }

    /// When the bytes were changed last, in seconds and nanoseconds since 1970; `None` where it is unknown, as of a device. Two changes within a tick of
    /// the system's clock, some milliseconds, have one time.
    ///
    /// # Errors
    /// When the system cannot tell.
    fn changed_at(&self) -> io::Result<Option<(i64, u32)>> {
        self.over().map_or(Ok(None), Storage::changed_at)
    }

    /// What observes the steps of an engine: nothing, but in tests.
    fn watcher(&self) -> Option<&dyn StepWatcher> {
        self.over()?.watcher()
    }
}

impl dyn Storage {
    /// The storage as what it is, if it is an `S`.
    pub fn downcast_ref<S: Storage>(&self) -> Option<&S> {
        (self as &dyn Any).downcast_ref()
    }
}

/// Has `read` fill memory of our own, as much as `memory` is, and copies that into it.
fn copied_into<'a>(
    memory: ForeignBytes,
    read: impl FnOnce(IoBuf) -> IoFuture<'a, (io::Result<()>, IoBuf)> + 'a,
) -> IoFuture<'a, io::Result<()>> {
    Box::pin(async move {
        let buf = IoBuf::try_uninit(memory.len()).ok_or(io::ErrorKind::OutOfMemory)?;
        let (result, buf) = read(buf).await;
        result?;
        memory.copy_from(0, &buf);
        Ok(())
    })
}
