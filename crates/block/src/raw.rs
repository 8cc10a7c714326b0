//! Raw bytes as a disk.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memory::{ForeignBytes, IoBuf, IoVec};
use storage::{
    Allocation, ExtentKind, Hints, RangeGuard, RangeLocks, RangeMode, Step, Storage, Zeroing, about_to,
};

use crate::{
    Blame, Block, BlockFuture, BlockStatus, Capabilities, Error, ReadKind, Stored, Takes, ZeroOptions,
    not_copied,
};

/// What sizes of disks are multiples of.
pub const SECTOR_BYTES: u64 = 512;

/// Bytes of a medium that are the disk.
#[derive(Clone, Debug)]
pub struct Raw {
    /// The driver that made a disk of the bytes: `raw`, or one whose storage has them in another form.
    pub driver: &'static str,
    /// Where they are.
    pub storage: Arc<dyn Storage>,
    /// First byte of the disk in the storage.
    pub offset: u64,
    /// Size of the disk in bytes: of all copies of this.
    size: Arc<AtomicU64>,
    /// The disk is a part of the storage that ends where it ends, however the storage grows.
    pub fixed: bool,
    /// What may not become of its first bytes, where its format was guessed.
    pub start: Option<Arc<StartGuard>>,
}

impl Raw {
    /// The whole of `storage` as a disk, which is a whole number of sectors: what the last one lacks
    /// in the storage reads as zeroes.
    pub fn new(storage: Arc<dyn Storage>) -> Self {
        let size = storage.length().next_multiple_of(SECTOR_BYTES);
        Self { fixed: false, ..Self::part(storage, 0, size) }
    }

    /// `size` bytes from `offset` on.
    pub fn part(storage: Arc<dyn Storage>, offset: u64, size: u64) -> Self {
        let size = Arc::new(AtomicU64::new(size));
        Self { driver: "raw", storage, offset, size, fixed: true, start: None }
    }

    /// Gives the disk another size while it is in use, and its storage the length for that: of `size` bytes, which the disk has rounded up to whole
    /// sectors. What is added reads as zeroes, or as noise where it is ciphered, and gets space if `how` says so. The disk of a
    /// device gets the size that this has by now, and `size` must be that.
    ///
    /// A disk that becomes smaller is so before its storage is: `ended` waits for the requests that began before. What
    /// is beyond the new size is lost.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Unsupported`] for a part of a storage, or a storage of another length that cannot change; whatever the storage says: then a disk that was to
    /// become smaller may be so.
    ///
    /// # Crash
    /// The storage has the old length or the new one.
    pub async fn resize(
        &self,
        size: u64,
        how: Option<Allocation>,
        ended: impl AsyncFnOnce(),
    ) -> Result<(), Error> {
        let unsupported = |why: String| Err(self.blame().unsupported(why));
        if self.fixed {
            return unsupported(
                "the disk is a part of a file, and its size is given (option size)".to_owned(),
            );
        }
        let Some(length) = self.offset.checked_add(size) else {
            return Err(self.blame().invalid("the size and the offset together are beyond 64 bits"));
        };
        let (old, new) = (self.size(), size.next_multiple_of(SECTOR_BYTES));
        if self.storage.capabilities().resizable {
            if new < old {
                self.size.store(new, Ordering::Release);
                ended().await;
            }
            self.change_length(length).await?;
        } else {
            // It may have become longer, and never counts as shorter.
            let grown = self.storage.grow_to(length).await;
            let there = self.storage.length();
            if grown.is_err() || there != length {
                return unsupported(format!("the disk is a device, whose size is what it is: {there} bytes"));
            }
        }
        if let Some(how) = how.filter(|_| new > old) {
            let allocated = self.storage.allocate(self.offset + old, new - old, how).await;
            allocated.map_err(self.failing("allocating space"))?;
        }
        self.flush().await?;
        self.size.store(new, Ordering::Release);
        Ok(())
    }

