//! A file as it is: the least that a disk on storage costs.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::path::Path;

use buffer::{IoBuf, IoVec};
use door_nbd::{Abilities, BlockSizes, ErrorCode, Export, Extent, IoFuture, ReadKind, ZeroFlags};
use reactor::Backend;
use reactor::fs::File as LoopFile;
use rustix::io::ReadWriteFlags;

/// A file of whole pages.
#[derive(Debug)]
pub struct FileExport {
    file: LoopFile,
    size: u64,
}

impl FileExport {
    /// Opens `path` for reading and writing.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let size = file.metadata()?.len();
        Ok(Self { file: LoopFile::new(file.into(), Backend::Ring), size })
    }
}

fn failed(error: io::Error) -> ErrorCode {
    if error.kind() == io::ErrorKind::StorageFull { ErrorCode::NoSpc } else { ErrorCode::Io }
}

impl Export for FileExport {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_only(&self) -> bool {
        false
    }

    fn block_sizes(&self) -> BlockSizes {
        BlockSizes { minimum: 1, preferred: 4096, maximum: 32 << 20 }
    }

    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Option<ReadKind> {
        let len = buf.len();
        let read = rustix::io::preadv2(
            &**self.file.fd(),
            &mut [IoSliceMut::new(buf)],
            offset,
            ReadWriteFlags::NOWAIT,
        );
        if read == Ok(len) { Some(ReadKind::Data) } else { None }
    }

    fn read(&self, offset: u64, buf: IoBuf) -> IoFuture<'_, (Result<ReadKind, ErrorCode>, IoBuf)> {
        Box::pin(async move {
            let len = buf.len();
            match self.file.read_at(offset, buf).await {
                (Ok(count), buf) if count == len => (Ok(ReadKind::Data), buf),
                (_, buf) => (Err(ErrorCode::Io), buf),
            }
        })
    }

    fn write(&self, offset: u64, data: IoVec, fua: bool) -> IoFuture<'_, Result<(), ErrorCode>> {
        Box::pin(async move {
            let len = data.len();
            let written = self.file.write_at(offset, data).await.map_err(failed)?;
            if written != len {
                return Err(ErrorCode::Io);
            }
            if fua { self.file.sync_data().await.map_err(failed) } else { Ok(()) }
        })
    }

    fn flush(&self) -> IoFuture<'_, Result<(), ErrorCode>> {
        Box::pin(async move { self.file.sync_data().await.map_err(failed) })
    }

    fn trim(&self, _offset: u64, _len: u64, _fua: bool) -> IoFuture<'_, Result<(), ErrorCode>> {
        Box::pin(async { Err(ErrorCode::NotSup) })
    }

    fn zero(&self, _offset: u64, _len: u64, _flags: ZeroFlags) -> IoFuture<'_, Result<(), ErrorCode>> {
        Box::pin(async { Err(ErrorCode::NotSup) })
    }

    fn cache(&self, _offset: u64, _len: u64) -> IoFuture<'_, Result<(), ErrorCode>> {
        Box::pin(async { Ok(()) })
    }

    fn block_status(&self, _offset: u64, len: u64) -> IoFuture<'_, Result<Extent, ErrorCode>> {
        Box::pin(async move { Ok(Extent { len, hole: false, zero: false }) })
    }
}
