//! A disk as the file of an image. The image is unaware that its file is a disk.

use std::any::Any;
use std::io;
use std::sync::Arc;

use block::{Block, Error, ErrorKind, ReadKind, ZeroOptions};
use qcow2::ResizeOptions;
use storage::{
    Allocation, Capabilities, Extent, ExtentKind, ForeignBytes, Hints, IoBuf, IoBytes, IoFuture, IoVec,
    Storage, Zeroing,
};

use crate::child::{Child, Owner};
use crate::disk::Disk;
use crate::drivers::{Access, filter};
use crate::options::{FileOptions, NODE_PREFIX, OpenDisk};

/// Bytes of zeroes that are written at a time.
const ZEROES: usize = 1 << 20;

/// The disk of a node that an option names.
#[derive(Clone, Debug)]
pub(crate) struct NodeDisk {
    /// The disk.
    pub(crate) child: Arc<Child>,
    /// The disks that become longer when it does, the lowest first; none if it cannot.
    pub(crate) grow: Vec<Arc<Disk>>,
}

impl OpenDisk for NodeDisk {
    fn open(&self, name: String, access: Access) -> IoFuture<'_, io::Result<Arc<dyn Storage>>> {
        Box::pin(async move {
            if access.writable && self.child.disk().read_only() {
                let node = name.strip_prefix(NODE_PREFIX).unwrap_or(&name);
                let what = format!("node {node:?} is read-only; give read-only to the node over it");
                return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, what));
            }
            Ok(self.storage(name, access.writable))
        })
    }
}

impl NodeDisk {
    /// The bytes of the disk as those of a file called `name`.
    fn storage(&self, name: String, writable: bool) -> Arc<dyn Storage> {
        let Self { child, grow } = self.clone();
        Arc::new(NodeStorage { name, child, grow, writable })
    }
}

/// The disk that `file` is, as the image over it sees it, once it is known.
pub(crate) fn child_of(file: &FileOptions) -> Option<Arc<Child>> {
    let opener = file.disk()?.opener()?;
    let disk = (&*opener as &dyn Any).downcast_ref::<NodeDisk>()?;
    Some(Arc::clone(&disk.child))
}

/// The bytes of `disk`, which goes with them, as those of a file called `name`.
pub(crate) fn storage_of_own(name: String, disk: Arc<Disk>, writable: bool) -> Arc<dyn Storage> {
    let child = Child::new(Arc::clone(&disk), Owner::Filter);
    NodeDisk { child, grow: to_grow(&disk).into_iter().collect() }.storage(name, writable)
}

/// The disk that gets another size when `disk` does: itself, or what a filter on it that has its size is over.
fn to_grow(disk: &Arc<Disk>) -> Option<Arc<Disk>> {
    let top = disk.top_image();
    let Some(filter) = filter(top.driver()) else { return Some(Arc::clone(disk)) };
    let below = top.below().filter(|_| filter.grows)?;
    to_grow(&below.downcast_ref::<Child>()?.disk())
}

/// The bytes of a disk.
#[derive(Debug)]
pub(crate) struct NodeStorage {
    name: String,
    pub(crate) child: Arc<Child>,
    grow: Vec<Arc<Disk>>,
    writable: bool,
}

impl NodeStorage {
    /// How many of `len` bytes at `offset` the disk has.
    fn inside(&self, offset: u64, len: usize) -> usize {
        self.child.size().saturating_sub(offset).min(len as u64) as usize
    }

    async fn change_length(&self, length: u64, shrink: bool) -> io::Result<()> {
        if self.grow.is_empty() {
            let what = format!("the disk has {} bytes, and cannot get another size", self.child.size());
            return Err(io::Error::new(io::ErrorKind::StorageFull, what));
        }
        let size = length.checked_next_multiple_of(block::SECTOR_BYTES).ok_or(io::ErrorKind::FileTooLarge)?;
        for disk in &self.grow {
            let options = ResizeOptions { shrink, bitmaps: true, ..ResizeOptions::default() };
            let fits = if shrink { disk.size() <= size } else { disk.size() >= size };
            if !fits {
                disk.resize(size, options).await.map_err(io_error)?;
            }
        }
        Ok(())
    }

    async fn reach(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.checked_add(len).ok_or(io::ErrorKind::FileTooLarge)?;
        if end <= self.child.size() { Ok(()) } else { self.change_length(end, false).await }
    }
}

/// The system's error where there is one.
fn io_error(error: Error) -> io::Error {
    match (&error, error.kind()) {
        (_, ErrorKind::Unsupported) => io::Error::new(io::ErrorKind::Unsupported, error),
        (Error::Io { source, .. }, _) => match source.raw_os_error() {
            Some(number) => io::Error::from_raw_os_error(number),
            None => io::Error::new(source.kind(), error),
        },
        (_, ErrorKind::Refused) => io::Error::new(io::ErrorKind::PermissionDenied, error),
        _ => io::Error::other(error),
    }
}