    async fn change_length(&self, length: u64) -> Result<(), Error> {
        self.storage.shorten_to(length).await.map_err(self.failing("cutting off what is beyond the disk"))?;
        // Also when the disk becomes smaller: a file may lack what the last sector of a disk has.
        // To what is added to a LUKS file nothing is written: it reads as noise, as in every new one.
        self.storage.extend_to(length).await.map_err(self.failing("making it longer"))
    }

    /// The same disk in `storage`, which is a copy of the one that it is in.
    ///
    /// # Errors
    /// The size that the disk has there, when that is another one.
    pub fn on(&self, storage: Arc<dyn Storage>) -> Result<Self, u64> {
        let length = storage.length();
        let there = length.next_multiple_of(SECTOR_BYTES).saturating_sub(self.offset);
        let size = self.size();
        let found = if self.fixed { size.min(there) } else { there };
        match found == size {
            true => Ok(Self { storage, ..self.clone() }),
            false => Err(found),
        }
    }

    /// Another part of `storage` as the same disk.
    pub fn other_part(&self, storage: Arc<dyn Storage>, offset: u64, size: u64, fixed: bool) -> Self {
        Self { storage, offset, size: Arc::new(AtomicU64::new(size)), fixed, ..self.clone() }
    }

    /// Where `len` bytes at `offset` begin in the storage.
    ///
    /// # Errors
    /// When they do not lie inside the disk.
    pub fn host(&self, offset: u64, len: u64) -> Result<u64, Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size() => Ok(self.offset + offset),
            _ => Err(self.blame().past_end(offset, len, self.size())),
        }
    }

    /// What looks at a write of `len` bytes at `offset` first.
    fn guard_of(&self, offset: u64, len: usize) -> Option<&StartGuard> {
        self.start.as_deref().filter(|_| offset < START_BYTES && len > 0)
    }

    fn blame(&self) -> Blame {
        Blame::new(self.storage.name())
    }

    /// Makes an error of a failure. The name is copied only then: a copy a request would cost as much as the way
    /// through a map.
    fn failing(&self, doing: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        move |error| self.blame().io(doing)(error)
    }

    /// What the file system says: holes read as zeroes, and so does what the last sector lacks in the storage. Such an
    /// end is the one place where a status is not of whole sectors.
    async fn status(&self, offset: u64, len: u64) -> Result<BlockStatus, Error> {
        let host = self.host(offset, len)?;
        let status = BlockStatus::data(len, 0, Some(host));
        let end = self.storage.length();
        if host >= end {
            return Ok(BlockStatus { zero: true, hole: true, data: false, ..status });
        }
        let extent = self.storage.extent(host, len).await.map_err(self.failing("asking for holes"))?;
        let hole = extent.kind == ExtentKind::Hole;
        let to_end = hole && host + extent.len >= end;
        let known =
            if to_end { (end - self.offset).next_multiple_of(SECTOR_BYTES) - offset } else { extent.len };
        let data = extent.kind == ExtentKind::Data;
        Ok(BlockStatus { len: known.min(len), zero: hole, hole, data, ..status })
    }
}

