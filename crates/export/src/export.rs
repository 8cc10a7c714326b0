//! What a disk must be able to do to be served.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use block::{Hints, ReadKind};
use memory::{ForeignBytes, IoBuf, IoVec};

use crate::error::{Error, ErrorKind};
use crate::turns::Pace;

/// A running operation. It may be bound to the thread that started it and owns its bytes.
pub type IoFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// What requests should look like, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Any multiple of this is possible.
    pub minimum: u32,
    /// Multiples of this cost least.
    pub preferred: u32,
    /// A discard gives back aligned multiples of this, a power of two of at least 512; what is smaller may stay.
    pub discard: u32,
}

/// Which requests a disk understands beyond read, write and flush. A door offers no others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// [`Export::discard`].
    pub discard: bool,
    /// [`Export::zero`].
    pub zero: bool,
    /// [`ZeroFlags::fast_only`] of [`Export::zero`].
    pub fast_zero: bool,
    /// [`Export::prefetch`].
    pub prefetch: bool,
    /// [`Export::allocation_depth`].
    pub allocation_depth: bool,
}

/// How a range is to be zeroed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZeroFlags {
    /// The range need not take space afterwards; otherwise space is reserved for it.
    pub unmap: bool,
    /// Fail with [`ErrorKind::NotSupported`], changing nothing, rather than be as slow as a write.
    pub fast_only: bool,
    /// Durable when it ends.
    pub fua: bool,
}

/// Whether a range takes space, and what it reads as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes from the asked offset on; at least 1. More than was asked for is cut.
    pub len: u64,
    /// No space is reserved.
    pub hole: bool,
    /// Reads as zeroes.
    pub zero: bool,
}

/// Which layer of a chain holds a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Bytes from the asked offset on; at least 1. More than was asked for is cut.
    pub len: u64,
    /// 0: none; 1: the top; 2: its backing image; and so on.
    pub depth: u32,
}

/// Whether a range is dirty in a bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirtiness {
    /// Bytes from the asked offset on; at least 1. More than was asked for is cut.
    pub len: u64,
    /// Written since the bitmap was made.
    pub dirty: bool,
}

/// The bytes of one disk.
///
/// All offsets and lengths are in bytes, of any alignment, and lie inside [`Export::size`]. Methods
/// are called from any thread, many at a time; two requests that overlap in time have
/// no order. A flush covers every write that had completed, of whichever client, when it began.
pub trait Export: fmt::Debug + Send + Sync {
    /// Length in bytes. A client keeps to what it received when it began; where the disk has become shorter since,
    /// its requests beyond the end fail.
    fn size(&self) -> u64;

    /// Bytes of the device that it takes; None where it is unknown.
    fn allocated_bytes(&self) -> Option<u64> {
        None
    }

    /// Writes, zeroes and discards fail; they are refused before they come here.
    fn read_only(&self) -> bool;

    /// Every write is durable when it ends: no client needs to flush.
    fn writes_through(&self) -> bool {
        false
    }

    /// What requests should look like.
    fn block_sizes(&self) -> BlockSizes;

    /// What is understood. Constant while served.
    fn abilities(&self) -> Abilities;

    /// Names of the bitmaps that [`Export::bitmap_status`] knows.
    fn bitmaps(&self) -> Vec<String> {
        Vec::new()
    }

    /// Reads into `buf` from `offset` if that needs no waiting. `buf` has no particular alignment; zeroes leave
    /// it as it was, and after `None` part of it may have changed.
    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> Option<ReadKind> {
        let _ = (offset, buf, hints);
        None
    }

    /// As [`Export::try_read`], into memory of others. A disk that cannot fill it in place does not.
    fn try_read_into(&self, offset: u64, memory: &ForeignBytes, hints: Hints) -> Option<ReadKind> {
        let _ = (offset, memory, hints);
        None
    }

    /// Whether requests may be made to wait for a limit, so that they are better given up than carried out
    /// when their client is gone.
    fn holds_back(&self) -> bool {
        false
    }

