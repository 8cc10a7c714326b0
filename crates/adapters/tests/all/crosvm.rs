//! A disk as crosvm's `AsyncDisk`. The traits here have the shape of crosvm's (`disk`, `cros_async`, `base`), which are in no registry: a
//! monitor copies what follows them.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use async_trait::async_trait;
use cowhand::{Disk, ForeignBytes, ResizeOptions, ZeroOptions};
use futures_executor::block_on;

use crate::scratch::{SIZE_BYTES, Scratch, bytes_at};

/// The shape of crosvm's.
mod theirs {
    use super::*;

    /// Part of some memory.
    #[derive(Clone, Copy, Debug)]
    pub struct MemRegion {
        pub offset: u64,
        pub len: usize,
    }

    pub type MemRegionIter<'a> = std::iter::Copied<std::slice::Iter<'a, MemRegion>>;

    #[derive(Clone, Copy, Debug, Default)]
    pub struct IoOptions;

    /// A place in memory that others may change.
    pub struct VolatileSlice {
        pub start: *mut u8,
        pub len: usize,
    }

    /// # Safety
    /// A slice may be changed without a mutable reference, as long as the memory lives.
    pub unsafe trait BackingMemory {
        fn get_volatile_slice(&self, region: MemRegion) -> io::Result<VolatileSlice>;
    }

    pub trait DiskGetLen {
        fn get_len(&self) -> io::Result<u64>;
    }

    pub trait FileSetLen {
        fn set_len(&self, len: u64) -> io::Result<()>;
    }

    pub trait FileAllocate {
        fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;
    }

    #[async_trait(?Send)]
    pub trait AsyncDisk: DiskGetLen + FileSetLen + FileAllocate {
        async fn flush(&self) -> io::Result<()>;
        async fn fsync(&self) -> io::Result<()>;
        async fn fdatasync(&self) -> io::Result<()>;
        async fn read_to_mem<'a>(
            &'a self,
            file_offset: u64,
            mem: Arc<dyn BackingMemory + Send + Sync>,
            mem_offsets: MemRegionIter<'a>,
            options: IoOptions,
        ) -> io::Result<usize>;
        async fn write_from_mem<'a>(
            &'a self,
            file_offset: u64,
            mem: Arc<dyn BackingMemory + Send + Sync>,
            mem_offsets: MemRegionIter<'a>,
            options: IoOptions,
        ) -> io::Result<usize>;
        async fn punch_hole(&self, file_offset: u64, length: u64) -> io::Result<()>;
        async fn write_zeroes_at(&self, file_offset: u64, length: u64) -> io::Result<()>;
    }
}

use theirs::{
    AsyncDisk, BackingMemory, DiskGetLen, FileAllocate, FileSetLen, IoOptions, MemRegion, MemRegionIter,
    VolatileSlice,
};

/// A disk of cowhand's as one of crosvm's.
pub struct CowhandDisk(pub Disk);

/// The regions of a request, which keep the memory alive until it has ended: also when its future was dropped.
fn foreign(
    mem: Arc<dyn BackingMemory + Send + Sync>,
    regions: MemRegionIter<'_>,
) -> io::Result<ForeignBytes> {
    let parts = regions.filter(|region| region.len > 0).map(|region| {
        let slice = mem.get_volatile_slice(region)?;
        let start = NonNull::new(slice.start).ok_or(io::ErrorKind::InvalidInput)?;
        Ok((start, slice.len))
    });
    let parts = parts.collect::<io::Result<Vec<_>>>()?;
    // SAFETY: the trait promises that its slices may be changed by others as long as the memory lives, which the owner is.
    Ok(unsafe { ForeignBytes::new(parts, Arc::new(mem)) })
}

impl DiskGetLen for CowhandDisk {
    fn get_len(&self) -> io::Result<u64> {
        Ok(self.0.size()?)
    }
}

impl FileSetLen for CowhandDisk {
    fn set_len(&self, len: u64) -> io::Result<()> {
        let options = ResizeOptions { shrink: true, ..ResizeOptions::default() };
        Ok(self.0.resize(len, options).wait()?)
    }
}

impl FileAllocate for CowhandDisk {
    /// Allocated, and read as zeroes: what crosvm's own images do.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(self.0.write_zeroes(offset, len, ZeroOptions::default()).wait()?)
    }
}

#[async_trait(?Send)]
impl AsyncDisk for CowhandDisk {
    async fn flush(&self) -> io::Result<()> {
        // A write that has completed is with the disk.
        Ok(())
    }

