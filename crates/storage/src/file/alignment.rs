//! What O_DIRECT demands of a request to one file.

use std::io::IoSliceMut;
use std::os::fd::AsFd;

use memory::{ALIGNMENT, IoBuf};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::ReadWriteFlags;

use super::kind::Kind;
use crate::medium::DirectRequests;

/// The largest sector that Linux lets a device have (BLK_MAX_BLOCK_SIZE).
const OFFSET_MAX: u32 = 64 << 10;

/// Powers of two, at most [`OFFSET_MAX`] and [`ALIGNMENT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DirectAlignment {
    /// Of offsets and lengths.
    pub(super) offset: u32,
    /// Of addresses.
    pub(super) memory: u32,
}

impl DirectAlignment {
    pub(super) fn floor(self, offset: u64) -> u64 {
        offset - offset % u64::from(self.offset)
    }

    /// Rounds up; the offset is one that the kernel can express, so there is room above it.
    pub(super) fn ceil(self, offset: u64) -> u64 {
        offset.next_multiple_of(u64::from(self.offset))
    }

    /// Whether `bytes` can go to (or come from) the device as they lie.
    pub(super) fn admits(self, bytes: &[u8]) -> bool {
        bytes.len().is_multiple_of(self.offset as usize)
            && (bytes.as_ptr() as usize).is_multiple_of(self.memory as usize)
    }

    pub(super) fn demands(self) -> DirectRequests {
        DirectRequests::Aligned { offset_bytes: self.offset, memory_bytes: self.memory }
    }

    fn checked(offset: u32, memory: u32) -> Option<Self> {
        let fits = offset.is_power_of_two() && offset <= OFFSET_MAX;
        (fits && memory.is_power_of_two() && memory as usize <= ALIGNMENT).then_some(Self { offset, memory })
    }
}

/// The demands of a file opened with O_DIRECT, or None if it refuses direct requests after all.
pub(super) fn find(fd: impl AsFd, kind: Kind) -> Option<DirectAlignment> {
    match stated(&fd) {
        Stated::Alignment(alignment) => return Some(alignment),
        Stated::Refused => return None,
        Stated::Unknown => {}
    }
    if kind == Kind::BlockDevice {
        let sector = rustix::fs::ioctl_blksszget(&fd).ok()?.max(512);
        return DirectAlignment::checked(sector, sector.min(ALIGNMENT as u32));
    }
    tried(fd)
}

pub(super) enum Stated {
    Alignment(DirectAlignment),
    Refused,
    Unknown,
}

/// What `statx` says (Linux 6.1, some file systems).
pub(super) fn stated(fd: impl AsFd) -> Stated {
    let Ok(stat) = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return Stated::Unknown;
    };
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Stated::Unknown;
    }
    if stat.stx_dio_offset_align == 0 {
        return Stated::Refused;
    }
    match DirectAlignment::checked(stat.stx_dio_offset_align.max(512), stat.stx_dio_mem_align) {
        Some(alignment) => Stated::Alignment(alignment),
        None => Stated::Unknown,
    }
}

/// Reads the start of the file with ever larger alignments. An empty file answers every read, so
/// there the largest is the only one known to do.
///
/// A read that is taken need not go beside the page cache: btrfs takes requests that are smaller than its blocks, and sends them
/// through it. So blocks of the file system are the least.
fn tried(fd: impl AsFd) -> Option<DirectAlignment> {
    let block = block_bytes(&fd);
    let mut buf = IoBuf::uninit(2 * ALIGNMENT);
    for size in [512, 1024, 2048, 4096usize] {
        let target = &mut buf[size..2 * size];
        match rustix::io::preadv2(&fd, &mut [IoSliceMut::new(target)], 0, ReadWriteFlags::empty()) {
            Ok(0) => return DirectAlignment::checked(ALIGNMENT as u32, ALIGNMENT as u32),
            Ok(_) => return DirectAlignment::checked(block.max(size as u32), size as u32),
            Err(_) => {}
        }
    }
    None
}

/// Bytes of a block of the file system. Not more than a page: network file systems give the size of their transfers there.
fn block_bytes(fd: impl AsFd) -> u32 {
    let block = rustix::fs::fstatfs(fd).ok().and_then(|stat| u32::try_from(stat.f_bsize).ok());
    block.filter(|&block| block.is_power_of_two() && block as usize <= ALIGNMENT).unwrap_or(0)
}
