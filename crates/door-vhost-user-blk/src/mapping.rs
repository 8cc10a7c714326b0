//! Memory shared with a front-end, mapped. All unsafe code of this crate is here and in `sigbus`.
//!
//! Others change the bytes at any time. So there is never a reference to them: they are copied out, or are read and written by atomic
//! operations, each field once. A file can be made shorter by the front-end: `sigbus` has what then happens.

mod file_kind;
mod sigbus;

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

use memory::ForeignBytes;
use rustix::fs::{FileType, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

pub use self::file_kind::{FilePolicy, WrongFile};
pub(crate) use self::file_kind::{closes_at_once, is_eventfd, is_unix_socket, open_mount_table};
use self::sigbus::Watched;
pub(crate) use self::sigbus::is_any_lost;
use crate::allowance::{Allowance, Charge, NoRoom};
use crate::memory::Memory;
use crate::message::Area;

/// The type of hugetlbfs, whose files are mapped in pages of the file system's size.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Bytes of a page of any other file system.
const PAGE_BYTES: u64 = 4096;

/// Why a file cannot be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// Its type.
    #[error("it is no regular file and no memory file")]
    NoFile,
    /// The range is empty, or ends beyond the numbers that there are.
    #[error("the range of {len} bytes at {offset} is no range")]
    NoRange {
        /// Bytes.
        len: u64,
        /// Where it begins.
        offset: u64,
    },
    /// The range is not in the file.
    #[error("the range of {len} bytes at {offset} ends beyond the file, which has {file}")]
    BeyondEnd {
        /// Bytes.
        len: u64,
        /// Where it begins.
        offset: u64,
        /// Bytes of the file.
        file: u64,
    },
    /// Its file may never answer.
    #[error(transparent)]
    File(#[from] WrongFile),
    /// It is more than this front-end may have mapped.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// The system's refusal.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// A part of a file that another process uses, too. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    /// The first byte that was asked for.
    start: NonNull<u8>,
    len: usize,
    /// The whole pages around it.
    pages: NonNull<u8>,
    pages_len: usize,
    /// Dropped before the pages are unmapped.
    watched: Option<Watched>,
    _charge: Charge,
}

// SAFETY: a mapping is an address and a length; the bytes are reached only by copies and atomic operations.
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing gives out a reference to the bytes.
unsafe impl Sync for Mapping {}

/// What a call of [`Mapping`] named lies outside, or is not aligned as its type must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {offset} do not lie in the mapping")]
pub struct OutsideMapping {
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

impl Mapping {
    /// Maps `area` of the file `fd` for reading and writing, as part of `allowance`. Where it can, it forbids that the file is made shorter.
    ///
    /// # Errors
    /// When it is no file with these bytes, or not one that may be mapped, or more than is allowed.
    pub fn new(fd: impl AsFd, area: Area, allowance: &Allowance) -> Result<Self, MapError> {
        let Area { len, file_offset: offset } = area;
        // First of all: any other question may never be answered.
        allowance.policy().check(&fd)?;
        let file = fstat(&fd).map_err(io::Error::from)?;
        if FileType::from_raw_mode(file.st_mode) != FileType::RegularFile {
            return Err(MapError::NoFile);
        }
        let end = offset.checked_add(len).filter(|end| len > 0 && i64::try_from(*end).is_ok());
        let end = end.ok_or(MapError::NoRange { len, offset })?;
        // The seal first, then the length: it cannot shrink in between.
        let sealed = fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
            || fcntl_add_seals(&fd, SealFlags::SHRINK).is_ok();
        let file_bytes = fstat(&fd).map_err(io::Error::from)?.st_size.unsigned_abs();
        if end > file_bytes {
            return Err(MapError::BeyondEnd { len, offset, file: file_bytes });
        }
        tracing::debug!(sealed, len, "memory is mapped");
        let page = page_bytes(&fd)?;
        let first = offset - offset % page;
        let pages_len = (end - first).next_multiple_of(page);
        let [len, pages_len, inside, page] =
            [len, pages_len, offset - first, page].map(|n| usize::try_from(n).ok());
        let (Some(len), Some(pages_len), Some(inside), Some(page)) = (len, pages_len, inside, page) else {
            return Err(MapError::NoRange { len: area.len, offset });
        };
        let charge = allowance.take(pages_len as u64)?;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: no address is asked for, so nothing that is mapped is replaced.
        let mapped = unsafe { mmap(std::ptr::null_mut(), pages_len, access, flags, &fd, first) };
        let pages = NonNull::new(mapped.map_err(io::Error::from)?.cast::<u8>())
            .ok_or_else(|| io::Error::other("mapped at address zero"))?;
        // SAFETY: `inside` is less than a page, and the mapping has at least one.
        let start = unsafe { pages.add(inside) };
        let mut mapping = Self { start, len, pages, pages_len, watched: None, _charge: charge };
        let watched = Watched::new(pages, pages_len, page)?;
        // There are as many places as all front-ends together may have ranges.
        mapping.watched = Some(watched.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?);
        Ok(mapping)
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether some of it was lost, because its file was cut or memory failed: what is read there is not what was written.
    pub fn is_lost(&self) -> bool {
        self.watched.as_ref().is_some_and(Watched::is_lost)
    }

    fn at(&self, offset: usize, len: usize) -> Result<NonNull<u8>, OutsideMapping> {
        let end = offset.checked_add(len).filter(|end| *end <= self.len);
        end.ok_or(OutsideMapping { offset, len })?;
        // SAFETY: the range lies inside the mapping.
        Ok(unsafe { self.start.add(offset) })
    }

    /// Copies bytes out; the guest cannot change the copy.
    ///
    /// # Errors
    /// When they do not lie inside.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), OutsideMapping> {
        let from = self.at(offset, out.len())?;
        // SAFETY: the range is mapped; `out` is ours alone, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// When they do not lie inside.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), OutsideMapping> {
        let to = self.at(offset, bytes.len())?;
        // SAFETY: the range is mapped; no reference leads there, so it does not overlap `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Reads a number of two bytes at once.
    ///
    /// # Errors
    /// When it does not lie inside, or is not aligned.
    pub fn load_u16(&self, offset: usize, order: Ordering) -> Result<u16, OutsideMapping> {
        self.atomic_u16(offset).map(|cell| cell.load(order))
    }

    /// Writes a number of two bytes at once.
    ///
    /// # Errors
    /// When it does not lie inside, or is not aligned.
    pub fn store_u16(&self, offset: usize, value: u16, order: Ordering) -> Result<(), OutsideMapping> {
        self.atomic_u16(offset).map(|cell| cell.store(value, order))
    }

    /// Reads a number of eight bytes at once.
    ///
    /// # Errors
    /// When it does not lie inside, or is not aligned.
    pub fn load_u64(&self, offset: usize, order: Ordering) -> Result<u64, OutsideMapping> {
        self.atomic_u64(offset).map(|cell| cell.load(order))
    }

    /// Writes a number of eight bytes at once.
    ///
    /// # Errors
    /// When it does not lie inside, or is not aligned.
    pub fn store_u64(&self, offset: usize, value: u64, order: Ordering) -> Result<(), OutsideMapping> {
        self.atomic_u64(offset).map(|cell| cell.store(value, order))
    }

    /// Sets bits of one byte.
    ///
    /// # Errors
    /// When it does not lie inside.
    pub fn set_bits(&self, offset: usize, bits: u8) -> Result<(), OutsideMapping> {
        let byte = self.at(offset, 1)?;
        // SAFETY: the byte is mapped while `self` lives; all accesses here that overlap in time are atomic.
        let cell = unsafe { AtomicU8::from_ptr(byte.as_ptr()) };
        cell.fetch_or(bits, Ordering::AcqRel);
        Ok(())
    }

    fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64, OutsideMapping> {
        let start = self.at(offset, 8)?.cast::<u64>();
        if !start.is_aligned() {
            return Err(OutsideMapping { offset, len: 8 });
        }
        // SAFETY: the number is mapped while `self` lives, and aligned.
        Ok(unsafe { AtomicU64::from_ptr(start.as_ptr()) })
    }

    fn atomic_u16(&self, offset: usize) -> Result<&AtomicU16, OutsideMapping> {
        let start = self.at(offset, 2)?.cast::<u16>();
        if !start.is_aligned() {
            return Err(OutsideMapping { offset, len: 2 });
        }
        // SAFETY: the number is mapped while `self` lives, and aligned.
        Ok(unsafe { AtomicU16::from_ptr(start.as_ptr()) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The pages are not touched any more. Once they are unmapped their addresses may be another mapping's.
        self.watched = None;
        // SAFETY: the pages were mapped by `new`, and requests that use them hold the mapping.
        let _ = unsafe { munmap(self.pages.as_ptr().cast(), self.pages_len) };
    }
}

/// Parts of mappings, as memory that requests fill and read in place; each is a mapping, a first byte and a length. `owner` keeps all the
/// mappings.
/// The caller sees to it that `owner` has an [`Arc`] of each mapping.
///
/// # Errors
/// When a part does not lie in its mapping.
pub(crate) fn foreign<'a>(
    parts: impl IntoIterator<Item = (&'a Arc<Mapping>, usize, usize)>,
    owner: Arc<Memory>,
) -> Result<ForeignBytes, OutsideMapping> {
    let place = |(mapping, offset, len): (&Arc<Mapping>, usize, usize)| Ok((mapping.at(offset, len)?, len));
    let places: smallvec::SmallVec<[_; 8]> = parts.into_iter().map(place).collect::<Result<_, _>>()?;
    // SAFETY: the places lie in mappings for reading and writing, which the owner keeps (`Memory::foreign`, the only caller); nothing gives out a reference to their bytes.
    Ok(unsafe { ForeignBytes::new_that_may_be_lost(places, owner) })
}

/// In which units a file is mapped.
fn page_bytes(fd: impl AsFd) -> Result<u64, MapError> {
    let system = fstatfs(&fd).map_err(io::Error::from)?;
    let own = u64::try_from(system.f_bsize).unwrap_or(0);
    let huge = u64::try_from(system.f_type).is_ok_and(|kind| kind == HUGETLBFS_MAGIC);
    Ok(if huge && own.is_power_of_two() { own.max(PAGE_BYTES) } else { PAGE_BYTES })
}
