//! A file whose changes stay in memory: a repair over it shows what it would do.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memory::{IoBuf, IoVec};
use parking_lot::Mutex;
use storage::{Allocation, Capabilities, Extent, ExtentKind, Hints, IoFuture, Medium, Storage, Zeroing};

/// What is kept at a time: a write of metadata is whole blocks of this size, but for the end of a table.
const BLOCK_BYTES: usize = 512;
/// Bytes that a repair may write. Refcounts of 4 TiB in clusters of 64 KiB are 128 MiB.
const WRITTEN_BYTES_MAX: usize = 192 << 20;

/// Zeroes that are kept at a time.
const ZEROES_BYTES: usize = 4 << 10;

type Block = [u8; BLOCK_BYTES];

/// The file as it is, and over it what was written since.
#[derive(Debug)]
pub struct DryRun {
    file: Arc<dyn Storage>,
    written: Mutex<BTreeMap<u64, Box<Block>>>,
    length: AtomicU64,
}

impl DryRun {
    /// Over `file`, which is never written.
    pub fn over(file: Arc<dyn Storage>) -> Self {
        let length = AtomicU64::new(file.length());
        Self { file, written: Mutex::default(), length }
    }

    /// Bytes that were written, each counted once, in whole sectors.
    pub fn written_bytes(&self) -> u64 {
        (self.written.lock().len() * BLOCK_BYTES) as u64
    }

    async fn read_over(&self, offset: u64, buf: IoBuf) -> (io::Result<()>, IoBuf) {
        let (result, mut buf) = self.file.read(offset, buf, Hints::NONE).await;
        let end = offset + buf.len() as u64;
        let first = offset - offset % BLOCK_BYTES as u64;
        for (&at, block) in self.written.lock().range(first..end) {
            let (from, to) = (at.max(offset), (at + BLOCK_BYTES as u64).min(end));
            let inside = (from - at) as usize..(to - at) as usize;
            buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(&block[inside]);
        }
        (result, buf)
    }

    async fn keep(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset + data.len() as u64;
        let first = offset - offset % BLOCK_BYTES as u64;
        let last = end.next_multiple_of(BLOCK_BYTES as u64);
        let (result, mut whole) = self.read_over(first, IoBuf::uninit((last - first) as usize)).await;
        result?;
        let start = (offset - first) as usize;
        whole[start..start + data.len()].copy_from_slice(data);
        let mut written = self.written.lock();
        for (at, block) in (first..).step_by(BLOCK_BYTES).zip(whole.as_chunks::<BLOCK_BYTES>().0) {
            written.insert(at, Box::new(*block));
        }
        if written.len() * BLOCK_BYTES > WRITTEN_BYTES_MAX {
            let what = format!("the repair would write more than {WRITTEN_BYTES_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::StorageFull, what));
        }
        self.length.fetch_max(end, Ordering::AcqRel);
        Ok(())
    }

    fn refused(&self) -> io::Error {
        io::Error::new(io::ErrorKind::Unsupported, format!("{} is only looked at", self.file.name()))
    }
}

impl Storage for DryRun {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { read_only: false, ..self.file.capabilities() }
    }

    fn medium(&self) -> Medium {
        self.file.medium()
    }

    fn length(&self) -> u64 {
        self.length.load(Ordering::Acquire)
    }

    fn read(&self, offset: u64, buf: IoBuf, _hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        Box::pin(self.read_over(offset, buf))
    }

    fn write(&self, offset: u64, data: IoVec, _hints: Hints) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move { self.keep(offset, &data.to_bytes()).await })
    }

    fn flush(&self) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn zero(&self, offset: u64, len: u64, _: Zeroing) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            for at in (0..len).step_by(ZEROES_BYTES) {
                let now = (len - at).min(ZEROES_BYTES as u64) as usize;
                self.keep(offset + at, &[0; ZEROES_BYTES][..now]).await?;
            }
            Ok(())
        })
    }

    fn discard(&self, _: u64, _: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn grow_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        self.length.fetch_max(length, Ordering::AcqRel);
        Box::pin(async { Ok(()) })
    }

    fn shorten_to(&self, _: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async { Err(self.refused()) })
    }

    fn allocate(&self, _: u64, _: u64, _: Allocation) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async { Err(self.refused()) })
    }

    fn extent(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        Box::pin(async move {
            let written = self.written.lock().range(offset..).next().map(|(at, _)| *at);
            let inside = self.file.length().saturating_sub(offset).min(len);
            let known = match inside {
                0 => Extent { len, kind: ExtentKind::Hole },
                inside => self.file.extent(offset, inside).await?,
            };
            Ok(match written {
                // What was written may begin or go on here: taken for data, which is never wrong.
                _ if self.is_written(offset) => Extent { len: known.len, kind: ExtentKind::Data },
                Some(at) if at < offset + known.len => Extent { len: at - offset, ..known },
                _ => known,
            })
        })
    }

    fn allocated_bytes(&self) -> Option<u64> {
        self.file.allocated_bytes()
    }
}

impl DryRun {
    fn is_written(&self, offset: u64) -> bool {
        self.written.lock().contains_key(&(offset - offset % BLOCK_BYTES as u64))
    }
}

#[cfg(test)]
mod tests {
    use storage::{IoBytes, MemoryStorage};

    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_the_file_stays() {
        reactor::Reactor::new(reactor::Backend::Ring).unwrap().run(async {
            let file = Arc::new(MemoryStorage::new(0));
            file.write(0, IoBytes::copy_from(&[1; 2000]).into(), Hints::NONE).await.unwrap();
            let dry = DryRun::over(file.clone());
            dry.write(500, IoBytes::copy_from(&[2; 100]).into(), Hints::NONE).await.unwrap();
            dry.write(3000, IoBytes::copy_from(&[3; 10]).into(), Hints::NONE).await.unwrap();
            let (result, bytes) = dry.read(0, IoBuf::uninit(3010), Hints::NONE).await;
            result.unwrap();
            let mut expected = [&[1; 2000][..], &[0; 1010]].concat();
            expected[500..600].fill(2);
            expected[3000..].fill(3);
            assert_eq!(bytes[..], expected);
            assert_eq!((dry.length(), dry.written_bytes()), (3010, 3 * 512));
            let (_, bytes) = file.read(0, IoBuf::uninit(3010), Hints::NONE).await;
            assert_eq!(bytes[..2000], [1; 2000]);
            assert_eq!(file.length(), 2000);
            // A hole of the file is none where something was written.
            assert_eq!(dry.extent(2560, 450).await.unwrap().kind, ExtentKind::Data);
        });
    }
}
