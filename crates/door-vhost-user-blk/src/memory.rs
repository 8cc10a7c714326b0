//! A guest's memory: regions by their addresses, and the log of pages that were written.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use memory::{ForeignBytes, MayLose};
use smallvec::SmallVec;

use crate::allowance::Allowance;
use crate::limits::{LOG_BYTES_MAX, MEMORY_SLOTS_MAX};
use crate::mapping::{MapError, Mapping, OutsideMapping, foreign, is_any_lost};
use crate::message::{Area, RegionInfo};

/// Bytes that one bit of the log stands for (vhost-user specification, "Migration").
const LOG_PAGE_BYTES: u64 = 4096;

/// Why regions cannot be a guest's memory.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// One cannot be mapped.
    #[error("the memory at {guest:#x} cannot be mapped: {source}")]
    Map {
        /// Its address.
        guest: u64,
        /// Why.
        source: MapError,
    },
    /// Its addresses end beyond those that there are.
    #[error("the memory at {guest:#x} of {len:#x} bytes is no range of addresses")]
    NoRange {
        /// Its address.
        guest: u64,
        /// Bytes.
        len: u64,
    },
    /// Two at one place.
    #[error("the memory at {guest:#x} overlaps another region")]
    Overlap {
        /// Its address.
        guest: u64,
    },
    /// Too many.
    #[error("there are {MEMORY_SLOTS_MAX} regions of memory already")]
    TooMany,
    /// No such region.
    #[error("there is no region of memory at {guest:#x} with these bounds")]
    Unknown {
        /// Its address.
        guest: u64,
    },
    /// The log is too large, or cannot be mapped.
    #[error("the log of dirty pages cannot be mapped: {0}")]
    Log(MapError),
    /// The log is larger than any guest's.
    #[error("the log of dirty pages has {found} bytes; at most {LOG_BYTES_MAX} are allowed")]
    LogTooLong {
        /// As it came.
        found: u64,
    },
}

/// Addresses that are no memory of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {address:#x} are not in the guest's memory")]
pub struct Outside {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub len: u64,
}

/// One region.
#[derive(Clone, Debug)]
struct Region {
    info: RegionInfo,
    mapping: Arc<Mapping>,
    /// Its file, for another process.
    file: Arc<OwnedFd>,
}

impl Region {
    fn map(info: RegionInfo, fd: impl AsFd, allowance: &Allowance) -> Result<Self, MemoryError> {
        let RegionInfo { guest, len, user, file_offset } = info;
        if guest.checked_add(len).is_none() || user.checked_add(len).is_none() {
            return Err(MemoryError::NoRange { guest, len });
        }
        let failed = |source| MemoryError::Map { guest, source };
        let mapping = Mapping::new(&fd, Area { len, file_offset }, allowance).map_err(failed)?;
        let file = fd.as_fd().try_clone_to_owned().map_err(|error| failed(MapError::System(error)))?;
        Ok(Self { info, mapping: Arc::new(mapping), file: Arc::new(file) })
    }

    fn end(&self) -> u64 {
        // `map` has looked.
        self.info.guest + self.info.len
    }
}

/// Parts of regions: the region, the first byte in it, how many.
type Pieces<'a> = SmallVec<[(&'a Region, usize, usize); 2]>;

/// All regions at one moment. Who uses some of it holds it: a region that is taken away stays mapped until then.
#[derive(Clone, Default)]
pub struct Memory {
    /// Ascending, none overlaps another.
    regions: Vec<Region>,
    allowance: Allowance,
}

/// Memory that a ring lies in: a range of one region.
#[derive(Clone, Debug)]
pub struct Span {
    /// Where it is mapped.
    pub mapping: Arc<Mapping>,
    /// The first byte there.
    pub offset: usize,
    /// The first byte as the guest has it.
    pub guest: u64,
}

impl Memory {
    /// None yet, as part of `allowance`.
    pub fn new(allowance: Allowance) -> Self {
        Self { regions: Vec::new(), allowance }
    }

    /// Other regions in the place of all: those that `described` says, each with its file.
    ///
    /// # Errors
    /// When one cannot be mapped, or two overlap.
    pub fn replaced_by(&self, described: &[(RegionInfo, impl AsFd)]) -> Result<Self, MemoryError> {
        let none = Self::new(self.allowance.clone());
        described.iter().try_fold(none, |memory, (info, fd)| memory.with(*info, fd))
    }

    /// The same with one region more.
    ///
    /// # Errors
    /// As [`Memory::replaced_by`].
    pub fn with(&self, info: RegionInfo, fd: impl AsFd) -> Result<Self, MemoryError> {
        if self.regions.len() >= MEMORY_SLOTS_MAX {
            return Err(MemoryError::TooMany);
        }
        let region = Region::map(info, fd, &self.allowance)?;
        let at = self.regions.partition_point(|other| other.info.guest < info.guest);
        let before = at.checked_sub(1).and_then(|at| self.regions.get(at));
        let overlaps = before.is_some_and(|before| before.end() > info.guest)
            || self.regions.get(at).is_some_and(|after| region.end() > after.info.guest);
        if overlaps {
            return Err(MemoryError::Overlap { guest: info.guest });
        }
        let mut regions = self.regions.clone();
        regions.insert(at, region);
        Ok(Self { regions, allowance: self.allowance.clone() })
    }

