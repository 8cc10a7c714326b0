//! A disk as [`imago::Storage`], and as a raw image over it: what libkrun and other users of imago take.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use cowhand::{Buffer, Disk, OpenOptions, Preallocation, Request, ResizeOptions, ZeroOptions};
use event_listener::Event;
use futures_channel::oneshot;
use imago::FormatAccess;
use imago::Storage;
use imago::io_buffers::{IoVector, IoVectorMut};
use imago::raw::Raw;
use imago::storage::PreallocateMode;
use imago::storage::drivers::CommonStorageHelper;
use parking_lot::Mutex;

/// A disk as imago's storage: the bytes that a guest sees, with chain, encryption and limits behind them.
///
/// imago lends the memory of a request for the life of its future only, so bytes are copied once. A request whose future was dropped
/// is carried out all the same; [`Storage::settle_writes`] waits for it.
#[derive(Debug)]
pub struct DiskStorage {
    disk: Disk,
    path: Option<PathBuf>,
    changes: Arc<Changes>,
    helper: CommonStorageHelper,
}

impl DiskStorage {
    /// The storage that `disk` is.
    ///
    /// # Errors
    /// When the disk is closed.
    pub fn new(disk: Disk) -> Result<Self, cowhand::Error> {
        let path = disk.info()?.chain.into_iter().next().map(PathBuf::from);
        Ok(Self { disk, path, changes: Arc::default(), helper: CommonStorageHelper::default() })
    }

    /// The disk, for what the trait has no functions for: limits, snapshots, figures, [`Disk::close`].
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Carries out a request that changes the disk.
    async fn change(&self, request: Request) -> io::Result<()> {
        let running = self.changes.start();
        let (sender, receiver) = oneshot::channel();
        self.disk.submit(request).on_completion(move |result| {
            drop(running);
            // The future may have been dropped.
            let _ = sender.send(result.map(drop));
        });
        Ok(receiver.await.map_err(io::Error::other)??)
    }

    async fn zero(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        let options = ZeroOptions { unmap, fast_only: false };
        self.change(Request::WriteZeroes { offset, len, options, fua: false }).await
    }
}

/// Opens a disk, and gives it as an image of imago's. `options` are cowhand's; `read_only` decides whether imago writes.
///
/// # Errors
/// When the disk cannot be opened.
pub async fn open(options: OpenOptions) -> io::Result<FormatAccess<DiskStorage>> {
    access(options.open().await?).await
}

/// An open disk as an image of imago's.
///
/// # Errors
/// When the disk is closed.
pub async fn access(disk: Disk) -> io::Result<FormatAccess<DiskStorage>> {
    let is_writable = !disk.info()?.read_only;
    let raw = Raw::open_image(DiskStorage::new(disk)?, is_writable).await?;
    Ok(FormatAccess::new(raw))
}

impl fmt::Display for DiskStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "cowhand:{}", path.display()),
            None => f.write_str("cowhand:[closed]"),
        }
    }
}

impl Storage for DiskStorage {
    fn size(&self) -> io::Result<u64> {
        Ok(self.disk.size()?)
    }

    fn get_filename(&self) -> Option<PathBuf> {
        self.path.clone()
    }

    async unsafe fn pure_readv(&self, bufv: IoVectorMut<'_>, offset: u64) -> io::Result<()> {
        // What lies beyond the end reads as zeroes.
        let inside = bufv.len().min(self.size()?.saturating_sub(offset));
        let buffer = self.disk.read(offset, Buffer::new(bytes(inside)?)).await?;
        let (mut read, mut beyond) = bufv.split_at(inside);
        read.copy_from_slice(&buffer);
        beyond.fill(0);
        Ok(())
    }

    async unsafe fn pure_writev(&self, bufv: IoVector<'_>, offset: u64) -> io::Result<()> {
        let mut buffer = Buffer::new(bytes(bufv.len())?);
        bufv.copy_into_slice(&mut buffer);
        self.change(Request::Write { offset, buffer, fua: false }).await
    }

    async unsafe fn pure_write_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        self.zero(offset, length, true).await
    }

    async unsafe fn pure_write_allocated_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        self.zero(offset, length, false).await
    }

    async unsafe fn pure_discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.change(Request::Discard { offset, len: length }).await
    }

    async fn flush(&self) -> io::Result<()> {
        // A write that has completed is with the disk.
        Ok(())
    }

    async fn sync(&self) -> io::Result<()> {
        Ok(self.disk.flush().await?)
    }

    async fn settle_writes(&self) -> io::Result<()> {
        self.changes.settle().await;
        Ok(())
    }

    async unsafe fn invalidate_cache(&self) -> io::Result<()> {
        // The disk has the image's lock: nothing that it caches can have changed.
        Ok(())
    }

    fn get_storage_helper(&self) -> &CommonStorageHelper {
        &self.helper
    }

    async fn resize(&self, new_size: u64, prealloc_mode: PreallocateMode) -> io::Result<()> {
        let shrink = new_size < self.size()?;
        let preallocation = match prealloc_mode {
            _ if shrink => Preallocation::Off,
            PreallocateMode::None | PreallocateMode::Zero => Preallocation::Off,
            PreallocateMode::Allocate => Preallocation::Falloc,
            PreallocateMode::WriteData => Preallocation::Full,
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        let options = ResizeOptions { shrink, preallocation, ..ResizeOptions::default() };
        Ok(self.disk.resize(new_size, options).await?)
    }
}

fn bytes(len: u64) -> io::Result<usize> {
    usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory.into())
}

/// Requests that change the disk and have not ended.
#[derive(Debug, Default)]
struct Changes {
    state: Mutex<Numbers>,
    ended: Event,
}

#[derive(Debug, Default)]
struct Numbers {
    next: u64,
    running: BTreeSet<u64>,
}

/// One of them, until it is dropped.
struct Running {
    changes: Arc<Changes>,
    number: u64,
}

impl Changes {
    fn start(self: &Arc<Self>) -> Running {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.running.insert(number);
        Running { changes: Arc::clone(self), number }
    }

    /// Waits for those that have been started before.
    async fn settle(&self) {
        let next = self.state.lock().next;
        loop {
            let ended = self.ended.listen();
            if self.state.lock().running.first().is_none_or(|oldest| *oldest >= next) {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.changes.state.lock().running.remove(&self.number);
        self.changes.ended.notify(usize::MAX);
    }
}