impl Block for Raw {
    fn driver(&self) -> &'static str {
        self.driver
    }

    fn name(&self) -> &str {
        self.storage.name()
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn capabilities(&self) -> Capabilities {
        let medium = self.storage.capabilities();
        Capabilities {
            read_only: medium.read_only,
            alignment: medium.alignment,
            cached: medium.cached,
            cluster_bytes: None,
        }
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> Option<ReadKind> {
        let inside = offset.checked_add(buf.len() as u64).is_some_and(|end| end <= self.size());
        (inside && self.storage.try_read(self.offset + offset, buf, hints)).then_some(ReadKind::Data)
    }

    fn try_read_into(&self, offset: u64, memory: &ForeignBytes, hints: Hints) -> Option<ReadKind> {
        let inside = offset.checked_add(memory.len() as u64).is_some_and(|end| end <= self.size());
        (inside && self.storage.try_read_into(self.offset + offset, memory, hints)).then_some(ReadKind::Data)
    }

    fn read(
        &self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(async move {
            let host = match self.host(offset, buf.len() as u64) {
                Ok(host) => host,
                Err(error) => return (Err(error), buf),
            };
            about_to(&*self.storage, Step::ReadAio);
            let (result, buf) = self.storage.read(host, buf, hints).await;
            (result.map(|()| ReadKind::Data).map_err(self.failing("reading data")), buf)
        })
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let host = self.host(offset, data.len() as u64)?;
            let _alone = match self.guard_of(offset, data.len()) {
                None => None,
                Some(guard) => {
                    let checked = Box::pin(guard.check(&*self.storage, self.offset, (offset, &data))).await;
                    Some(checked.map_err(self.failing("writing data"))?)
                }
            };
            about_to(&*self.storage, Step::WriteAio);
            self.storage.write(host, data, hints).await.map_err(self.failing("writing data"))
        })
    }

    fn read_into(
        &self,
        offset: u64,
        memory: ForeignBytes,
        hints: Hints,
    ) -> BlockFuture<'_, Result<ReadKind, Error>> {
        Box::pin(async move {
            let host = self.host(offset, memory.len() as u64)?;
            about_to(&*self.storage, Step::ReadAio);
            let read = self.storage.read_into(host, memory, hints).await;
            read.map(|()| ReadKind::Data).map_err(self.failing("reading data"))
        })
    }

    fn write_from(
        &self,
        offset: u64,
        memory: ForeignBytes,
        hints: Hints,
    ) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let host = self.host(offset, memory.len() as u64)?;
            if self.guard_of(offset, memory.len()).is_some() {
                // What is looked at must be what is written.
                let copy = memory.to_bytes().map_err(|why| not_copied(self.name(), why))?;
                return self.write(offset, copy.into(), hints).await;
            }
            about_to(&*self.storage, Step::WriteAio);
            self.storage.write_from(host, memory, hints).await.map_err(self.failing("writing data"))
        })
    }

    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let host = self.host(offset, len)?;
            self.storage.zero(host, len, zeroing(options)).await.map_err(self.failing("zeroing"))
        })
    }

    fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let host = self.host(offset, len)?;
            self.storage.discard(host, len).await.map_err(self.failing("discarding"))
        })
    }

    fn flush(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            about_to(&*self.storage, Step::FlushToOs);
            about_to(&*self.storage, Step::FlushToDisk);
            self.storage.flush().await.map_err(self.failing("flushing"))
        })
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        Box::pin(self.status(offset, len))
    }

    fn stored(&self, offset: u64, len: u64, wanted: Takes) -> BlockFuture<'_, Result<Option<Stored>, Error>> {
        Box::pin(async move {
            let host = self.host(offset, len)?;
            Ok(if wanted == Takes::File { in_file(&*self.storage, host, len) } else { None })
        })
    }

    fn takes(&self) -> Option<Takes> {
        (self.start.is_none() && self.storage.copies()).then_some(Takes::File)
    }

    fn take(&self, offset: u64, stored: Stored) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let host = self.host(offset, stored.disk_bytes())?;
            let Stored::File { file, offset: from, len } = stored else {
                return Err(self.blame().unsupported("a raw disk has no compressed clusters"));
            };
            let copied = self.storage.copy_from(host, file, from, len).await;
            copied.map_err(|error| match error.kind() {
                std::io::ErrorKind::Unsupported => self.blame().unsupported(error.to_string()),
                _ => self.failing("copying data")(error),
            })
        })
    }

    fn close(&self) -> BlockFuture<'_, Result<(), Error>> {
        self.flush()
    }
}

/// What `storage` has at `offset`, as far as its file reaches; `None` where it is no file that the kernel copies from.
pub fn in_file(storage: &dyn Storage, offset: u64, len: u64) -> Option<Stored> {
    let len = len.min(storage.length().saturating_sub(offset));
    let file = storage.descriptor().filter(|_| len > 0)?;
    Some(Stored::File { file: Arc::clone(file), offset, len })
}

fn zeroing(options: ZeroOptions) -> Zeroing {
    match options {
        ZeroOptions { fast_only: true, .. } => Zeroing::FastOnly,
        ZeroOptions { unmap: true, .. } => Zeroing::Unmap,
        ZeroOptions { unmap: false, .. } => Zeroing::Keep,
    }
}