impl Storage for NodeStorage {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        let below = Block::capabilities(&*self.child);
        Capabilities {
            alignment: below.alignment,
            grows_zeroed: false,
            discards_to_zero: false,
            resizable: !self.grow.is_empty(),
            read_only: !self.writable,
            cached: below.cached,
        }
    }

    fn length(&self) -> u64 {
        self.child.size()
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> bool {
        if self.inside(offset, buf.len()) < buf.len() {
            return false;
        }
        match self.child.try_read(offset, buf, hints) {
            Some(ReadKind::Zeroes) => {
                buf.fill(0);
                true
            }
            Some(ReadKind::Data) => true,
            None => false,
        }
    }

    fn try_read_into(&self, offset: u64, memory: &ForeignBytes, hints: Hints) -> bool {
        let is_inside = self.inside(offset, memory.len()) == memory.len();
        is_inside && self.child.try_read_into(offset, memory, hints) == Some(ReadKind::Data)
    }

    fn read(&self, offset: u64, mut buf: IoBuf, hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        Box::pin(async move {
            let inside = self.inside(offset, buf.len());
            if inside == buf.len() {
                let (read, buf) = self.child.read(offset, buf, hints).await;
                return (read.map(drop).map_err(io_error), buf);
            }
            buf.fill(0);
            if inside == 0 {
                return (Ok(()), buf);
            }
            let Some(part) = IoBuf::try_uninit(inside) else {
                return (Err(io::ErrorKind::OutOfMemory.into()), buf);
            };
            let (read, part) = self.child.read(offset, part, hints).await;
            if read.is_ok() {
                buf[..inside].copy_from_slice(&part);
            }
            (read.map(drop).map_err(io_error), buf)
        })
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.reach(offset, data.len() as u64).await?;
            self.child.write(offset, data, hints).await.map_err(io_error)
        })
    }

    fn flush(&self) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move { self.child.flush().await.map_err(io_error) })
    }

    fn zero(&self, offset: u64, len: u64, how: Zeroing) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.reach(offset, len).await?;
            let options = ZeroOptions { unmap: how != Zeroing::Keep, fast_only: how == Zeroing::FastOnly };
            self.child.zero(offset, len, options).await.map_err(io_error)
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let len = self.child.size().saturating_sub(offset).min(len);
            if len == 0 {
                return Ok(());
            }
            self.child.discard(offset, len).await.map_err(io_error)
        })
    }

    fn grow_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            if length <= self.child.size() { Ok(()) } else { self.change_length(length, false).await }
        })
    }

    fn shorten_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            if length >= self.child.size() { Ok(()) } else { self.change_length(length, true).await }
        })
    }

    fn allocate(&self, offset: u64, len: u64, how: Allocation) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let (mut at, end) = (self.child.size().max(offset), offset.saturating_add(len));
            self.reach(offset, len).await?;
            if how == Allocation::Reserve {
                return Ok(());
            }
            // What was there keeps its value, and has its space.
            while at < end {
                let part = (end - at).min(ZEROES as u64);
                let zeroes = IoBytes::zeroed(part as usize);
                self.child.write(at, zeroes.into(), Hints::NONE).await.map_err(io_error)?;
                at += part;
            }
            Ok(())
        })
    }

    fn extent(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        Box::pin(async move {
            let status = self.child.block_status(offset, len).await.map_err(io_error)?;
            let kind = if status.zero { ExtentKind::Hole } else { ExtentKind::Data };
            Ok(Extent { len: status.len.clamp(1, len), kind })
        })
    }

    fn end_writing(&self) -> IoFuture<'_, io::Result<()>> {
        // The image over it is closed: a disk that only that has goes with it.
        match self.child.owned() {
            Some(_) => Box::pin(async move { self.child.close().await.map_err(io_error) }),
            None => Box::pin(async { Ok(()) }),
        }
    }

    fn allocated_bytes(&self) -> Option<u64> {
        self.child.disk().allocated_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::OpenRules;
    use crate::drive::parse_drive;
    use crate::options::DiskOptions;

    /// A tool has no graph: what a drive describes in the place of a file is opened with it.
    #[test]
    fn a_drive_describes_disks_in_disks() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let reactor = reactor::Reactor::new(reactor::Backend::Ring).unwrap();
        let shown = path.display();
        reactor.run(async {
            std::fs::File::create(&path).unwrap();
            let file = storage::FileStorage::open(&path, &storage::FileOptions::default()).unwrap();
            let created = qcow2::CreateOptions { size: 1 << 20, ..qcow2::CreateOptions::default() };
            qcow2::create(&file, None, &created).await.unwrap();
            drop(file);
            for (value, drive) in [
                (1, format!("driver=raw,file.driver=qcow2,file.file.driver=file,file.file.filename={shown}")),
                (2, format!("driver=qcow2,file.driver=raw,file.file.filename={shown}")),
                (3, format!("json:{{'driver': 'qcow2', 'file': {{'driver': 'copy-on-read', 'file': {{'driver': 'file', 'filename': '{shown}'}}}}}}")),
                (4, format!("driver=blkdebug,image.driver=qcow2,image.file.driver=file,image.file.filename={shown}")),
            ] {
                let tree = parse_drive(OsStr::new(&drive), |_| false).unwrap();
                let disk = crate::open(&DiskOptions::of_tree(tree).unwrap(), &OpenRules::default()).await.unwrap();
                let bytes = IoVec::from(IoBytes::copy_from(&[value; 4096]));
                disk.write(u64::from(value) << 16, bytes, false, Hints::NONE).await.unwrap();
                disk.close().await.unwrap();
                drop(disk);
                let plain = crate::open(&DiskOptions::of_path(&path), &OpenRules::default()).await.unwrap();
                let (read, buf) = plain.read(u64::from(value) << 16, IoBuf::uninit(4096), Hints::NONE).await;
                read.unwrap();
                assert!(buf.iter().all(|byte| *byte == value), "{drive}");
                plain.close().await.unwrap();
            }
            let file = storage::FileStorage::open(&path, &storage::FileOptions::default()).unwrap();
            assert!(qcow2::check(&file, qcow2::Repair::None, &mut |_| ()).await.unwrap().is_clean());
        });
    }
}
