//! What O_DIRECT demands of a request to one file.

use std::io::IoSliceMut;
use std::os::fd::AsFd;

use buffer::{ALIGNMENT, IoBuf};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::ReadWriteFlags;

use super::Kind;

/// Powers of two, at most [`ALIGNMENT`].
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

    /// Whether `bytes` can go to (or come from) the medium as they lie.
    pub(super) fn admits(self, bytes: &[u8]) -> bool {
        bytes.len().is_multiple_of(self.offset as usize)
            && (bytes.as_ptr() as usize).is_multiple_of(self.memory as usize)
    }

    fn checked(offset: u32, memory: u32) -> Option<Self> {
        let fits = |value: u32| value.is_power_of_two() && value as usize <= ALIGNMENT;
        (fits(offset) && fits(memory)).then_some(Self { offset, memory })
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
        let sector = rustix::fs::ioctl_blksszget(&fd).ok()?;
        return DirectAlignment::checked(sector.max(512), sector.max(512));
    }
    tried(fd)
}

enum Stated {
    Alignment(DirectAlignment),
    Refused,
    Unknown,
}

/// What `statx` says (Linux 6.1, some file systems).
fn stated(fd: impl AsFd) -> Stated {
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
fn tried(fd: impl AsFd) -> Option<DirectAlignment> {
    let mut buf = IoBuf::uninit(2 * ALIGNMENT);
    for size in [512, 1024, 2048, 4096usize] {
        let target = &mut buf[size..2 * size];
        match rustix::io::preadv2(&fd, &mut [IoSliceMut::new(target)], 0, ReadWriteFlags::empty()) {
            Ok(0) => return DirectAlignment::checked(ALIGNMENT as u32, ALIGNMENT as u32),
            Ok(_) => return DirectAlignment::checked(size as u32, size as u32),
            Err(_) => {}
        }
    }
    None
}
