//! A file as it is: the least that a disk on storage costs.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::path::Path;

use export::{
    Abilities, BlockSizes, Error, ErrorKind, Export, Extent, Hints, IoFuture, Pace, ReadKind, ZeroFlags,
};
use memory::{IoBuf, IoVec};
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
        Ok(Self { file: LoopFile::new(std::os::fd::OwnedFd::from(file), Backend::Ring), size })
    }
}

fn failed(error: io::Error) -> Error {
    let is_full = error.kind() == io::ErrorKind::StorageFull;
    Error::because(if is_full { ErrorKind::NoSpace } else { ErrorKind::Io }, "the file", error)
}

impl Export for FileExport {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_only(&self) -> bool {
        false
    }

    fn block_sizes(&self) -> BlockSizes {
        BlockSizes { minimum: 1, preferred: 4096, discard: 4096 }
    }

    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], _hints: Hints) -> Option<ReadKind> {
        let len = buf.len();
        let read = rustix::io::preadv2(
            &**self.file.fd(),
            &mut [IoSliceMut::new(buf)],
            offset,
            ReadWriteFlags::NOWAIT,
        );
        if read == Ok(len) { Some(ReadKind::Data) } else { None }
    }

    fn read<'a>(
        &'a self,
        offset: u64,
        buf: IoBuf,
        _hints: Hints,
        pace: &'a Pace,
    ) -> IoFuture<'a, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(async move {
            pace.step(buf.len() as u64).await;
            let len = buf.len();
            match self.file.read_at(offset, buf).await {
                (Ok(count), buf) if count == len => (Ok(ReadKind::Data), buf),
                (_, buf) => (Err(ErrorKind::Io.into()), buf),
            }
        })
    }

    fn write<'a>(
        &'a self,
        offset: u64,
        data: IoVec,
        fua: bool,
        _hints: Hints,
        pace: &'a Pace,
    ) -> IoFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            pace.step(data.len() as u64).await;
            let len = data.len();
            let written = self.file.write_at(offset, data).await.map_err(failed)?;
            if written != len {
                return Err(ErrorKind::Io.into());
            }
            if fua { self.file.sync_data().await.map_err(failed) } else { Ok(()) }
        })
    }

    fn flush(&self) -> IoFuture<'_, Result<(), Error>> {
        Box::pin(async move { self.file.sync_data().await.map_err(failed) })
    }

    fn discard<'a>(
        &'a self,
        _offset: u64,
        _len: u64,
        _fua: bool,
        _pace: &'a Pace,
    ) -> IoFuture<'a, Result<(), Error>> {
        Box::pin(async { Err(ErrorKind::NotSupported.into()) })
    }

    fn zero<'a>(
        &'a self,
        _offset: u64,
        _len: u64,
        _flags: ZeroFlags,
        _pace: &'a Pace,
    ) -> IoFuture<'a, Result<(), Error>> {
        Box::pin(async { Err(ErrorKind::NotSupported.into()) })
    }

    fn prefetch<'a>(&'a self, _offset: u64, _len: u64, _pace: &'a Pace) -> IoFuture<'a, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn block_status(&self, _offset: u64, len: u64) -> IoFuture<'_, Result<Extent, Error>> {
        Box::pin(async move { Ok(Extent { len, hole: false, zero: false }) })
    }
}