    /// The same without the region that `info` describes.
    ///
    /// # Errors
    /// When there is none.
    pub fn without(&self, info: RegionInfo) -> Result<Self, MemoryError> {
        let same = |region: &Region| {
            let own = region.info;
            (own.guest, own.user, own.len) == (info.guest, info.user, info.len)
        };
        let at = self.regions.iter().position(same);
        let at = at.ok_or(MemoryError::Unknown { guest: info.guest })?;
        let mut regions = self.regions.clone();
        regions.remove(at);
        Ok(Self { regions, allowance: self.allowance.clone() })
    }

    /// What the regions were made of, in ascending order.
    pub fn described(&self) -> impl Iterator<Item = (RegionInfo, &OwnedFd)> {
        self.regions.iter().map(|region| (region.info, &*region.file))
    }

    /// Whether some of a region was lost: its file was cut, or memory failed. Costs a load while no memory of the process was.
    pub fn is_lost(&self) -> bool {
        is_any_lost() && self.regions.iter().any(|region| region.mapping.is_lost())
    }

    /// The pieces of a range, which may go from one region to the next.
    fn pieces(&self, address: u64, len: u64) -> Result<Pieces<'_>, Outside> {
        let outside = Outside { address, len };
        let end = address.checked_add(len).ok_or(outside)?;
        let mut pieces = SmallVec::new();
        let mut at = address;
        while at < end {
            let after = self.regions.partition_point(|region| region.info.guest <= at);
            let region = after.checked_sub(1).and_then(|index| self.regions.get(index));
            let region = region.filter(|region| at < region.end()).ok_or(outside)?;
            let until = end.min(region.end());
            let place = |n: u64| usize::try_from(n).map_err(|_| outside);
            pieces.push((region, place(at - region.info.guest)?, place(until - at)?));
            at = until;
        }
        Ok(pieces)
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// When they are not all memory.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), Outside> {
        let outside = Outside { address, len: out.len() as u64 };
        let mut rest = out;
        for (region, offset, len) in self.pieces(address, outside.len)? {
            let (part, after) = rest.split_at_mut_checked(len).ok_or(outside)?;
            region.mapping.read(offset, part).map_err(|_| outside)?;
            rest = after;
        }
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// When they are not all memory: then none, or the first of them, are written.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Outside> {
        let outside = Outside { address, len: bytes.len() as u64 };
        let mut rest = bytes;
        for (region, offset, len) in self.pieces(address, outside.len)? {
            let (part, after) = rest.split_at_checked(len).ok_or(outside)?;
            region.mapping.write(offset, part).map_err(|_| outside)?;
            rest = after;
        }
        Ok(())
    }

    /// Ranges (address, bytes) as memory that a request fills or reads in place. It keeps all of `self`.
    ///
    /// # Errors
    /// When a range is not all memory.
    pub fn foreign(
        self: &Arc<Self>,
        ranges: impl IntoIterator<Item = (u64, u64)>,
    ) -> Result<ForeignBytes, Outside> {
        let mut parts: SmallVec<[_; 8]> = SmallVec::new();
        for (address, len) in ranges {
            let pieces = self.pieces(address, len)?;
            parts.extend(pieces.into_iter().map(|(region, offset, len)| (&region.mapping, offset, len)));
        }
        let no_range = |OutsideMapping { len, .. }| Outside { address: 0, len: len as u64 };
        foreign(parts, Arc::clone(self)).map_err(no_range)
    }

    /// The range of one region at an address of the front-end, where a ring is.
    pub fn span(&self, user: u64, len: usize) -> Option<Span> {
        self.regions.iter().find_map(|region| {
            let inside = user.checked_sub(region.info.user)?;
            let offset = usize::try_from(inside).ok()?;
            let fits = offset.checked_add(len)? <= region.mapping.len();
            let mapping = Arc::clone(&region.mapping);
            fits.then(|| Span { mapping, offset, guest: region.info.guest + inside })
        })
    }
}

impl MayLose for Memory {
    fn is_lost(&self) -> bool {
        Memory::is_lost(self)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.regions.iter().map(|region| region.info)).finish()
    }
}

/// The log of dirty pages: a bit for each page of the guest's memory, read and cleared by a front-end that migrates.
#[derive(Debug)]
pub struct DirtyLog {
    mapping: Mapping,
}

impl DirtyLog {
    /// Maps it.
    ///
    /// # Errors
    /// When it is larger than any guest's, or cannot be mapped.
    pub fn new(fd: impl AsFd, area: Area, allowance: &Allowance) -> Result<Self, MemoryError> {
        if area.len > LOG_BYTES_MAX {
            return Err(MemoryError::LogTooLong { found: area.len });
        }
        Mapping::new(fd, area, allowance).map(|mapping| Self { mapping }).map_err(MemoryError::Log)
    }

    /// Whether some of it was lost.
    pub fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }

    /// The pages of `len` bytes at `address` were written. What lies behind the log is memory without a log.
    pub fn mark(&self, address: u64, len: u64) {
        let Some(last) = len.checked_sub(1).and_then(|more| address.checked_add(more)) else { return };
        for page in address / LOG_PAGE_BYTES..=last / LOG_PAGE_BYTES {
            let Ok(byte) = usize::try_from(page / 8) else { return };
            if self.mapping.set_bits(byte, 1 << (page % 8)).is_err() {
                return;
            }
        }
    }
}
