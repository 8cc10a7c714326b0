//! An opened disk as an export.

use buffer::{IoBuf, IoVec};
use image::Disk;
use nbd_wire::{BlockSizes, ErrorCode};
use qcow2::{Error, ErrorKind, ReadKind, ZeroOptions};

use crate::export::{Abilities, Depth, Dirtiness, Export, Extent, IoFuture, ZeroFlags};

impl Export for Disk {
    fn size(&self) -> u64 {
        Disk::size(self)
    }

    fn read_only(&self) -> bool {
        Disk::read_only(self)
    }

    fn block_sizes(&self) -> BlockSizes {
        let sizes = Disk::block_sizes(self);
        BlockSizes {
            minimum: sizes.minimum,
            preferred: sizes.preferred,
            maximum: nbd_wire::limits::REQUEST_BYTES_MAX,
        }
    }

    fn abilities(&self) -> Abilities {
        let writable = !Disk::read_only(self);
        Abilities { trim: writable, zero: writable, fast_zero: writable, cache: true, allocation_depth: true }
    }

    fn bitmaps(&self) -> Vec<String> {
        self.bitmap_names()
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Option<ReadKind> {
        Disk::try_read(self, offset, buf)
    }

    fn holds_back(&self) -> bool {
        self.is_limited()
    }

    fn read(&self, offset: u64, buf: IoBuf) -> IoFuture<'_, (Result<ReadKind, ErrorCode>, IoBuf)> {
        Box::pin(async move {
            let (result, buf) = Disk::read(self, offset, buf).await;
            (result.map_err(told), buf)
        })
    }

    fn write(&self, offset: u64, data: IoVec, fua: bool) -> IoFuture<'_, Result<(), ErrorCode>> {
        Box::pin(async move { Disk::write(self, offset, data, fua).await.map_err(told) })
    }

    fn flush(&self) -> IoFuture<'_, Result<(), ErrorCode>> {
        Box::pin(async move { Disk::flush(self).await.map_err(told) })
    }

    fn trim(&self, offset: u64, len: u64, fua: bool) -> IoFuture<'_, Result<(), ErrorCode>> {
        Box::pin(async move { self.discard(offset, len, fua).await.map_err(told) })
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<'_, Result<(), ErrorCode>> {
        let options = ZeroOptions { unmap: !flags.no_hole, fast_only: flags.fast };
        Box::pin(async move { Disk::zero(self, offset, len, options, flags.fua).await.map_err(told) })
    }

    fn cache(&self, offset: u64, len: u64) -> IoFuture<'_, Result<(), ErrorCode>> {
        Box::pin(async move { self.prefetch(offset, len).await.map_err(told) })
    }

    fn idle(&self) -> IoFuture<'_, ()> {
        Box::pin(Disk::idle(self))
    }

    fn block_status(&self, offset: u64, len: u64) -> IoFuture<'_, Result<Extent, ErrorCode>> {
        Box::pin(async move {
            let status = Disk::block_status(self, offset, len).await.map_err(told)?;
            // No space is behind what no layer holds, nor behind zeroes without a place.
            let hole = !status.data && (status.offset.is_none() || !status.present || status.depth > 0);
            Ok(Extent { len: status.len, hole, zero: status.zero })
        })
    }

    fn allocation_depth(&self, offset: u64, len: u64) -> IoFuture<'_, Result<Depth, ErrorCode>> {
        Box::pin(async move {
            let status = Disk::block_status(self, offset, len).await.map_err(told)?;
            let depth = if status.present { status.depth + 1 } else { 0 };
            Ok(Depth { len: status.len, depth })
        })
    }

    fn bitmap_status<'a>(
        &'a self,
        bitmap: &'a str,
        offset: u64,
        len: u64,
    ) -> IoFuture<'a, Result<Dirtiness, ErrorCode>> {
        Box::pin(async move {
            match Disk::bitmap_status(self, bitmap, offset, len).await.map_err(told)? {
                Some(status) => Ok(Dirtiness { len: status.len, dirty: status.dirty }),
                None => Err(ErrorCode::Inval),
            }
        })
    }
}

/// What the client is told; the log gets the whole story.
fn told(error: Error) -> ErrorCode {
    tracing::error!("{error}");
    if error.is_no_space() {
        return ErrorCode::NoSpc;
    }
    match error.kind() {
        ErrorKind::Io | ErrorKind::Corrupt => ErrorCode::Io,
        ErrorKind::Invalid => ErrorCode::Inval,
        ErrorKind::Unsupported => ErrorCode::NotSup,
        ErrorKind::Refused => ErrorCode::Perm,
    }
}