/// Bytes from the start by which a format is guessed, as in QEMU.
pub const START_BYTES: u64 = 512;

/// The system's number of "Operation not permitted", which QEMU's raw driver gives.
const EPERM: i32 = 1;

/// Refuses writes after which the first bytes of a disk are those of an image: who writes a disk's content could make the next
/// opener guess another format, with files of the writer's choice.
#[derive(Debug)]
pub struct StartGuard {
    is_image: fn(&[u8]) -> bool,
    /// Writes to parts of the start come one after the other: each sees what the others made of it.
    locks: RangeLocks,
}

impl StartGuard {
    /// `is_image` looks at the first bytes, [`START_BYTES`] at most.
    pub fn new(is_image: fn(&[u8]) -> bool) -> Self {
        Self { is_image, locks: RangeLocks::default() }
    }

    /// Looks at the start as it will be when `data`, which touches it, is at `offset` of the disk that begins at `from` of `storage`. What this
    /// returns is held until the write has ended.
    ///
    /// # Errors
    /// EPERM when it would be an image's; when the start cannot be read.
    async fn check(
        &self,
        storage: &dyn Storage,
        from: u64,
        (offset, data): (u64, &IoVec),
    ) -> io::Result<RangeGuard<'_>> {
        let alone = self.locks.acquire(0, START_BYTES, RangeMode::Exclusive).await;
        let there = storage.length().saturating_sub(from).min(START_BYTES);
        let covers = offset == 0 && data.len() as u64 >= there.max(1);
        let mut start = match covers {
            true => Vec::new(),
            false => {
                // It fits: START_BYTES at most.
                let (result, buf) = storage.read(from, IoBuf::uninit(there as usize), Hints::NONE).await;
                result?;
                buf.to_vec()
            }
        };
        let (at, bytes) = (offset as usize, data.slice(0, data.len().min(START_BYTES as usize)).to_bytes());
        let end = (at + bytes.len()).min(START_BYTES as usize);
        start.resize(start.len().max(end), 0);
        if let (Some(place), Some(new)) = (start.get_mut(at..end), bytes.get(..end.saturating_sub(at))) {
            place.copy_from_slice(new);
        }
        if (self.is_image)(&start) { Err(io::Error::from_raw_os_error(EPERM)) } else { Ok(alone) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Block, Raw};
    use futures_executor::block_on;
    use memory::IoBytes;
    use std::sync::Arc;
    use storage::MemoryStorage;

    #[test]
    fn no_write_makes_the_start_that_of_an_image_also_not_part_by_part() {
        let mut raw = Raw::new(Arc::new(MemoryStorage::from_bytes(&[0; 2048])));
        raw.start = Some(Arc::new(StartGuard::new(|start| start.starts_with(b"MAGIC"))));
        let write = |offset, bytes: &[u8]| {
            let written = block_on(raw.write(offset, IoVec::from(IoBytes::copy_from(bytes)), Hints::NONE));
            written.map_err(|error| error.raw_os_error())
        };
        let refused = Err(Some(EPERM));
        assert_eq!(write(0, b"MAGIC"), refused);
        assert_eq!(write(0, &[b"MAGIC".as_slice(), &[7; 1000]].concat()), refused);
        assert_eq!(write(0, b"MAG"), Ok(()));
        assert_eq!(write(2, b"GIC"), refused);
        assert_eq!(write(3, b"IC"), refused);
        assert_eq!(write(3, b"IX"), Ok(()));
        assert_eq!(write(4, b"C"), refused);
        assert_eq!(write(START_BYTES, b"MAGIC"), Ok(()));
        assert_eq!(write(1, b"MAGIC"), Ok(()));
        let (result, start) = block_on(raw.read(0, IoBuf::uninit(8), Hints::NONE));
        assert!(result.is_ok() && start[..8] == *b"MMAGIC\0\0");
        assert_eq!(raw.takes(), None, "nothing is copied past the guard");
    }
}
