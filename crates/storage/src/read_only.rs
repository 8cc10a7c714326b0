//! Storage that cannot be written.

use std::{fmt, io};

use buffer::{ForeignBytes, IoBuf, IoVec};

use crate::contract::{Allocation, Capabilities, Extent, Hints, IoFuture, Storage, Zeroing, copied_into};

/// Bytes that are only read: of a server, or of an object. Whatever is this is [`Storage`], which refuses what would change them. Each method
/// is that of [`Storage`].
pub trait ReadOnlyStorage: fmt::Debug + Send + Sync {
    /// See [`Storage::name`].
    fn name(&self) -> &str;

    /// See [`Storage::capabilities`].
    fn capabilities(&self) -> Capabilities {
        Capabilities::READ_ONLY
    }

    /// See [`Storage::length`].
    fn length(&self) -> u64;

    /// See [`Storage::try_read`].
    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> bool {
        let _ = (offset, buf, hints);
        false
    }

    /// See [`Storage::read`].
    fn read(&self, offset: u64, buf: IoBuf, hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)>;

    /// See [`Storage::read_into`].
    fn read_into(&self, offset: u64, memory: ForeignBytes, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        copied_into(memory, move |buf| self.read(offset, buf, hints))
    }

    /// See [`Storage::extent`].
    fn extent(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>>;

    /// Why a change is refused.
    fn refusal(&self) -> io::Error {
        io::Error::new(io::ErrorKind::PermissionDenied, format!("{} is only read", self.name()))
    }
}

fn refused<T>(storage: &impl ReadOnlyStorage) -> IoFuture<'_, io::Result<T>> {
    Box::pin(async { Err(storage.refusal()) })
}

/// Refuses a change, unless it is none.
fn refused_unless(no_change: bool, storage: &impl ReadOnlyStorage) -> IoFuture<'_, io::Result<()>> {
    if no_change { Box::pin(async { Ok(()) }) } else { refused(storage) }
}

impl<R: ReadOnlyStorage> Storage for R {
    fn name(&self) -> &str {
        ReadOnlyStorage::name(self)
    }

    fn capabilities(&self) -> Capabilities {
        ReadOnlyStorage::capabilities(self)
    }

    fn length(&self) -> u64 {
        ReadOnlyStorage::length(self)
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> bool {
        ReadOnlyStorage::try_read(self, offset, buf, hints)
    }

    fn read(&self, offset: u64, buf: IoBuf, hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        ReadOnlyStorage::read(self, offset, buf, hints)
    }

    fn read_into(&self, offset: u64, memory: ForeignBytes, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        ReadOnlyStorage::read_into(self, offset, memory, hints)
    }

    fn write(&self, _offset: u64, _data: IoVec, _hints: Hints) -> IoFuture<'_, io::Result<()>> {
        refused(self)
    }

    fn write_from(&self, _offset: u64, _memory: ForeignBytes, _hints: Hints) -> IoFuture<'_, io::Result<()>> {
        refused(self)
    }

    fn flush(&self) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn zero(&self, _offset: u64, _len: u64, _how: Zeroing) -> IoFuture<'_, io::Result<()>> {
        refused(self)
    }

    fn discard(&self, _offset: u64, _len: u64) -> IoFuture<'_, io::Result<()>> {
        refused(self)
    }

    fn grow_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        refused_unless(length <= ReadOnlyStorage::length(self), self)
    }

    fn shorten_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        refused_unless(length >= ReadOnlyStorage::length(self), self)
    }

    fn allocate(&self, _offset: u64, _len: u64, _how: Allocation) -> IoFuture<'_, io::Result<()>> {
        refused(self)
    }

    fn extent(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        ReadOnlyStorage::extent(self, offset, len)
    }
}
