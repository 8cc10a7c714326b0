//! An opened disk as an export.

use block::{Hints, ReadKind, ZeroOptions};
use buffer::{ForeignBytes, IoBuf, IoVec};
use graph::{BlockSizes, Disk};

use crate::error::{Error, ErrorKind};
use crate::export::{Abilities, Depth, Dirtiness, Export, Extent, IoFuture, ZeroFlags};
use crate::turns::Pace;

impl Export for Disk {
    fn size(&self) -> u64 {
        Disk::size(self)
    }

    fn allocated_bytes(&self) -> Option<u64> {
        Disk::allocated_bytes(self)
    }

    fn read_only(&self) -> bool {
        Disk::read_only(self)
    }

    fn writes_through(&self) -> bool {
        Disk::writes_through(self)
    }

    fn block_sizes(&self) -> BlockSizes {
        Disk::block_sizes(self)
    }

    fn abilities(&self) -> Abilities {
        let writable = !Disk::read_only(self);
        Abilities {
            discard: writable,
            zero: writable,
            fast_zero: writable,
            prefetch: true,
            allocation_depth: true,
        }
    }

    fn bitmaps(&self) -> Vec<String> {
        self.bitmap_names()
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> Option<ReadKind> {
        Disk::try_read(self, offset, buf, hints)
    }

    fn try_read_into(&self, offset: u64, memory: &ForeignBytes, hints: Hints) -> Option<ReadKind> {
        Disk::try_read_into(self, offset, memory, hints)
    }

    fn holds_back(&self) -> bool {
        self.is_limited()
    }

    fn read<'a>(
        &'a self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
        pace: &'a Pace,
    ) -> IoFuture<'a, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(async move {
            let (result, buf) = self.read_paced(offset, buf, hints, pace).await;
            (result.map_err(failed), buf)
        })
    }

    fn write<'a>(
        &'a self,
        offset: u64,
        data: IoVec,
        fua: bool,
        hints: Hints,
        pace: &'a Pace,
    ) -> IoFuture<'a, Result<(), Error>> {
        Box::pin(async move { self.write_paced(offset, data, fua, hints, pace).await.map_err(failed) })
    }

    fn read_into<'a>(
        &'a self,
        offset: u64,
        memory: ForeignBytes,
        hints: Hints,
        pace: &'a Pace,
    ) -> IoFuture<'a, Result<ReadKind, Error>> {
        Box::pin(async move { Disk::read_into(self, offset, memory, hints, pace).await.map_err(failed) })
    }

    fn write_from<'a>(
        &'a self,
        offset: u64,
        memory: ForeignBytes,
        fua: bool,
        hints: Hints,
        pace: &'a Pace,
    ) -> IoFuture<'a, Result<(), Error>> {
        Box::pin(
            async move { Disk::write_from(self, offset, memory, fua, hints, pace).await.map_err(failed) },
        )
    }

    fn flush(&self) -> IoFuture<'_, Result<(), Error>> {
        Box::pin(async move { Disk::flush(self).await.map_err(failed) })
    }

    fn hand_to_kernel(&self) -> IoFuture<'_, Result<(), Error>> {
        Box::pin(async move { Disk::hand_to_kernel(self).await.map_err(failed) })
    }

    fn discard(&self, offset: u64, len: u64, fua: bool) -> IoFuture<'_, Result<(), Error>> {
        Box::pin(async move { Disk::discard(self, offset, len, fua).await.map_err(failed) })
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<'_, Result<(), Error>> {
        let options = ZeroOptions { unmap: flags.unmap, fast_only: flags.fast_only };
        Box::pin(async move { Disk::zero(self, offset, len, options, flags.fua).await.map_err(failed) })
    }

    fn prefetch<'a>(&'a self, offset: u64, len: u64, pace: &'a Pace) -> IoFuture<'a, Result<(), Error>> {
        Box::pin(async move { self.prefetch_paced(offset, len, pace).await.map_err(failed) })
    }

    fn idle(&self) -> IoFuture<'_, ()> {
        Box::pin(Disk::idle(self))
    }

    fn block_status(&self, offset: u64, len: u64) -> IoFuture<'_, Result<Extent, Error>> {
        Box::pin(async move {
            let status = Disk::block_status(self, offset, len).await.map_err(failed)?;
            Ok(Extent { len: status.len, hole: status.hole, zero: status.zero })
        })
    }

    fn allocation_depth(&self, offset: u64, len: u64) -> IoFuture<'_, Result<Depth, Error>> {
        Box::pin(async move {
            let status = Disk::block_status(self, offset, len).await.map_err(failed)?;
            let depth = if status.present { status.depth + 1 } else { 0 };
            Ok(Depth { len: status.len, depth })
        })
    }

    fn bitmap_status<'a>(
        &'a self,
        bitmap: &'a str,
        offset: u64,
        len: u64,
    ) -> IoFuture<'a, Result<Dirtiness, Error>> {
        Box::pin(async move {
            match Disk::bitmap_status(self, bitmap, offset, len).await.map_err(failed)? {
                Some(status) => Ok(Dirtiness { len: status.len, dirty: status.dirty }),
                None => Err(ErrorKind::Invalid.into()),
            }
        })
    }
}

/// For what is asked of a disk beside its exports, such as another size.
impl From<block::Error> for Error {
    fn from(error: block::Error) -> Self {
        failed(error)
    }
}

/// The failure as doors know it.
fn failed(error: block::Error) -> Error {
    let kind = match error.kind() {
        _ if error.is_no_space() => ErrorKind::NoSpace,
        _ if error.is_no_memory() => ErrorKind::NoMemory,
        block::ErrorKind::Io => ErrorKind::Io,
        block::ErrorKind::Corrupt => ErrorKind::Corrupt,
        block::ErrorKind::Invalid => ErrorKind::Invalid,
        block::ErrorKind::PastEnd => ErrorKind::PastEnd,
        block::ErrorKind::Unsupported => ErrorKind::NotSupported,
        block::ErrorKind::Refused => ErrorKind::ReadOnly,
    };
    Error::because(kind, error.image().to_owned(), error)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;

    fn io_error(kind: io::ErrorKind) -> block::Error {
        block::Error::Io { image: "a".into(), action: "writing data", source: Arc::new(kind.into()) }
    }

    #[test]
    fn a_failure_keeps_its_kind_and_the_words_of_its_cause() {
        let (image, detail): (Arc<str>, Arc<str>) = ("a".into(), "why".into());
        let refused = block::Error::Refused { image: image.clone(), detail: detail.clone() };
        let past_end = block::Error::PastEnd { image: image.clone(), offset: 8, len: 2, size: 9 };
        let cases = [
            (io_error(io::ErrorKind::StorageFull), ErrorKind::NoSpace),
            (io_error(io::ErrorKind::QuotaExceeded), ErrorKind::NoSpace),
            (io_error(io::ErrorKind::OutOfMemory), ErrorKind::NoMemory),
            (io_error(io::ErrorKind::Other), ErrorKind::Io),
            (refused, ErrorKind::ReadOnly),
            (past_end, ErrorKind::PastEnd),
            (block::Error::Unsupported { image, detail }, ErrorKind::NotSupported),
        ];
        for (error, kind) in cases {
            let (text, failed) = (error.to_string(), failed(error));
            assert_eq!((failed.kind(), failed.to_string()), (kind, text));
        }
        assert_eq!(Error::from(ErrorKind::ShuttingDown).to_string(), "shutting down");
    }
}