    async fn fsync(&self) -> io::Result<()> {
        Ok(self.0.flush().await?)
    }

    async fn fdatasync(&self) -> io::Result<()> {
        self.fsync().await
    }

    async fn read_to_mem<'a>(
        &'a self,
        file_offset: u64,
        mem: Arc<dyn BackingMemory + Send + Sync>,
        mem_offsets: MemRegionIter<'a>,
        _options: IoOptions,
    ) -> io::Result<usize> {
        let memory = foreign(mem, mem_offsets)?;
        let len = memory.len();
        self.0.read_into(file_offset, memory).await?;
        Ok(len)
    }

    async fn write_from_mem<'a>(
        &'a self,
        file_offset: u64,
        mem: Arc<dyn BackingMemory + Send + Sync>,
        mem_offsets: MemRegionIter<'a>,
        _options: IoOptions,
    ) -> io::Result<usize> {
        let memory = foreign(mem, mem_offsets)?;
        let len = memory.len();
        self.0.write_from(file_offset, memory).await?;
        Ok(len)
    }

    async fn punch_hole(&self, file_offset: u64, length: u64) -> io::Result<()> {
        Ok(self.0.discard(file_offset, length).await?)
    }

    async fn write_zeroes_at(&self, file_offset: u64, length: u64) -> io::Result<()> {
        let options = ZeroOptions { unmap: true, fast_only: false };
        Ok(self.0.write_zeroes(file_offset, length, options).await?)
    }
}

/// Memory of a guest, in the shape of crosvm's.
struct Memory(ForeignBytes);

// SAFETY: ForeignBytes gives out no references, and its owner is in it.
unsafe impl BackingMemory for Memory {
    fn get_volatile_slice(&self, region: MemRegion) -> io::Result<VolatileSlice> {
        let from = usize::try_from(region.offset).map_err(io::Error::other)?;
        let end = from.checked_add(region.len).filter(|end| *end <= self.0.len());
        let end = end.ok_or(io::ErrorKind::InvalidInput)?;
        let slice = self.0.slice(from, end);
        Ok(VolatileSlice { start: slice.parts()[0].start().as_ptr(), len: region.len })
    }
}

#[test]
fn a_disk_does_what_crosvms_trait_says() {
    let scratch = Scratch::new();
    let opened = scratch.open();
    let disk: Box<dyn AsyncDisk> = Box::new(CowhandDisk(opened.clone()));
    let guest = ForeignBytes::zeroed(16384);
    guest.copy_from(0, &[7; 8192]);
    let mem = || Arc::new(Memory(guest.clone())) as Arc<dyn BackingMemory + Send + Sync>;
    let regions = |list: &'static [(u64, usize)]| -> Vec<MemRegion> {
        list.iter().map(|&(offset, len)| MemRegion { offset, len }).collect()
    };
    block_on(async {
        let out = regions(&[(0, 1000), (4096, 24), (8192, 1000)]);
        let written = disk.write_from_mem(512, mem(), out.iter().copied(), IoOptions).await.unwrap();
        assert_eq!(written, 2024);
        disk.fdatasync().await.unwrap();
        disk.flush().await.unwrap();
        let back = regions(&[(12288, 2024)]);
        let read = disk.read_to_mem(512, mem(), back.iter().copied(), IoOptions).await.unwrap();
        assert_eq!(read, 2024);
        let mut expected = vec![7; 1024];
        expected.resize(2024, 0);
        assert_eq!(guest.slice(12288, 12288 + 2024).to_bytes().unwrap()[..], expected);

        let wrong = regions(&[(16384, 1)]);
        disk.read_to_mem(0, mem(), wrong.iter().copied(), IoOptions).await.unwrap_err();
        disk.write_zeroes_at(512, 512).await.unwrap();
        disk.punch_hole(65536, 65536).await.unwrap();
        disk.allocate(1 << 20, 65536).unwrap();
        disk.set_len(SIZE_BYTES * 2).unwrap();
        assert_eq!(disk.get_len().unwrap(), SIZE_BYTES * 2);
    });
    drop(disk);
    opened.close().wait().unwrap();
    let disk = scratch.open();
    assert_eq!(bytes_at(&disk, 512, 512), [0; 512]);
    assert_eq!(bytes_at(&disk, 1024, 512), [7; 512]);
    disk.close().wait().unwrap();
}