    /// Fills `buf` from `offset`, zeroes included. Gives the buffer back.
    ///
    /// Before each step of at most [`crate::STEP_BYTES`] it awaits its turn of `pace`. It may be dropped at any
    /// await: its client is gone.
    fn read<'a>(
        &'a self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
        pace: &'a Pace,
    ) -> IoFuture<'a, (Result<ReadKind, Error>, IoBuf)>;

    /// Writes `data` at `offset`, in steps of `pace`; with `fua`, durable before it ends.
    fn write<'a>(
        &'a self,
        offset: u64,
        data: IoVec,
        fua: bool,
        hints: Hints,
        pace: &'a Pace,
    ) -> IoFuture<'a, Result<(), Error>>;

    /// As [`Export::read`], into memory of others (a guest's), which holds anything after a failure. It is in use, and its owner held,
    /// for as long as the kernel may touch it, also if the request is dropped.
    fn read_into<'a>(
        &'a self,
        offset: u64,
        memory: ForeignBytes,
        hints: Hints,
        pace: &'a Pace,
    ) -> IoFuture<'a, Result<ReadKind, Error>> {
        Box::pin(async move {
            let buf = IoBuf::try_uninit(memory.len()).ok_or(ErrorKind::NoMemory)?;
            let (result, buf) = self.read(offset, buf, hints, pace).await;
            let kind = result?;
            memory.copy_from(0, &buf);
            Ok(kind)
        })
    }

    /// As [`Export::write`], of memory of others. What is written is what was there at some time during the call, byte by byte.
    fn write_from<'a>(
        &'a self,
        offset: u64,
        memory: ForeignBytes,
        fua: bool,
        hints: Hints,
        pace: &'a Pace,
    ) -> IoFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let copy = memory.to_bytes()?;
            self.write(offset, copy.into(), fua, hints, pace).await
        })
    }

    /// Makes every write durable that completed before this call.
    fn flush(&self) -> IoFuture<'_, Result<(), Error>>;

    /// The next program that opens the disk finds all that completed before this call, also if this process is killed; not if the machine fails:
    /// that takes [`Export::flush`]. It costs as much as a flush where something waits in this process's memory, and nothing elsewhere.
    fn hand_to_kernel(&self) -> IoFuture<'_, Result<(), Error>> {
        self.flush()
    }

    /// The range is of no use any more; what it reads as afterwards is the disk's choice.
    fn discard<'a>(
        &'a self,
        offset: u64,
        len: u64,
        fua: bool,
        pace: &'a Pace,
    ) -> IoFuture<'a, Result<(), Error>>;

    /// Makes the range read as zeroes.
    fn zero<'a>(
        &'a self,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
        pace: &'a Pace,
    ) -> IoFuture<'a, Result<(), Error>>;

    /// Brings the range closer, where that means something, in steps of `pace`. It may be dropped at any await.
    fn prefetch<'a>(&'a self, offset: u64, len: u64, pace: &'a Pace) -> IoFuture<'a, Result<(), Error>>;

    /// Waits until nothing that requests left behind is at work: a loop does not end before.
    fn idle(&self) -> IoFuture<'_, ()> {
        Box::pin(async {})
    }

    /// What is at `offset`, for at most `len` bytes.
    fn block_status(&self, offset: u64, len: u64) -> IoFuture<'_, Result<Extent, Error>>;

    /// Where the bytes at `offset` are, for at most `len` bytes.
    fn allocation_depth(&self, offset: u64, len: u64) -> IoFuture<'_, Result<Depth, Error>> {
        let _ = (offset, len);
        Box::pin(async { Err(ErrorKind::Invalid.into()) })
    }

    /// What `bitmap` says of `offset`, for at most `len` bytes.
    fn bitmap_status<'a>(
        &'a self,
        bitmap: &'a str,
        offset: u64,
        len: u64,
    ) -> IoFuture<'a, Result<Dirtiness, Error>> {
        let _ = (bitmap, offset, len);
        Box::pin(async { Err(ErrorKind::Invalid.into()) })
    }
}
